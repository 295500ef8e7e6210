"""Mask filling: the most probable tokens for each mask in a text."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar

import torch

from qkv.config import require
from qkv.errors import InputError, InputTooLongError
from qkv.models.bert import MLM_HEADS, Bert
from qkv.pipelines.inputs.text_inputs import IGNORE, Example, inference_batch_size, inference_batches
from qkv.pipelines.pipeline import TextPipeline, one_or_many, require_text
from qkv.runtime.notebook import Drawable, quoted
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.wordpiece import CONTINUATION

MASKS = ("[MASK]", "<mask>")  # accepted in addition to the tokenizer's own spelling


@dataclass(frozen=True)
class Guess:
    """A candidate token for a mask; one that begins with ## continues the word before it."""

    word: str
    probability: float


@dataclass(frozen=True, repr=False)
class FilledText(Drawable):
    """A text with masks and its predictions."""

    text: str
    guesses: tuple[tuple[Guess, ...], ...]  # for each mask, most probable first
    filled: str  # the text with the best guess for each mask

    def __repr__(self) -> str:
        best = "; ".join(", ".join(f"{guess.word} {guess.probability:.3f}" for guess in row) for row in self.guesses)
        return f"FilledText({quoted(self.filled)}, guesses {quoted(best)})"

    def table_row(self) -> tuple[str, str, str]:
        return self.text, self.filled, ", ".join(f"{best.probability:.1%}" for best, *_ in self.guesses)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, as `qkv fill --json` prints them."""
        masks = [
            [{"word": guess.word, "probability": round(guess.probability, 6)} for guess in guesses]
            for guesses in self.guesses
        ]
        return {"text": self.text, "filled": self.filled, "masks": masks}


class Masks:
    """The mask token of a tokenizer, and its spellings in texts."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        mask = tokenizer.special_tokens.mask
        if mask is None:
            raise InputError(f"{name}: its tokenizer has no mask token such as [MASK]")
        self.id, self.token = mask, tokenizer.id_to_token(mask)
        self._spellings = re.compile("|".join(map(re.escape, sorted({*MASKS, self.token}))))

    def split(self, text: str) -> list[str]:
        """Return the parts of a text before, between and after its masks."""
        return self._spellings.split(text)

    def fill(self, text: str, words: Iterable[str]) -> str:
        """Return a text with words in place of its first masks; a word that begins with ## continues the one before."""
        filled, *others = self.split(text)
        for word, part in zip_longest(words, others, fillvalue=self.token):
            inside = word.startswith(CONTINUATION)
            filled = (filled.rstrip() if inside else filled) + word.removeprefix(CONTINUATION) + part
        return filled


class MaskFiller(TextPipeline):
    """A model with a masked-LM head: `MaskFiller("folders/bert-base-uncased")("The [MASK] sat on the mat.").filled`.

    Masks are written [MASK], <mask>, or as the model's tokenizer spells them. Several masks in a text are predicted
    independently, p(x_i | all unmasked tokens), so the guesses need not fit together.
    """

    task_description: ClassVar = "mask filling"
    heads: ClassVar = MLM_HEADS
    example_input: ClassVar = "The [MASK] sat on the mat."
    model: Bert

    def setup(self) -> None:
        super().setup()
        self.masks, self.unk = Masks(self.tokenizer, self.name), self.tokenizer.special_tokens.unk

    @one_or_many
    @torch.inference_mode()
    def __call__(self, texts: Sequence[str], *, top_k: int = 5, batch_size: int | None = None) -> list[FilledText]:
        """Return the most probable tokens for each mask of one text or several.

            qkv.MaskFiller("folders/bert-base-uncased")("The [MASK] sat on the mat.", top_k=3).guesses

        Args:
            texts: A text with masks, or several.
            top_k: Number of tokens for each mask.
            batch_size: Number of texts processed at a time; by default as many as fit in memory.

        Returns:
            One `FilledText` for each text, with `filled` and `guesses`.
        """
        require(top_k >= 1, f"top_k must be at least 1, not {top_k}")
        require_text(texts)
        examples = [self._example(number, text) for number, text in enumerate(texts, start=1)]
        results: dict[int, FilledText] = {}
        size, max_length = inference_batch_size(batch_size), self.model.config.max_length
        for rows, batch in inference_batches(examples, size, self.encoder, max_length):
            batch = batch.to(self.model.device)
            hidden = self.model(batch.token_ids, lengths=batch.lengths)
            is_mask = batch.token_ids == self.masks.id
            masked = hidden[is_mask].split(is_mask.sum(dim=1).tolist())
            for row, states in zip(rows, masked, strict=True):  # the masks of one text, whatever the others are
                # The model may have more outputs than the tokenizer has tokens; the rest are never predicted.
                probabilities = self.model.mlm_logits(states).float().softmax(dim=-1)[:, : len(self.tokenizer)]
                best = probabilities.topk(min(top_k, len(self.tokenizer)), dim=-1)
                predictions = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                results[row] = self._filled(texts[row], [*predictions])
        return [results[row] for row in range(len(texts))]

    def check(self, texts: Sequence[str]) -> None:
        """Raise for the first text without a mask or too long for the model; blank texts pass."""
        for number, text in enumerate(texts, start=1):
            if text.strip():
                self._example(number, text)

    def _example(self, number: int, text: str) -> Example:
        """Encode an input, or raise an error that names it."""
        first, *others = self.masks.split(text)
        if not others:
            raise InputError(f"input {number} has no mask to fill: write {self.masks.token} for a word", field="input")
        ids = [*self._tokens(first)]
        for part in others:
            ids += [self.masks.id, *self._tokens(part)]
        if len(ids) > self.max_tokens:
            raise InputTooLongError(
                f"input {number} has {len(ids)} tokens; this model takes at most {self.max_tokens}", field="input"
            )
        return Example(self.encoder.add_special_tokens(ids), [IGNORE])

    def _tokens(self, part: str) -> Iterator[int]:
        """Tokens of the text between two masks; a mask token in there becomes unknown."""
        if part.strip():
            tokens = self.encoder.encode([part])[0]
            yield from (self.unk or 0 if token == self.masks.id else token for token in tokens)

    def _filled(self, text: str, predictions: Sequence[tuple[list[int], list[float]]]) -> FilledText:
        guesses = tuple(
            tuple(
                Guess(self.tokenizer.decode([token], skip_special_tokens=False), p)
                for token, p in zip(*prediction, strict=True)
            )
            for prediction in predictions
        )
        return FilledText(text, guesses, self.masks.fill(text, (best.word for best, *_ in guesses)))
