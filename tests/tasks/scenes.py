"""Small scenes to caption: a bright square in one corner of a dark picture."""

from typing import Any

import numpy as np

from qkv.datasets.dataset import CaptionDataset, Dataset
from qkv.datasets.examples.captions import Captions, Named

CORNERS = ("upper left", "upper right", "lower left", "lower right")


def scenes(count: int, seed: int) -> Captions:
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 40, (count, 3, 8, 8), dtype=np.uint8)
    texts, objects = [], []
    for picture, corner in zip(pictures, rng.integers(0, 4, count), strict=True):
        top, left = 4 * (corner // 2), 4 * (corner % 2)
        picture[:, top : top + 4, left : left + 4] = 250
        texts.append((f"a square {CORNERS[corner]}",))
        objects.append((Named((int(top), int(left), int(top) + 4, int(left) + 4), (1,)),))
    return Captions(pictures, tuple(texts), tuple(objects))


def loaded(count: int = 40) -> Dataset[Any]:
    return CaptionDataset({"train": scenes(count, 0), "valid": scenes(12, 1), "test": scenes(12, 2)})
