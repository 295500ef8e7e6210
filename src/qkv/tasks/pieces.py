"""Texts as a text encoder reads them: between a first and a last token, in batches of like length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from qkv.data.batching import by_length, shuffled
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary
from qkv.errors import InputError
from qkv.types import Int, Tensor

IGNORE = -1  # the target of a token of which nothing is to be said


@dataclass(frozen=True)
class Splitter:
    """Cuts texts into tokens, by a vocabulary that was learned here or by a released tokenizer."""

    tokenizer: Vocabulary | PretrainedTokenizer

    @cached_property
    def edges(self) -> tuple[int, int]:
        """The tokens before and after every text."""
        if isinstance(self.tokenizer, Vocabulary):
            return BEGIN, END
        begin, end = self.tokenizer.roles.begin, self.tokenizer.roles.end
        if begin is None or end is None:
            raise InputError("the tokenizer has no tokens for the beginning and the end of a text ([CLS] and [SEP])")
        return begin, end

    @cached_property
    def pad(self) -> int:
        return PAD if isinstance(self.tokenizer, Vocabulary) else self.tokenizer.roles.pad or 0

    @cached_property
    def unknown(self) -> int:
        return UNKNOWN if isinstance(self.tokenizer, Vocabulary) else self.tokenizer.roles.unknown or 0

    def split(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, at least one: of a text in which nothing is left, that of the unknown."""
        if isinstance(self.tokenizer, Vocabulary):
            found = self.tokenizer.encode_ids(texts)
        else:
            found = [encoded.ids for encoded in self.tokenizer.encode_batch(texts, specials=False)]
        return [ids or [self.unknown] for ids in found]

    @staticmethod
    def room(longest: int) -> int:
        """How many tokens of a text a model reads that can look at `longest`."""
        if longest < 3:
            raise InputError(f"model.max_length = {longest} has no room for a token between the edges of a text")
        return longest - 2

    def between(self, ids: Sequence[int]) -> list[int]:
        begin, end = self.edges
        return [begin, *ids, end]


@dataclass(frozen=True)
class Piece:
    """What is read in one row: its tokens, edges and all, and for each of them what is to be said of it."""

    ids: list[int]
    targets: list[int]  # as many as there are tokens, or one for the whole text


@dataclass(frozen=True)
class TextBatch:
    """Some texts of like length, filled up on the right."""

    tokens_read: Int[Tensor, "batch length"]
    lengths: Int[Tensor, "batch"]
    targets: Int[Tensor, "batch *targets"]
    tokens: int  # of which something is to be said

    def to(self, device: torch.device) -> "TextBatch":
        return TextBatch(
            self.tokens_read.to(device, non_blocking=True),
            self.lengths.to(device, non_blocking=True),
            self.targets.to(device, non_blocking=True),
            self.tokens,
        )


def batched(pieces: Sequence[Piece], pad: int) -> TextBatch:
    """Texts as one batch."""
    width = max(len(piece.ids) for piece in pieces)
    whole = len(pieces[0].targets) == 1
    tokens = [[*piece.ids, *[pad] * (width - len(piece.ids))] for piece in pieces]
    targets = [piece.targets if whole else [*piece.targets, *[IGNORE] * (width - len(piece.ids))] for piece in pieces]
    return TextBatch(
        torch.tensor(tokens),
        torch.tensor([len(piece.ids) for piece in pieces]),
        torch.tensor(targets).squeeze(1) if whole else torch.tensor(targets),
        sum(target != IGNORE for piece in pieces for target in piece.targets),
    )


def epoch_of(pieces: Sequence[Piece], budget: int, seed: int, number: int) -> list[list[int]]:
    """The batches of an epoch, by the numbers of the pieces."""
    return shuffled([len(piece.ids) for piece in pieces], budget, seed, number)


def in_batches(pieces: Sequence[Piece], budget: int, pad: int) -> Iterator[tuple[list[int], TextBatch]]:
    """All of them, those of like length together, each batch with the numbers of its pieces."""
    for rows in by_length([len(piece.ids) for piece in pieces], budget):
        yield rows, batched([pieces[row] for row in rows], pad)
