"""Few-shot episodes: N unseen classes with K labeled support examples each, and a query to classify.

An episode depends only on the seed and its index, not on the batch it is in: its classes, their labels, the support
examples, their order, and the class of the query. It contains indices of examples, not their pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from qkv.datasets.counter_rng import CounterRNG
from qkv.errors import InputError


@dataclass(frozen=True)
class FewShotDataset:
    """Images of many classes, equally many of each, and the N-way K-shot episodes sampled from them."""

    pixels: UInt8[ndarray, "classes examples channels height width"]
    names: tuple[str, ...]  # of the classes
    ways: int  # N
    shots: int  # K

    def __post_init__(self) -> None:
        classes, per_class = self.pixels.shape[:2]
        if self.ways > classes:
            raise InputError(f"{classes} classes are too few for {self.ways}-way episodes: lower data.ways")
        if self.shots + 1 > per_class:
            raise InputError(
                f"{per_class} examples per class are too few for {self.shots}-shot episodes: lower data.shots"
            )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, part: slice) -> "FewShotDataset":
        return replace(self, pixels=self.pixels[part], names=self.names[part])

    def sample(self, seed: int, indices: Sequence[int]) -> "Episodes":
        """Sample the episodes with these indices."""
        ways, shots, per_class = self.ways, self.shots, self.pixels.shape[1]
        rng = CounterRNG(seed, indices)
        classes = rng.shuffle(rng.choice(len(self), ways))  # b n: the class of each label
        chosen = rng.permutations(ways, per_class)[..., : shots + 1]  # b n k+1: examples of it, the last is the query
        images = classes[..., None] * per_class + chosen
        labels = np.broadcast_to(np.arange(ways)[:, None], (ways, shots)).reshape(-1)
        order = rng.permutations(1, ways * shots)[:, 0]  # b nk
        return Episodes(
            support=np.take_along_axis(images[..., :shots].reshape(len(indices), -1), order, axis=1),
            labels=labels[order],
            queries=images[..., shots],
            query_label=rng.integers(ways, 1)[:, 0],
        )


@dataclass(frozen=True)
class Episodes:
    """A batch of episodes; images are given by their index among all images, ordered by class."""

    support: Int64[ndarray, "batch support"]
    labels: Int64[ndarray, "batch support"]
    queries: Int64[ndarray, "batch ways"]  # one query image per class, in the order of the labels
    query_label: Int64[ndarray, "batch"]  # the label of the query, where only one is used
