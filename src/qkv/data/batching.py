"""Batches: examples of like length together, as many as a budget of tokens allows.

Widths come in steps, and a batch can be filled up to its step with padding and empty rows: then an epoch has batches
of a few shapes only, which is what graphs and compiled kernels want.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from qkv.data.tensor_batch import TensorBatch
from qkv.data.vocabulary import BEGIN, END, PAD
from qkv.types import Int, Tensor

POOL = 50  # how many batches' worth of shuffled examples are sorted by length together
IGNORE = -1  # in place of a target that does not count
STEP = 4  # widths of batches are counted in multiples of this


@dataclass(frozen=True)
class EncodedPair:
    """The token numbers of a pair, without begin or end."""

    source: Sequence[int]
    target: Sequence[int]

    @property
    def length(self) -> int:
        """What the pair costs in a batch: its longer side, the end token counted."""
        return max(len(self.source), len(self.target) + 1)


@dataclass(frozen=True)
class Batch(TensorBatch):
    """Padded tensors; `target_in` begins with <s> and `target_out` ends with </s>, and is filled up with IGNORE."""

    source: Int[Tensor, "batch source"]
    source_lengths: Int[Tensor, "batch"]
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    tokens: int  # how many target tokens count


def collate(
    pairs: Sequence[EncodedPair], rows: int = 0, width: int = 0, *, begin: int = BEGIN, end: int = END
) -> Batch:
    """Pad the pairs into one batch, of so many rows and places at least.

    A row without a pair has a source of one padding token, and no target that counts.
    """
    missing = max(0, rows - len(pairs))
    nothing: list[Sequence[int]] = [()] * missing
    return Batch(
        source=_padded([*(pair.source for pair in pairs), *nothing], width),
        source_lengths=torch.tensor([*(len(pair.source) for pair in pairs), *[1] * missing]),
        target_in=_padded([*([begin, *pair.target] for pair in pairs), *nothing], width),
        target_out=_padded([*([*pair.target, end] for pair in pairs), *nothing], width, IGNORE),
        tokens=sum(len(pair.target) + 1 for pair in pairs),
    )


def collate_filled(
    pairs: Sequence[EncodedPair], budget: int, longest: int, *, begin: int = BEGIN, end: int = END
) -> Batch:
    """Pad the pairs into the one shape that all batches of their width have, within the longest that is allowed."""
    width = min(stepped(max(pair.length for pair in pairs)), longest)
    return collate(pairs, budget // width, width, begin=begin, end=end)


def stepped(length: int, step: int = STEP) -> int:
    """A length, rounded up to the next width that batches have."""
    return -(-length // step) * step


def _padded(rows: Sequence[Sequence[int]], width: int, filling: int = PAD) -> Int[Tensor, "rows width"]:
    """The rows as one tensor, the shorter ones filled up; lists are padded ten times as fast as small tensors."""
    width = max(width, *map(len, rows))
    return torch.tensor([[*row, *[filling] * (width - len(row))] for row in rows], dtype=torch.long)


def by_length(
    lengths: Sequence[int], budget: int, order: Sequence[int] | None = None, step: int = 1
) -> list[list[int]]:
    """Cut examples into batches of at most `budget` tokens, padding up to the next step counted, sorted by length."""
    order = range(len(lengths)) if order is None else order
    batches: list[list[int]] = []
    widest = 0
    for index in sorted(order, key=lengths.__getitem__):
        widest = max(widest, stepped(lengths[index], step))
        if not batches or (len(batches[-1]) + 1) * widest > budget:
            batches.append([])
            widest = stepped(lengths[index], step)
        batches[-1].append(index)
    return batches


def shuffled(lengths: Sequence[int], budget: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of one epoch: all examples, in an order that (seed, epoch) alone decides."""
    # Hashed, for the generator looks at no more than 32 bits of what it is given.
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
    order = torch.randperm(len(lengths), generator=generator).tolist()
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    pool = max(1, int(POOL * budget / mean))
    pools = (order[begin : begin + pool] for begin in range(0, len(order), pool))
    batches = [batch for chunk in pools for batch in by_length(lengths, budget, chunk, STEP)]
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]
