"""Strings of digits, made by joining recordings of one speaker.

fsdd            Free Spoken Digit Dataset (Jackson et al. 2018): the same six speakers in all splits. The official test
                recordings are 0 to 4 of each speaker and digit; 5 to 9 are held out for validation.
audiomnist8k    AudioMNIST (Becker et al. 2018) at 8 kHz, five recordings of each of 60 speakers and digit; no speaker
                is in two splits.

A string has one to `max_digits` digits, each a random recording of one speaker, scaled to the same peak, with pauses
between them. A string of the training split is determined by the seed, the epoch and its index, one of the other splits
by its index alone, identically on every machine.
"""

import csv
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Int16
from numpy import ndarray
from pydantic import Field

from qkv.config import Rate
from qkv.datasets.columns import EXACT, Column
from qkv.datasets.dataset import TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.speech import SpeechDataset, Utterance, Utterances
from qkv.datasets.formats.archive import unpack
from qkv.errors import InputError
from qkv.registry import register
from qkv.runtime.files import read_regular

RATE = 8000  # Hz
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TRAIN_SIZE, HELD_OUT = 20_000, 500  # strings per epoch, and of valid and test
PAUSE = 0.25  # longest silence before, between and after the digits, in seconds
PEAK = 0.5  # of each recording
INDEX_BYTES = 2**22
VALID_TAKES = range(5, 10)  # of each speaker and digit of fsdd, whose takes 0 to 4 are the test split
Split = Literal["train", "valid", "test"]


class Recording(NamedTuple):
    """A part of the audio: one digit."""

    start: int
    samples: int
    digit: int
    speaker: str


class DigitSegment(NamedTuple):
    """One digit of a string, played faster by `speed`, after some samples of silence."""

    recording: Recording
    pause: int
    speed: float

    @property
    def samples(self) -> int:
        return self.pause + int(self.recording.samples / self.speed)


@dataclass(frozen=True)
class DigitStrings(Utterances):
    """Strings of the recordings of a split."""

    audio: Int16[ndarray, "samples"]
    takes: Mapping[str, Mapping[int, list[Recording]]]  # recordings of each speaker and digit
    split: Split
    count: int
    max_digits: int
    speed: float = 0.0  # largest relative change of the speed

    @property
    def rate(self) -> int:
        return RATE

    @property
    def texts(self) -> tuple[str, ...]:
        return (" ".join(DIGITS),)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: slice) -> "DigitStrings":
        start, stop, step = index.indices(self.count)
        assert (start, step) == (0, 1), "only the first strings can be selected"
        return replace(self, count=stop)

    def samples(self, index: int, key: str = "") -> int:
        parts, end = self._parts(index, key)
        return sum(part.samples for part in parts) + end

    def text(self, index: int, key: str = "") -> str:
        return _text_of(self._parts(index, key)[0])

    def utterance(self, index: int, key: str = "") -> Utterance:
        parts, end = self._parts(index, key)
        waveform = np.zeros(sum(part.samples for part in parts) + end, dtype=np.float32)
        position = 0
        for part in parts:
            digit = self._waveform(part)
            position += part.samples
            waveform[position - len(digit) : position] = digit
        return Utterance(waveform, _text_of(parts))

    def hashed_bytes(self) -> Iterator[bytes | memoryview]:
        yield f"{self.split} {self.max_digits} {self.speed} {sorted(self.takes.items())!r}\n".encode()
        yield self.audio.data

    def _parts(self, index: int, key: str) -> tuple[list[DigitSegment], int]:
        """Return the digits of a string, and the silence after them in samples."""
        rng = random.Random(f"qkv digits {self.split} {key if self.split == 'train' else ''} {index}")
        speaker = self.takes[rng.choice(sorted(self.takes))]
        speed = 1 + self.speed * (2 * rng.random() - 1)
        parts = [
            DigitSegment(rng.choice(speaker[rng.choice(sorted(speaker))]), int(rng.random() * PAUSE * RATE), speed)
            for _ in range(rng.randint(1, self.max_digits))
        ]
        return parts, int(rng.random() * PAUSE * RATE)

    def _waveform(self, part: DigitSegment) -> Float32[ndarray, "samples"]:
        start, samples, _, _ = part.recording
        digit = self.audio[start : start + samples].astype(np.float32)
        digit *= PEAK / max(1.0, float(np.abs(digit).max()))
        if part.speed == 1.0:
            return digit
        times = np.arange(part.samples - part.pause) * part.speed
        return np.interp(times, np.arange(samples), digit).astype(np.float32)


