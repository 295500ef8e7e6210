"""Length-bucketed batches of a number of tokens or examples.

Widths are rounded up to a multiple, and a batch can be padded with empty rows to a fixed shape per width, so that an
epoch has few distinct shapes for CUDA graphs and compiled kernels.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from qkv.datasets.tensor_batch import TensorBatch
from qkv.types import Int, Tensor

POOL = 50  # batches per pool of shuffled examples that is sorted by length
PAD_ID = 0  # padding is masked: any id of the vocabulary will do
IGNORE = -1  # target that does not contribute to the loss
WIDTH_MULTIPLE = 4  # batch widths are rounded up to a multiple of this


@dataclass(frozen=True)
class BatchSize:
    """Size of a batch: a number of tokens including padding, or a number of examples."""

    size: int
    by: Literal["tokens", "examples"] = "tokens"

    def rows(self, width: int) -> int:
        """Number of examples of `width` tokens that a batch can hold."""
        return self.size // width if self.by == "tokens" else self.size

    def fits(self, rows: int, width: int) -> bool:
        """Whether a batch can hold `rows` examples of `width` tokens."""
        return rows * width <= self.size if self.by == "tokens" else rows <= self.size


@dataclass(frozen=True)
class EncodedPair:
    """Token ids of a pair, without <s> and </s>."""

    source: Sequence[int]
    target: Sequence[int]

    @property
    def length(self) -> int:
        """Width of the pair in a batch: its longer side, including </s>."""
        return max(len(self.source), len(self.target) + 1)


@dataclass(frozen=True)
class PairBatch(TensorBatch):
    """Padded tensors; `target_in` starts with <s>, `target_out` ends with </s> and is padded with IGNORE."""

    source: Int[Tensor, "batch source"]
    source_lengths: Int[Tensor, "batch"]
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    tokens: int  # number of target tokens, without padding

    def count_tokens(self) -> int:
        return int((self.target_out != IGNORE).sum())


def collate(pairs: Sequence[EncodedPair], rows: int = 0, width: int = 0, *, begin: int, end: int) -> PairBatch:
    """Pad the pairs into a batch of at least `rows` rows and `width` columns.

    Extra rows have a source of one padding token and only ignored targets.
    """
    missing = max(0, rows - len(pairs))
    empty: list[Sequence[int]] = [()] * missing
    return PairBatch(
        source=_pad([*(pair.source for pair in pairs), *empty], width),
        source_lengths=torch.tensor([*(len(pair.source) for pair in pairs), *[1] * missing]),
        target_in=_pad([*([begin, *pair.target] for pair in pairs), *empty], width),
        target_out=_pad([*([*pair.target, end] for pair in pairs), *empty], width, IGNORE),
        tokens=sum(len(pair.target) + 1 for pair in pairs),
    )


def collate_to_shape(
    pairs: Sequence[EncodedPair], batch_size: BatchSize, longest: int, *, begin: int, end: int
) -> PairBatch:
    """Pad the pairs to the fixed shape of their width, which is at most `longest`."""
    width = min(round_up(max(pair.length for pair in pairs)), longest)
    return collate(pairs, batch_size.rows(width), width, begin=begin, end=end)


def round_up(length: int, multiple: int = WIDTH_MULTIPLE) -> int:
    """Round a length up to a multiple."""
    return -(-length // multiple) * multiple


def _pad(rows: Sequence[Sequence[int]], width: int, value: int = PAD_ID) -> Int[Tensor, "rows width"]:
    """Pad the rows into one tensor; padding lists is ten times faster than padding small tensors."""
    width = max(width, *map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=torch.long)


def batch_by_length(
    lengths: Sequence[int], batch_size: BatchSize, order: Sequence[int] | None = None, multiple: int = 1
) -> list[list[int]]:
    """Group examples, sorted by length, into batches."""
    order = range(len(lengths)) if order is None else order
    batches: list[list[int]] = []
    widest = 0
    for index in sorted(order, key=lengths.__getitem__):
        widest = max(widest, round_up(lengths[index], multiple))
        if not batches or not batch_size.fits(len(batches[-1]) + 1, widest):
            batches.append([])
            widest = round_up(lengths[index], multiple)
        batches[-1].append(index)
    return batches


def numbered_batches(examples: int, batch_size: int, epoch: int) -> list[list[int]]:
    """Return the next full batches of an endless sequence of examples, about `examples` in an epoch."""
    count = -(-examples // batch_size)
    first = epoch * count
    return [[*range(n * batch_size, (n + 1) * batch_size)] for n in range(first, first + count)]


def shuffled_batches(lengths: Sequence[int], batch_size: BatchSize, seed: int, epoch: int) -> list[list[int]]:
    """Return the batches of one epoch in an order determined by (seed, epoch)."""
    # Hashed, because the generator uses only 32 bits of its seed.
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
    order = torch.randperm(len(lengths), generator=generator).tolist()
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    pool = max(1, int(POOL * batch_size.size / (mean if batch_size.by == "tokens" else 1)))
    pools = (order[start : start + pool] for start in range(0, len(order), pool))
    batches = [batch for indices in pools for batch in batch_by_length(lengths, batch_size, indices, WIDTH_MULTIPLE)]
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]
