"""Filling in: a text with masks in, and out the words that a model would put there."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from qkv.config import require
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.wordpiece import INSIDE
from qkv.errors import InputError
from qkv.models.bert import MLM_HEADS, Bert
from qkv.nn.text_encoder import TextEncoder
from qkv.tasks.pieces import IGNORE, Piece, in_batches
from qkv.tasks.reader import BATCH_TOKENS, Reader, require_text

MASKS = ("[MASK]", "<mask>")  # what people call it


@dataclass(frozen=True)
class Guess:
    """A token that may stand where a mask is; one that begins with ## goes on with the word before it."""

    word: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """A text with masks, and what may stand there."""

    text: str
    guesses: tuple[tuple[Guess, ...], ...]  # for each mask, the most probable first
    filled: str  # the text with the first guess for each


class Filler(Reader):
    """A model with a head for words: `Filler("folders/bert-base-uncased")("The [MASK] sat on the mat.").filled`.

    A mask is written [MASK], <mask>, or as the model's tokenizer has it. Of several in a text each is guessed alone,
    p(x_i | all that is not masked): the guesses need not go together.
    """

    heads: ClassVar = MLM_HEADS
    model: Bert

    def __init__(self, model: str | Path | TextEncoder, tokenizer: Any = None, device: str = "auto") -> None:
        super().__init__(model, tokenizer, device)
        tokenizer = self.splitter.tokenizer
        if not isinstance(tokenizer, PretrainedTokenizer) or tokenizer.roles.mask is None:
            raise InputError(f"{self.name}: its tokenizer has no token for a mask, such as [MASK]")
        self.tokenizer, self.mask = tokenizer, tokenizer.roles.mask

    def __call__(self, text: str, top: int = 5) -> Filled:
        """The most probable words for each mask of one text."""
        return self.fill([text], top)[0]

    @torch.inference_mode()
    def fill(self, texts: Sequence[str], top: int = 5, *, batch_tokens: int = BATCH_TOKENS) -> list[Filled]:
        """The most probable words for each mask of each text."""
        require(top >= 1, f"one word at least has to be guessed, not {top}")
        require_text(texts)
        pieces = [self._piece(number, text) for number, text in enumerate(texts, start=1)]
        found: dict[int, Filled] = {}
        for rows, batch in in_batches(pieces, batch_tokens, self.splitter.pad):
            here = batch.to(self.model.device)
            hidden = self.model(here.tokens_read, lengths=here.lengths)
            masked = hidden[here.tokens_read == self.mask]
            # A model may have room for more tokens than there are; those that are none are never guessed.
            probabilities = self.model.mlm_logits(masked).float().softmax(dim=-1)[:, : len(self.tokenizer)]
            best = probabilities.topk(min(top, len(self.tokenizer)), dim=-1)
            guessed = iter(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            for row in rows:
                found[row] = self._filled(texts[row], [next(guessed) for _ in self._masks.findall(texts[row])])
        return [found[row] for row in range(len(texts))]

    def check(self, texts: Sequence[str]) -> None:
        """Raise for the first text in which nothing could be filled in, before any work is done; blank ones pass."""
        for number, text in enumerate(texts, start=1):
            if text.strip():
                self._piece(number, text)

    def _piece(self, number: int, text: str) -> Piece:
        """The tokens of an input, or an error that says which input and why."""
        first, *others = self._masks.split(text)
        if not others:
            raise InputError(f"input {number} has no mask to fill in: write {self.tokenizer.names['mask']} for a word")
        ids = [*self._tokens(first)]
        for part in others:
            ids += [self.mask, *self._tokens(part)]
        if len(ids) > self.room:
            raise InputError(f"input {number} has {len(ids)} tokens; this model takes at most {self.room}")
        return Piece(self.splitter.between(ids), [IGNORE])

    def _tokens(self, part: str) -> Iterator[int]:
        """The tokens of what stands between two masks: anything that looks like a mask in there is none."""
        if part.strip():
            yield from (self.splitter.unknown if one == self.mask else one for one in self.splitter.split([part])[0])

    def _filled(self, text: str, found: Sequence[tuple[list[int], list[float]]]) -> Filled:
        guesses = tuple(
            tuple(Guess(self.tokenizer.decode([token], specials=True), p) for token, p in zip(*one, strict=True))
            for one in found
        )
        filled, *others = self._masks.split(text)
        for (best, *_), part in zip(guesses, others, strict=True):
            inside = best.word.startswith(INSIDE)
            filled = (filled.rstrip() if inside else filled) + best.word.removeprefix(INSIDE) + part
        return Filled(text, guesses, filled)

    @cached_property
    def _masks(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted({*MASKS, self.tokenizer.names["mask"]}))))
