"""The drawn characters: which are in which split, and how they are turned and scaled."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qkv.datasets.corpora.images import omniglot
from qkv.datasets.corpora.images.omniglot import Omniglot
from qkv.datasets.dataset_cache import cache_folder
from tests.datasets.build import load


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Omniglot:
    """Two files with three small alphabets; each character is one dot of ink at its own position."""
    monkeypatch.setattr(omniglot, "ALPHABETS", {"A": 2, "Hebrew": 1, "Z": 2})
    monkeypatch.setattr(omniglot, "TRAIN_CHARACTERS", 4)
    known = []
    for file, numbers in zip(Omniglot.files, (range(3), range(3, 5)), strict=True):
        images = np.ones((len(numbers), 20, 105, 105), dtype=bool)
        for index, number in enumerate(numbers):
            images[index, :, :15, 15 * number : 15 * number + 15] = False  # ink: four by four small pixels
        path = tmp_path / file.path
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, images=images, labels=np.zeros((len(numbers), 20), dtype=np.int64))
        data = path.read_bytes()
        known.append(replace(file, sha256=hashlib.sha256(data).hexdigest(), size=len(data)))
    monkeypatch.setattr(Omniglot, "files", tuple(known))
    return Omniglot(folder=str(tmp_path), ways=2)


def test_characters_are_split_by_index_and_validation_alphabets(small: Omniglot) -> None:
    splits = small.read().splits
    names = {split: [name.rpartition("/")[0] for name in found.names[::4]] for split, found in splits.items()}
    assert names == {
        "train": ["A/character01", "A/character02", "Z/character01"],
        "valid": ["Hebrew/character01"],
        "test": ["Z/character02"],
    }
    assert [name.rpartition("/")[2] for name in splits["valid"].names] == ["rot000", "rot090", "rot180", "rot270"]


def test_training_on_the_validation_characters_leaves_the_other_splits_alone(small: Omniglot) -> None:
    splits, held_out = small.replace(train_on_valid=True).read().splits, small.read().splits
    assert splits["train"].names[::4] == tuple(
        f"{name}/rot000" for name in ("A/character01", "A/character02", "Hebrew/character01", "Z/character01")
    )
    for split in ("valid", "test"):
        assert splits[split].names == held_out[split].names
        assert np.array_equal(splits[split].pixels, held_out[split].pixels)


def test_drawings_are_inverted_resized_and_rotated_counterclockwise(small: Omniglot) -> None:
    splits = small.read().splits
    assert splits["train"].pixels.shape == (12, 20, 1, 28, 28)
    upright, left, over, right = splits["test"].pixels[:, 7, 0]  # character number 4
    assert (upright[:4, 16:20] == 255).all()
    assert upright.sum() == 16 * 255
    assert (left[8:12, :4] == 255).all()
    assert (over[-4:, 8:12] == 255).all()
    assert (right[16:20, -4:] == 255).all()


def test_there_are_as_many_characters_as_published_and_the_splits_of_vinyals_et_al() -> None:
    named = list(omniglot._characters())
    assert len(named) == 1623
    assert sum(list(omniglot.ALPHABETS.values())[:30]) == 964
    assert [sum(split == part for split, _ in named) for part in ("train", "valid", "test")] == [1028, 172, 423]
    both = {name.partition("/")[0] for split, name in named if split != "test"} & {
        name.partition("/")[0] for split, name in named if split == "test"
    }
    assert both == {"Gurmukhi"}


REAL = Path(os.environ.get("QKV_DATA", ""))
LISTS = REAL / "omniglot" / "splits_vinyals"


@pytest.mark.skipif(not (LISTS / "test.txt").is_file(), reason="needs omniglot/splits_vinyals in QKV_DATA")
def test_the_classes_of_each_split_are_those_that_the_lists_name() -> None:
    for split, file in (("train", "train"), ("valid", "val"), ("test", "test")):
        ours = {
            f"{name}/{turn}" for part, name in omniglot._characters() if part == split for turn in omniglot.ROTATIONS
        }
        assert ours == set((LISTS / f"{file}.txt").read_text().split())


@pytest.mark.corpus
@pytest.mark.skipif(
    not any((folder / Omniglot.files[1].path).is_file() for folder in (REAL, cache_folder())),
    reason=f"needs {Omniglot.files[0].path} and {Omniglot.files[1].path} in QKV_DATA or the cache",
)
def test_drawings_of_a_class_are_more_alike_than_those_of_two() -> None:
    """Labels match drawings: a nearest neighbor in pixel space is far better than random guessing."""
    test = load("omniglot").splits["test"]
    episodes = test.sample(0, range(300))
    pixels = test.pixels.reshape(-1, 28 * 28).astype(np.float32)
    shown, asked = pixels[episodes.support], pixels[episodes.queries[np.arange(300), episodes.query_label]]
    nearest = ((shown - asked[:, None]) ** 2).sum(axis=-1).argmin(axis=1)
    assert (episodes.labels[np.arange(300), nearest] == episodes.query_label).mean() > 0.35
