"""Recorded strings of digits: which recordings they join, and that they are determined by seed, epoch and index."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.datasets.corpora.audio import spoken_digits
from qkv.datasets.corpora.audio.spoken_digits import DIGITS, FSDD, PEAK, AudioMNIST
from qkv.datasets.dataset_cache import cache_folder
from qkv.errors import InputError

REAL = Path(os.environ.get("QKV_DATA", "/nowhere"))
LENGTH = 100  # samples of a recording


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, corpus: Any, shift: int = 0) -> Any:
    """Two speakers, ten digits and twelve takes; a recording is constant: 1 + its number."""
    rows = ["id\tsplit\tdigit\tspeaker\tstart\tsamples"]
    for number in range(240):
        speaker, digit, take = number // 120, number // 12 % 10, number % 12
        split = "test" if take < 5 else "train"
        rows.append(f"{digit}_s{speaker}_{take}\t{split}\t{digit}\ts{speaker}\t{number * LENGTH + shift}\t{LENGTH}")
    audio = np.repeat(np.arange(1, 241, dtype=np.int16) * 100, LENGTH)
    (folder / corpus.registered_name).mkdir()
    np.savez(folder / corpus.files[0].path, hi=(audio >> 8).astype(np.int8), lo=(audio & 255).astype(np.uint8))
    (folder / corpus.files[1].path).write_text("\n".join(rows) + "\n")
    known = [
        replace(file, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for file in corpus.files
        if (data := (folder / file.path).read_bytes())
    ]
    monkeypatch.setattr(corpus, "files", tuple(known))
    monkeypatch.setattr(spoken_digits, "PAUSE", 0.01)
    return lambda **options: corpus(folder=str(folder), **options).load()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return write(tmp_path, monkeypatch, FSDD)


def test_a_string_has_the_recordings_of_one_speaker_scaled_and_in_the_order_of_its_words(load: Any) -> None:
    for split, strings in load(size=40, max_digits=4).splits.items():
        lengths = set()
        for index in range(40):
            parts, _ = strings._parts(index, "0 0")
            utterance = strings.utterance(index, "0 0")
            assert len(utterance.waveform) == strings.samples(index, "0 0")
            assert utterance.text.split() == [DIGITS[part.recording.digit] for part in parts]
            assert len({part.recording.speaker for part in parts}) == 1
            voiced = utterance.waveform != 0
            assert voiced.sum() == LENGTH * len(parts)
            np.testing.assert_allclose(utterance.waveform[voiced], PEAK, rtol=1e-6)
            lengths.add(len(parts))
            takes = {part.recording.start // LENGTH % 12 for part in parts}
            assert takes <= {"train": {10, 11}, "valid": {5, 6, 7, 8, 9}, "test": {0, 1, 2, 3, 4}}[split]
        assert lengths == {1, 2, 3, 4}


def test_takes_5_to_9_are_held_out_for_validation(tmp_path: Path) -> None:
    split = {take: FSDD.split_of({"id": f"3_x_{take}", "split": "train"}) for take in (5, 9, 10, 49)}
    assert split == {5: "valid", 9: "valid", 10: "train", 49: "train"}
    assert FSDD.split_of({"id": "3_x_4", "split": "test"}) == "test"
    assert [AudioMNIST.split_of({"split": name}) for name in ("train", "dev", "test")] == ["train", "valid", "test"]


def test_training_strings_depend_on_the_key_and_others_do_not(load: Any) -> None:
    data = load(size=40).splits
    strings = data["train"]
    first, again, other = ([strings.utterance(index, key).text for index in range(20)] for key in ("0 0", "0 0", "0 1"))
    assert first == again != other
    fixed = [[data["test"].utterance(index, key).text for index in range(20)] for key in ("0 0", "5 7")]
    assert fixed[0] == fixed[1]
    assert fixed[0][:3] == [data["test"][:3].utterance(index).text for index in range(3)]
    assert len(data["test"][:3]) == 3


def test_speed_changes_the_length_of_training_strings_only(load: Any) -> None:
    faster = load(size=10, speed=0.5).splits
    strings = faster["train"]
    for index in range(10):
        parts, _ = strings._parts(index, "")
        assert len(strings.utterance(index).waveform) == strings.samples(index)
        assert 0.5 <= parts[0].speed <= 1.5
    assert {strings._parts(index, "")[0][0].speed for index in range(10)} != {1.0}
    assert faster["train"].speed == 0.5
    assert faster["test"].speed == 0.0


def test_the_fingerprint_and_the_preview_describe_the_data(load: Any) -> None:
    data = load(size=10)
    assert data.fingerprint == load(size=10).fingerprint != load(size=10, max_digits=3).fingerprint
    assert [*data.training_texts()] == [" ".join(DIGITS)]
    assert next(data.preview("test"))["text"] == data.splits["test"].utterance(0).text


def test_recordings_outside_the_audio_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="audio"):
        write(tmp_path, monkeypatch, FSDD, shift=1)()


@pytest.mark.corpus
@pytest.mark.parametrize(("corpus", "counts"), [(FSDD, (2400, 300, 300)), (AudioMNIST, (1800, 600, 600))])
def test_real_recordings_are_split_as_published(corpus: Any, counts: tuple[int, ...]) -> None:
    if not any((folder / corpus.files[0].path).is_file() for folder in (REAL, cache_folder())):
        pytest.skip(f"needs {corpus.files[0].path} in QKV_DATA or the cache")
    splits = corpus().load().splits
    takes = [
        sum(len(takes) for digits in split.takes.values() for takes in digits.values()) for split in splits.values()
    ]
    assert tuple(takes) == counts
    speakers = [set(split.takes) for split in splits.values()]
    assert speakers[0] == speakers[2] if corpus is FSDD else not speakers[0] & speakers[2]
