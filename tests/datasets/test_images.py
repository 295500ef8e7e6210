"""Tests of idx files and Fashion-MNIST."""

import gzip
import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qkv.datasets.corpora.images import fashion_mnist
from qkv.datasets.corpora.images.fashion_mnist import FashionMNIST
from qkv.datasets.dataset import ImageDataset
from qkv.datasets.dataset_cache import DataFile
from qkv.datasets.formats.images import LabeledImages, parse_idx
from qkv.errors import InputError
from tests.datasets.build import load


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes((0, 0, kind, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_an_array_is_read_as_it_was_written():
    array = np.random.default_rng(0).integers(0, 256, (3, 5, 4), dtype=np.uint8)
    assert (parse_idx(idx(array), "f", 3) == array).all()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "f: not an idx file"),
        (idx(np.zeros(3, np.uint8), kind=13), "f: not an idx file"),
        (idx(np.zeros((3, 1), np.uint8)), "f: not an idx file"),
        (idx(np.zeros(3, np.uint8))[:-1], "f: truncated or corrupt: 2 elements, expected 3"),
        (bytes((0, 0, 8, 1)) + struct.pack(">I", 2**32 - 1), "0 elements, expected 4,294,967,295"),
    ],
)
def test_invalid_idx_files_are_rejected_before_allocation(data, words):
    with pytest.raises(InputError, match=words):
        parse_idx(data, "f", 1)


def test_the_last_training_pictures_are_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = []
    for number, (old, count) in enumerate(zip(FashionMNIST.files, (30, 30, 10, 10), strict=True)):
        shape = (count, 2, 2) if number % 2 == 0 else (count,)
        data = gzip.compress(idx((np.arange(np.prod(shape)) % 10).astype(np.uint8).reshape(shape)))
        path = tmp_path / old.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        files.append(DataFile(old.path, len(data), hashlib.sha256(data).hexdigest()))
    monkeypatch.setattr(FashionMNIST, "files", tuple(files))
    monkeypatch.setattr(fashion_mnist, "HELD_OUT", 5)
    found = FashionMNIST(folder=str(tmp_path)).read().splits
    assert {split: len(pictures) for split, pictures in found.items()} == {"train": 25, "valid": 5, "test": 10}
    assert found["train"].pixels.shape == (25, 1, 2, 2)
    assert found["valid"].labels.tolist() == [5, 6, 7, 8, 9]


def test_the_fingerprint_knows_every_pixel_and_every_label():
    pixels, labels = np.zeros((2, 1, 2, 2), np.uint8), np.zeros(2, np.int64)
    other_pixels, other_labels = pixels.copy(), labels.copy()
    other_pixels[1, 0, 1, 1], other_labels[1] = 1, 1
    one = LabeledImages(pixels, labels, ("a", "b"))
    others = [replace(one, pixels=other_pixels), replace(one, labels=other_labels), replace(one, names=("b", "a"))]
    prints = {ImageDataset({"train": pictures}).fingerprint for pictures in (one, *others)}
    assert len(prints) == 4


@pytest.mark.skipif(
    not (Path(os.environ.get("QKV_DATA", "/nowhere")) / "fashion_mnist").is_dir(),
    reason="QKV_DATA names no folder with fashion_mnist",
)
def test_fashion_mnist_is_whole_and_balanced():
    pictures = load("fashion_mnist").images
    assert {split: len(one) for split, one in pictures.items()} == {"train": 55_000, "valid": 5_000, "test": 10_000}
    assert np.bincount(pictures["test"].labels).tolist() == [1000] * 10
