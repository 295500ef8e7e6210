"""Episodes of few-shot learning: N classes never seen before, K examples of each with its label, and one to be told.

An episode is drawn by its seed and its number alone, wherever and in whatever batch it is drawn: its classes, which of
them bears which label, which examples stand for a class, their order, and which class is asked for. The examples stay
where they are; an episode is their numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from qkv.data.chance import Chance
from qkv.errors import InputError


@dataclass(frozen=True)
class Examples:
    """Pictures of many classes, as many of each, and the episodes that are made of them."""

    pixels: UInt8[ndarray, "classes examples channels height width"]
    names: tuple[str, ...]  # of the classes
    ways: int  # N
    shots: int  # K

    def __post_init__(self) -> None:
        classes, each = self.pixels.shape[:2]
        if self.ways > classes:
            raise InputError(f"an episode of {self.ways} classes cannot be drawn from {classes}: lower data.ways")
        if self.shots + 1 > each:
            raise InputError(
                f"{self.shots} example(s) and one to be told are {self.shots + 1}, but a class has {each}: lower "
                "data.shots"
            )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, part: slice) -> "Examples":
        return replace(self, pixels=self.pixels[part], names=self.names[part])

    def draw(self, seed: int, numbers: Sequence[int]) -> "Episodes":
        """The episodes of these numbers."""
        ways, shots, each = self.ways, self.shots, self.pixels.shape[1]
        chance = Chance(seed, numbers)
        classes = chance.ordered(chance.choose(len(self), ways))  # b n: the class that bears each label
        taken = chance.order(ways, each)[..., : shots + 1]  # b n k+1: its examples, the last of which is asked for
        pictures = classes[..., None] * each + taken
        labels = np.broadcast_to(np.arange(ways)[:, None], (ways, shots)).reshape(-1)
        order = chance.order(1, ways * shots)[:, 0]  # b nk
        return Episodes(
            shown=np.take_along_axis(pictures[..., :shots].reshape(len(numbers), -1), order, axis=1),
            labels=labels[order],
            queries=pictures[..., shots],
            asked=chance.below(ways, 1)[:, 0],
        )


@dataclass(frozen=True)
class Episodes:
    """Some episodes; a picture is called by its number among all pictures, class by class."""

    shown: Int64[ndarray, "batch shown"]
    labels: Int64[ndarray, "batch shown"]
    queries: Int64[ndarray, "batch ways"]  # one more picture of each class, in the order of the labels
    asked: Int64[ndarray, "batch"]  # the label of the query that is put, where only one is
