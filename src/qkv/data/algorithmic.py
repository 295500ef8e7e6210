"""Sequences of bits with an answer that a short program would know (Graves, Wayne and Danihelka 2014, section 4).

    copy         <begin> x_1 ... x_n <go>                              ->   x_1 ... x_n
    repeat       <begin> x_1 ... x_n <go, r times>                     ->   r times x_1 ... x_n, and a mark for the end
    recall       <item> x_1 x_2 x_3 <item> ... <ask> an item <ask>     ->   the item that came after that one

Each x is a vector of random bits; beside them the input has two channels for marks. While the answer is asked for the
input is silent, so that everything has to be remembered. Sequences are made when they are needed, from a hash of who
asks: the same on every machine, and as many as one likes.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from qkv.errors import InputError

MARKS = 2  # channels behind the bits
LARGEST = 500  # of the numbers in a size
Size = tuple[int, ...]  # how long a sequence is, in the words of its puzzle


@dataclass(frozen=True)
class Sequences:
    """Sequences of one size."""

    inputs: Float32[ndarray, "count steps channels"]
    targets: Float32[ndarray, "count steps outputs"]  # zeros where nothing is asked
    asked: Float32[ndarray, "steps"]  # 1 at the steps of the answer, 0 before


@dataclass(frozen=True)
class Puzzle(ABC):
    """A kind of sequences, the sizes to learn it at, and larger ones, at which to see what was learned."""

    bits: int  # of each vector

    trained: ClassVar[tuple[Size, ...]]
    judged: ClassVar[tuple[Size, ...]]

    @property
    def channels(self) -> int:
        """How many numbers go in at each step."""
        return self.bits + MARKS

    @property
    def outputs(self) -> int:
        """How many bits come out at each step."""
        return self.bits

    def size_of(self, word: str) -> Size:
        """The size that a word names, as `named` gives it."""
        least = self.trained[0]
        numbers = word.split("x")
        known = all(number.isascii() and number.isdigit() and len(number) <= len(str(LARGEST)) for number in numbers)
        size = tuple(map(int, numbers)) if known else ()
        if len(size) != len(least) or not all(low <= one <= LARGEST for low, one in zip(least, size, strict=True)):
            raise InputError(
                f"{word!r} is no size of this puzzle: give one such as {named(self.trained[-1])}, from {named(least)} "
                f"up to {named((LARGEST,) * len(least))}"
            )
        return size

    @abstractmethod
    def make(self, key: str, count: int, size: Size) -> Sequences:
        """So many sequences of a size; the key decides all that is random in them."""


@final
@dataclass(frozen=True)
class Copy(Puzzle):
    """Say again what was said. A size is the number of vectors."""

    bits: int = 8

    trained: ClassVar = tuple((length,) for length in range(1, 21))
    judged: ClassVar = ((20,), (40,), (80,), (120,))

    def make(self, key: str, count: int, size: Size) -> Sequences:
        (length,) = size
        vectors = random_bits(key, count, length, self.bits)
        return _after_marks(vectors, vectors, go=1.0)


@final
@dataclass(frozen=True)
class RepeatCopy(Puzzle):
    """Say it again several times, and that this was all. A size is the number of vectors, and how often to say them.

    How often comes as one number, made to have mean 0 and variance 1 over the sizes that are trained on.
    """

    bits: int = 8

    most: ClassVar = 10
    trained: ClassVar = tuple((length, times) for length in range(1, 11) for times in range(1, 11))
    judged: ClassVar = ((10, 10), (20, 10), (10, 20), (20, 20))

    @property
    def outputs(self) -> int:
        return self.bits + 1  # the mark for the end

    def make(self, key: str, count: int, size: Size) -> Sequences:
        length, times = size
        vectors = random_bits(key, count, length, self.bits)
        answer = np.zeros((count, length * times + 1, self.outputs), dtype=np.float32)
        answer[:, :-1, : self.bits] = np.tile(vectors, (1, times, 1))
        answer[:, -1, self.bits] = 1.0
        mean, variance = (self.most + 1) / 2, (self.most**2 - 1) / 12
        return _after_marks(vectors, answer, go=(times - mean) / variance**0.5)


@final
@dataclass(frozen=True)
class Recall(Puzzle):
    """Of a list of items, name the one that came after a given one. A size is the number of items."""

    bits: int = 6

    vectors: ClassVar = 3  # in each item
    trained: ClassVar = tuple((items,) for items in range(2, 7))
    judged: ClassVar = ((6,), (10,), (15,), (20,))

    def make(self, key: str, count: int, size: Size) -> Sequences:
        (items,), length = size, self.vectors
        given = random_bits(key, count, items, length, self.bits)
        asked_for = random_numbers(f"{key} which", count, below=items - 1)  # any but the last has one after it
        rows = np.arange(count)
        steps = (items + 1) * (1 + length) + 1 + length
        inputs = np.zeros((count, steps, self.channels), dtype=np.float32)
        targets = np.zeros((count, steps, self.outputs), dtype=np.float32)
        listed = inputs[:, : items * (1 + length)].reshape(count, items, 1 + length, self.channels)
        listed[:, :, 0, self.bits] = 1.0
        listed[:, :, 1:, : self.bits] = given
        begin = items * (1 + length)
        inputs[:, [begin, begin + 1 + length], self.bits + 1] = 1.0
        inputs[:, begin + 1 : begin + 1 + length, : self.bits] = given[rows, asked_for]
        targets[:, -length:] = given[rows, asked_for + 1]
        return Sequences(inputs, targets, _last(steps, length))


@final
@dataclass(frozen=True)
class Stream:
    """The sequences of one split."""

    puzzle: Puzzle
    split: str
    count: int  # to train on: how many are an epoch; else how many there are of each size

    def take(self, seed: int, first: int, count: int) -> Sequences:
        """So many sequences of one of the sizes that are trained on, from number `first` of a stream without end."""
        key = f"{self.split} {seed} {first}"
        (which,) = random_numbers(f"{key} size", 1, below=len(self.puzzle.trained))
        return self.puzzle.make(key, count, self.puzzle.trained[which])

    def of_size(self, size: Size) -> Sequences:
        """All sequences of a size."""
        return self.puzzle.make(f"{self.split} {named(size)}", self.count, size)

    @property
    def fingerprint(self) -> str:
        """A hash of what it is and of some of what it gives: another one where the making has changed."""
        digest = hashlib.sha256(repr(self).encode())
        for size in (self.puzzle.trained[-1], self.puzzle.judged[-1]):
            some = self.puzzle.make("fingerprint", 4, size)
            digest.update(some.inputs.tobytes() + some.targets.tobytes() + some.asked.tobytes())
        return digest.hexdigest()


def named(size: Size) -> str:
    """A size in a word: 120, or 20x10."""
    return "x".join(map(str, size))


def random_bits(key: str, *shape: int) -> Float32[ndarray, "..."]:
    """Fair coins, as zeros and ones."""
    count = int(np.prod(shape))
    drawn = np.frombuffer(hashlib.shake_256(f"bits {key}".encode()).digest((count + 7) // 8), dtype=np.uint8)
    return np.unpackbits(drawn)[:count].reshape(shape).astype(np.float32)


def random_numbers(key: str, count: int, *, below: int) -> Int64[ndarray, "count"]:
    """Whole numbers from 0 on, all as likely as the others but for one part in 2^32."""
    drawn = np.frombuffer(hashlib.shake_256(f"numbers {key}".encode()).digest(8 * count), dtype="<u8")
    return (drawn % np.uint64(below)).astype(np.int64)


def _after_marks(
    vectors: Float32[ndarray, "count length bits"], answer: Float32[ndarray, "count asked outputs"], *, go: float
) -> Sequences:
    """<begin> vectors <go>, and then the answer is asked for."""
    count, length, bits = vectors.shape
    asked, outputs = answer.shape[1:]
    steps = length + 2 + asked
    inputs = np.zeros((count, steps, bits + MARKS), dtype=np.float32)
    inputs[:, 0, bits] = 1.0
    inputs[:, 1 : length + 1, :bits] = vectors
    inputs[:, length + 1, bits + 1] = go
    targets = np.zeros((count, steps, outputs), dtype=np.float32)
    targets[:, -asked:] = answer
    return Sequences(inputs, targets, _last(steps, asked))


def _last(steps: int, asked: int) -> Float32[ndarray, "steps"]:
    return (np.arange(steps) >= steps - asked).astype(np.float32)
