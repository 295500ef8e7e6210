"""Algorithmic tasks on sequences of bit vectors (Graves, Wayne and Danihelka 2014, section 4).

    copy         <begin> x_1 ... x_n <go>                              ->   x_1 ... x_n
    repeat       <begin> x_1 ... x_n <go, r times>                     ->   r times x_1 ... x_n, then an end marker
    recall       <item> x_1 x_2 x_3 <item> ... <ask> an item <ask>     ->   the item that followed it

Each x is a vector of random bits; two more input channels carry the markers. The input is zero during the answer, so
the model must remember the whole sequence. Sequences are generated on demand from a hash of their key, identically on
every machine.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from qkv.datasets.columns import wrong_bits
from qkv.datasets.dataset import GENERATED, DatasetConfig, SequenceDataset
from qkv.errors import InputError
from qkv.registry import register

TRAIN_SIZE, HELD_OUT = 64_000, {"valid": 25, "test": 200}  # sequences per epoch; valid and test: per size
MARKER_CHANNELS = 2  # after the bits
MAX_SIZE = 500  # of each number in a size
Size = tuple[int, ...]  # length parameters of a sequence, see the docstring of each puzzle


@dataclass(frozen=True)
class Sequences:
    """A batch of sequences of one size."""

    inputs: Float32[ndarray, "count steps channels"]
    targets: Float32[ndarray, "count steps outputs"]  # zeros before the answer
    answer_mask: Float32[ndarray, "steps"]  # 1 at the steps of the answer, 0 before


@dataclass(frozen=True)
class Puzzle(ABC):
    """An algorithmic task, with the sizes to train on and larger ones to evaluate generalization."""

    bits: int  # per vector

    train_sizes: ClassVar[tuple[Size, ...]]
    eval_sizes: ClassVar[tuple[Size, ...]]

    @property
    def channels(self) -> int:
        """Input size of each step."""
        return self.bits + MARKER_CHANNELS

    @property
    def outputs(self) -> int:
        """Output size of each step."""
        return self.bits

    def parse_size(self, text: str) -> Size:
        """Parse a size as formatted by `format_size`."""
        smallest = self.train_sizes[0]
        size = tuple(map(int, text.split("x"))) if re.fullmatch(r"\d{1,3}(x\d{1,3})?", text, re.ASCII) else ()
        if len(size) != len(smallest) or not all(
            low <= value <= MAX_SIZE for low, value in zip(smallest, size, strict=True)
        ):
            raise InputError(
                f"{text!r} is not a valid size: use one such as {format_size(self.train_sizes[-1])}, from "
                f"{format_size(smallest)} to {format_size((MAX_SIZE,) * len(smallest))}"
            )
        return size

    def sizes_up_to(self, fraction: float) -> list[Size]:
        """Return the training sizes whose numbers are in the first `fraction` of their range, from the smallest on."""
        ranges = [(min(values), max(values)) for values in zip(*self.train_sizes, strict=True)]
        limits = [least + fraction * (most - least) for least, most in ranges]
        return [
            size for size in self.train_sizes if all(value <= most for value, most in zip(size, limits, strict=True))
        ]

    @abstractmethod
    def generate(self, key: str, count: int, size: Size) -> Sequences:
        """Generate `count` sequences of a size, with all randomness derived from the key."""


@final
@dataclass(frozen=True)
class Copy(Puzzle):
    """Repeat the input. The size is the number of vectors."""

    bits: int = 8

    train_sizes: ClassVar = tuple((length,) for length in range(1, 21))
    eval_sizes: ClassVar = ((20,), (40,), (80,), (120,))

    def generate(self, key: str, count: int, size: Size) -> Sequences:
        (length,) = size
        vectors = random_bits(key, count, length, self.bits)
        return _with_markers(vectors, vectors, go=1.0)


@final
@dataclass(frozen=True)
class RepeatCopy(Puzzle):
    """Repeat the input several times, then emit an end marker. The size is (number of vectors, number of repeats).

    The number of repeats is one input value, normalized to mean 0 and variance 1 over the training sizes.
    """

    bits: int = 8

    max_repeats: ClassVar = 10
    train_sizes: ClassVar = tuple((length, times) for length in range(1, 11) for times in range(1, 11))
    eval_sizes: ClassVar = ((10, 10), (20, 10), (10, 20), (20, 20))

    @property
    def outputs(self) -> int:
        return self.bits + 1  # the end marker

    def generate(self, key: str, count: int, size: Size) -> Sequences:
        length, times = size
        vectors = random_bits(key, count, length, self.bits)
        answer = np.zeros((count, length * times + 1, self.outputs), dtype=np.float32)
        answer[:, :-1, : self.bits] = np.tile(vectors, (1, times, 1))
        answer[:, -1, self.bits] = 1.0
        mean, variance = (self.max_repeats + 1) / 2, (self.max_repeats**2 - 1) / 12
        return _with_markers(vectors, answer, go=(times - mean) / variance**0.5)


@final
@dataclass(frozen=True)
class Recall(Puzzle):
    """Return the item that followed a query item in a list of items. The size is the number of items."""

    bits: int = 6

    vectors: ClassVar = 3  # per item
    train_sizes: ClassVar = tuple((items,) for items in range(2, 7))
    eval_sizes: ClassVar = ((6,), (10,), (15,), (20,))

    def generate(self, key: str, count: int, size: Size) -> Sequences:
        (items,), length = size, self.vectors
        item_bits = random_bits(key, count, items, length, self.bits)
        query = random_integers(f"{key} which", count, high=items - 1)  # the last item has no successor
        rows = np.arange(count)
        steps = (items + 1) * (1 + length) + 1 + length
        inputs = np.zeros((count, steps, self.channels), dtype=np.float32)
        targets = np.zeros((count, steps, self.outputs), dtype=np.float32)
        item_list = inputs[:, : items * (1 + length)].reshape(count, items, 1 + length, self.channels)
        item_list[:, :, 0, self.bits] = 1.0
        item_list[:, :, 1:, : self.bits] = item_bits
        start = items * (1 + length)
        inputs[:, [start, start + 1 + length], self.bits + 1] = 1.0
        inputs[:, start + 1 : start + 1 + length, : self.bits] = item_bits[rows, query]
        targets[:, -length:] = item_bits[rows, query + 1]
        return Sequences(inputs, targets, _answer_mask(steps, length))


@final
@dataclass(frozen=True)
class Stream:
    """The sequences of one split."""

    puzzle: Puzzle
    split: str
    count: int  # train: sequences per epoch; valid, test: sequences per size

    def sample(self, seed: int, first: int, count: int, *, fraction: float = 1.0) -> Sequences:
        """Generate `count` sequences of a random training size, starting at index `first` of an unbounded stream.

        A `fraction` below 1 leaves out large sizes (`Puzzle.sizes_up_to`).
        """
        key, sizes = f"{self.split} {seed} {first}", self.puzzle.sizes_up_to(fraction)
        (index,) = random_integers(f"{key} size", 1, high=len(sizes))
        return self.puzzle.generate(key, count, sizes[index])

    def of_size(self, size: Size) -> Sequences:
        """Generate all sequences of a size."""
        return self.puzzle.generate(f"{self.split} {format_size(size)}", self.count, size)

    @property
    def fingerprint(self) -> str:
        """Hash of the parameters and of some generated sequences, which changes with the generator."""
        digest = hashlib.sha256(repr(self).encode())
        for size in (self.puzzle.train_sizes[-1], self.puzzle.eval_sizes[-1]):
            sequences = self.puzzle.generate("fingerprint", 4, size)
            digest.update(sequences.inputs.tobytes() + sequences.targets.tobytes() + sequences.answer_mask.tobytes())
        return digest.hexdigest()


def format_size(size: Size) -> str:
    """Format a size: 120, or 20x10."""
    return "x".join(map(str, size))


def random_bits(key: str, *shape: int) -> Float32[ndarray, "..."]:
    """Sample independent fair bits, as 0.0 and 1.0."""
    count = int(np.prod(shape))
    packed = np.frombuffer(hashlib.shake_256(f"bits {key}".encode()).digest((count + 7) // 8), dtype=np.uint8)
    return np.unpackbits(packed)[:count].reshape(shape).astype(np.float32)


def random_integers(key: str, count: int, *, high: int) -> Int64[ndarray, "count"]:
    """Sample integers in [0, high), uniform up to a relative error of 2^-32."""
    values = np.frombuffer(hashlib.shake_256(f"numbers {key}".encode()).digest(8 * count), dtype="<u8")
    return (values % np.uint64(high)).astype(np.int64)


def _with_markers(
    vectors: Float32[ndarray, "count length bits"], answer: Float32[ndarray, "count answer outputs"], *, go: float
) -> Sequences:
    """Build inputs <begin> vectors <go> 0 ... 0 and the targets, with the answer in the last steps."""
    count, length, bits = vectors.shape
    answer_length, outputs = answer.shape[1:]
    steps = length + 2 + answer_length
    inputs = np.zeros((count, steps, bits + MARKER_CHANNELS), dtype=np.float32)
    inputs[:, 0, bits] = 1.0
    inputs[:, 1 : length + 1, :bits] = vectors
    inputs[:, length + 1, bits + 1] = go
    targets = np.zeros((count, steps, outputs), dtype=np.float32)
    targets[:, -answer_length:] = answer
    return Sequences(inputs, targets, _answer_mask(steps, answer_length))


def _answer_mask(steps: int, answer_length: int) -> Float32[ndarray, "steps"]:
    return (np.arange(steps) >= steps - answer_length).astype(np.float32)


class SequenceConfig(DatasetConfig):
    """Base class of the algorithmic datasets."""

    dataset_class = SequenceDataset
    license = GENERATED
    puzzle: ClassVar[Puzzle]

    def read(self) -> SequenceDataset:
        counts = {"train": self.size or TRAIN_SIZE, **HELD_OUT}
        return SequenceDataset({split: Stream(self.puzzle, split, count) for split, count in counts.items()})


@register("dataset", "copy")
class CopyConfig(SequenceConfig):
    """Copy a sequence of bit vectors."""

    summary = "copy task: 1 to 20 bit vectors, tested on up to 120 (synthetic)"
    columns = wrong_bits("20", "40", "80", "120")
    puzzle = Copy()


@register("dataset", "repeat_copy")
class RepeatCopyConfig(SequenceConfig):
    """Copy a sequence of bit vectors several times."""

    summary = "repeat copy task on bit vectors (synthetic)"
    columns = wrong_bits("10x10", "20x10", "10x20", "20x20")
    puzzle = RepeatCopy()


@register("dataset", "recall")
class RecallConfig(SequenceConfig):
    """Recall the item that follows a query item."""

    summary = "associative recall of items of bit vectors (synthetic)"
    columns = wrong_bits("6", "10", "15", "20")
    puzzle = Recall()
