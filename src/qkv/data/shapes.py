"""Scenes of coloured shapes, a caption of each, and the place of every object that it names; generated.

A scene has one to three objects in the places of a grid of three by three, each a little moved. They are told row by
row from the top, and what is not called small is large:

    a red circle
    a red circle left of a small blue square                        side by side
    a red circle above a small blue square left of a white cross    the next one stands in a row further down

The split of a scene hangs on its caption alone: no seed brings a caption of the test split into training.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, UInt8
from numpy import ndarray

from qkv.data.captions import Captions, Named
from qkv.data.files import digest
from qkv.errors import InputError

Split = Literal["train", "valid", "test"]
SIDE = 64  # pixels of a scene
PLACES = 3  # a side
LARGE, SMALL = 17, 11  # pixels of an object a side
MOVED = 2  # pixels that an object may stand off the middle of its place, in each direction
COUNTS, ODDS = (1, 2, 3), (1, 4, 5)  # how many objects a scene has, and how often
COLOURS = {
    "red": (220, 50, 40), "green": (50, 180, 60), "blue": (50, 90, 230), "yellow": (235, 215, 50),
    "purple": (160, 60, 200), "white": (235, 235, 235),
}  # fmt: skip
OFF = 15  # how far each of the three numbers of a colour may be off
GROUND = (20, 70)  # from the darkest to the lightest grey behind the objects
LARGEST = 1_000_000  # scenes, which take 12 GB


@dataclass(frozen=True)
class Thing:
    """An object to be drawn."""

    shape: str
    colour: str
    side: int
    row: int  # of the grid of places
    column: int
    top: int  # in pixels
    left: int
    paint: tuple[int, ...]

    @property
    def words(self) -> list[str]:
        return [*["small"] * (self.side == SMALL), self.colour, self.shape]


@dataclass(frozen=True)
class Scene:
    """Objects in the order in which they are told, on a ground of some grey."""

    things: tuple[Thing, ...]
    ground: int

    def told(self) -> tuple[str, tuple[Named, ...]]:
        """The caption, and which of its words name which object."""
        words: list[str] = []
        named: list[Named] = []
        for number, thing in enumerate(self.things):
            if number > 0:
                words += ["left", "of"] if self.things[number - 1].row == thing.row else ["above"]
            first = len(words) + 1  # the article names nothing
            words += ["a", *thing.words]
            box = (thing.top, thing.left, thing.top + thing.side, thing.left + thing.side)
            named.append(Named(box, tuple(range(first, len(words)))))
        return " ".join(words), tuple(named)

    def draw(self, picture: UInt8[ndarray, "3 height width"]) -> None:
        """Paint over a picture."""
        picture[:] = self.ground
        for thing in self.things:
            part = picture[:, thing.top : thing.top + thing.side, thing.left : thing.left + thing.side]
            paint = np.array(thing.paint, dtype=np.uint8)[:, None, None]
            np.copyto(part, paint, where=OUTLINES[thing.shape, thing.side])


def generate(size: int, *, split: Split, seed: int = 0) -> Captions:
    """Draw `size` scenes of one split; a smaller size gives the beginning of the same list."""
    if split not in get_args(Split):
        raise InputError(f"shapes: unknown split {split!r}; there are {', '.join(get_args(Split))}")
    if not 0 <= size <= LARGEST:
        raise InputError(f"shapes: between 0 and {LARGEST:,} scenes can be held in memory, not {size:,}")
    pictures = np.empty((size, 3, SIDE, SIDE), dtype=np.uint8)
    texts, objects = [], []
    for picture, scene in zip(pictures, islice(_stream(split, seed), size), strict=True):
        scene.draw(picture)
        text, named = scene.told()
        texts.append((text,))
        objects.append(named)
    return Captions(pictures, tuple(texts), tuple(objects))


def split_of(caption: str) -> Split:
    """The one split that a caption belongs to: of ten captions about eight train, one validates, one tests."""
    number = int.from_bytes(digest(caption)[:4], "big") % 10
    return "test" if number == 0 else "valid" if number == 1 else "train"


def _stream(split: Split, seed: int) -> Iterator[Scene]:
    rng = random.Random(f"qkv shapes {split} {seed}")
    while True:
        scene = _scene(rng)
        if split_of(scene.told()[0]) == split:
            yield scene


def _scene(rng: random.Random) -> Scene:
    (count,) = rng.choices(COUNTS, ODDS)
    places = sorted(rng.sample(range(PLACES * PLACES), count))  # which is the order in which they are told
    return Scene(tuple(_thing(rng, *divmod(place, PLACES)) for place in places), rng.randint(*GROUND))


def _thing(rng: random.Random, row: int, column: int) -> Thing:
    side, colour = rng.choice((LARGE, SMALL)), rng.choice([*COLOURS])
    top, left = (
        (2 * place + 1) * SIDE // (2 * PLACES) - side // 2 + rng.randint(-MOVED, MOVED) for place in (row, column)
    )
    paint = tuple(min(255, max(0, part + rng.randint(-OFF, OFF))) for part in COLOURS[colour])
    return Thing(rng.choice(SHAPES), colour, side, row, column, top, left, paint)


def _outlines(side: int) -> dict[str, Bool[ndarray, "side side"]]:
    """Which pixels of its box each shape fills."""
    middle = (np.arange(side) + 0.5) * 2 / side - 1  # of each pixel, from -1 to 1
    down, right = middle[:, None], middle[None, :]
    return {
        "circle": down**2 + right**2 <= 1,
        "square": np.ones((side, side), dtype=bool),
        "triangle": 2 * abs(right) <= down + 1,
        "diamond": abs(down) + abs(right) <= 1,
        "cross": (abs(down) < 1 / 4) | (abs(right) < 1 / 4),
    }


OUTLINES = {(shape, side): mask for side in (LARGE, SMALL) for shape, mask in _outlines(side).items()}
SHAPES = [*_outlines(SMALL)]
