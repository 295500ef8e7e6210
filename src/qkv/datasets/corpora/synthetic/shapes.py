"""Synthetic scenes of colored shapes with captions and object boxes.

A scene has one to three objects in cells of a 3 x 3 grid, with random offsets. The caption lists them row by row from
the top; objects are large unless called small:

    a red circle
    a red circle left of a small blue square                        in the same row
    a red circle above a small blue square left of a white cross    "above": the next object is in a lower row

The split of a scene depends only on its caption: no seed moves a caption of the test split into training.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Bool, UInt8
from numpy import ndarray

from qkv.datasets.columns import EXACT, Column
from qkv.datasets.dataset import GENERATED, CaptionDataset, TextDatasetConfig
from qkv.datasets.examples.captions import Captions, Named
from qkv.datasets.formats.text_files import Split, split_of
from qkv.errors import InputError
from qkv.registry import register

TRAIN_SIZE, HELD_OUT = 50_000, 2000  # scenes of the training split, and of valid and test
SIDE = 64  # pixels of a scene
GRID = 3  # cells per side
LARGE, SMALL = 17, 11  # side of an object in pixels
MAX_OFFSET = 2  # pixels from the center of the cell, in each direction
COUNTS, COUNT_WEIGHTS = (1, 2, 3), (1, 4, 5)  # number of objects
COLORS = {
    "red": (220, 50, 40), "green": (50, 180, 60), "blue": (50, 90, 230), "yellow": (235, 215, 50),
    "purple": (160, 60, 200), "white": (235, 235, 235),
}  # fmt: skip
COLOR_JITTER = 15  # per channel
BACKGROUND = (20, 70)  # range of gray levels
MAX_SCENES = 1_000_000  # 12 GB


@dataclass(frozen=True)
class SceneObject:
    """An object of a scene."""

    shape: str
    color: str
    side: int
    row: int  # of the grid
    column: int
    top: int  # in pixels
    left: int
    rgb: tuple[int, ...]


@dataclass(frozen=True)
class Scene:
    """Objects in the order of the caption, on a gray background."""

    objects: tuple[SceneObject, ...]
    background: int

    def caption(self) -> tuple[str, tuple[Named, ...]]:
        """Return the caption, and the words in it that name each object."""
        words: list[str] = []
        named: list[Named] = []
        for index, item in enumerate(self.objects):
            if index > 0:
                words += ["left", "of"] if self.objects[index - 1].row == item.row else ["above"]
            first = len(words) + 1  # after the article
            words += ["a", *["small"] * (item.side == SMALL), item.color, item.shape]
            box = (item.top, item.left, item.top + item.side, item.left + item.side)
            named.append(Named(box, tuple(range(first, len(words)))))
        return " ".join(words), tuple(named)

    def draw(self, image: UInt8[ndarray, "3 height width"]) -> None:
        """Render the scene into an image."""
        image[:] = self.background
        for item in self.objects:
            box = image[:, item.top : item.top + item.side, item.left : item.left + item.side]
            rgb = np.array(item.rgb, dtype=np.uint8)[:, None, None]
            np.copyto(box, rgb, where=SHAPE_MASKS[item.shape, item.side])


def generate(size: int, *, split: Split, seed: int = 0) -> Captions:
    """Generate `size` scenes of one split; a smaller size gives a prefix of the same list."""
    if not 0 <= size <= MAX_SCENES:
        raise InputError(f"shapes: size must be between 0 and {MAX_SCENES:,}, not {size:,}")
    images = np.empty((size, 3, SIDE, SIDE), dtype=np.uint8)
    texts, objects = [], []
    for image, scene in zip(images, islice(_stream(split, seed), size), strict=True):
        scene.draw(image)
        text, named = scene.caption()
        texts.append((text,))
        objects.append(named)
    return Captions(images, tuple(texts), tuple(objects))


def _stream(split: Split, seed: int) -> Iterator[Scene]:
    rng = random.Random(f"qkv shapes {split} {seed}")
    while True:
        scene = _scene(rng)
        if split_of(scene.caption()[0]) == split:
            yield scene


def _scene(rng: random.Random) -> Scene:
    (count,) = rng.choices(COUNTS, COUNT_WEIGHTS)
    cells = sorted(rng.sample(range(GRID * GRID), count))  # in the order of the caption
    return Scene(tuple(_scene_object(rng, *divmod(cell, GRID)) for cell in cells), rng.randint(*BACKGROUND))


def _scene_object(rng: random.Random, row: int, column: int) -> SceneObject:
    side, color = rng.choice((LARGE, SMALL)), rng.choice([*COLORS])
    top, left = (
        (2 * cell + 1) * SIDE // (2 * GRID) - side // 2 + rng.randint(-MAX_OFFSET, MAX_OFFSET) for cell in (row, column)
    )
    rgb = tuple(min(255, max(0, value + rng.randint(-COLOR_JITTER, COLOR_JITTER))) for value in COLORS[color])
    return SceneObject(rng.choice(SHAPES), color, side, row, column, top, left, rgb)


def _shape_masks(side: int) -> dict[str, Bool[ndarray, "side side"]]:
    """Return the mask of each shape in its box."""
    centers = (np.arange(side) + 0.5) * 2 / side - 1  # of the pixels, in [-1, 1]
    y, x = centers[:, None], centers[None, :]
    return {
        "circle": y**2 + x**2 <= 1,
        "square": np.ones((side, side), dtype=bool),
        "triangle": 2 * abs(x) <= y + 1,
        "diamond": abs(y) + abs(x) <= 1,
        "cross": (abs(y) < 1 / 4) | (abs(x) < 1 / 4),
    }


SHAPE_MASKS = {(shape, side): mask for side in (LARGE, SMALL) for shape, mask in _shape_masks(side).items()}
SHAPES = [*_shape_masks(SMALL)]


@register("dataset", "shapes")
class Shapes(TextDatasetConfig):
    """Synthetic scenes of colored shapes with captions."""

    summary = "scenes of colored shapes with captions and object boxes, 64 x 64 pixels (synthetic)"
    license = GENERATED
    dataset_class = CaptionDataset
    columns = (EXACT, Column("pointing", "attention in the named object, %", 100))

    def read(self) -> CaptionDataset:
        sizes: dict[Split, int] = {"train": self.size or TRAIN_SIZE, "valid": HELD_OUT, "test": HELD_OUT}
        return CaptionDataset({split: generate(size, split=split) for split, size in sizes.items()})