def _text_of(parts: Sequence[DigitSegment]) -> str:
    return " ".join(DIGITS[part.recording.digit] for part in parts)


class SpokenDigits(TextDatasetConfig):
    """Base class of the two corpora."""

    dataset_class = SpeechDataset
    columns = (Column("wer", "word error rate, %", 100, higher_is_better=False), EXACT)
    origin = "the files audio.npz and index.tsv have all recordings in one array, and where each begins."

    max_digits: Annotated[int, Field(ge=1, le=64)] = 7  # digits of the longest strings
    speed: Rate = 0.0  # training strings are played faster or slower by up to this fraction (Ko et al. 2015)

    def read(self) -> SpeechDataset:
        audio_path, index_path = self.fetch()
        low, high = (
            np.load(io.BytesIO(unpack(audio_path, f"{part}.npy")), allow_pickle=False) for part in ("lo", "hi")
        )
        audio = high.astype(np.int16) * 256 + low
        text = read_regular(index_path, INDEX_BYTES).decode()
        takes: dict[str, dict[str, dict[int, list[Recording]]]] = {"train": {}, "valid": {}, "test": {}}
        for row in csv.DictReader(io.StringIO(text), delimiter="\t"):
            recording = Recording(int(row["start"]), int(row["samples"]), int(row["digit"]), row["speaker"])
            if recording.start + recording.samples > len(audio) or recording.samples < 1:
                raise InputError(f"{index_path}: {row['id']} is not inside the audio")
            speakers = takes[self.split_of(row)]
            speakers.setdefault(recording.speaker, {}).setdefault(recording.digit, []).append(recording)
        counts: dict[Split, int] = {"train": self.size or TRAIN_SIZE, "valid": HELD_OUT, "test": HELD_OUT}
        return SpeechDataset(
            {
                split: DigitStrings(
                    audio, takes[split], split, count, self.max_digits, self.speed if split == "train" else 0.0
                )
                for split, count in counts.items()
            }
        )

    @classmethod
    def split_of(cls, row: Mapping[str, str]) -> str:
        """Return the split of a row of the index."""
        return "valid" if row["split"] == "dev" else row["split"]


@register("dataset", "fsdd")
class FSDD(SpokenDigits):
    """Strings of digits by six speakers, who are in all splits."""

    summary = "recorded strings of digits, six speakers in all splits: 2,400 / 300 / 300 recordings, 8 kHz"
    license = "CC BY-SA 4.0"
    files = data_files(
        "fsdd",
        {
            "audio.npz": (13152871, "78b1c024dfec057b39a3518f2691552dd9283d566a6165d786e17be72e4c0784"),
            "index.tsv": (153499, "4d64e24bc10eaa83b1391028733a978ebc6babfd1e4a99b86dfbac52f2fb82a9"),
        },
    )

    @classmethod
    def split_of(cls, row: Mapping[str, str]) -> str:
        take = int(row["id"].rpartition("_")[2])
        return "valid" if row["split"] == "train" and take in VALID_TAKES else row["split"]


@register("dataset", "audiomnist8k")
class AudioMNIST(SpokenDigits):
    """Strings of digits by 60 speakers, each in one split."""

    summary = "recorded strings of digits, 36 / 12 / 12 speakers: 1,800 / 600 / 600 recordings, 8 kHz"
    license = "MIT"
    files = data_files(
        "audiomnist8k",
        {
            "audio.npz": (14936042, "becc277af02cfd9b2fb5bad929b1e027c9c65b491617c822bd4d2850c5a103f0"),
            "index.tsv": (133789, "a42a6cbac8fe6540ca9cc1066370a16d4d0e612bd5e3d22fef5d02561946df6d"),
        },
    )
