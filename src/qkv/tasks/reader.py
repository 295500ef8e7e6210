"""What all that read texts have in common: an encoder with the head that it takes, and what cuts texts for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from qkv.errors import InputError
from qkv.interop import load_as
from qkv.nn.text_encoder import TextEncoder
from qkv.runtime.device import pick_device
from qkv.tasks.pieces import splitter_for

BATCH_TOKENS = 8192  # read at once, padding counted
USES = {  # of each head
    "classifier": "it is for qkv classify",
    "tagger": "it is for qkv tag",
    "masked_lm": "it is for qkv fill",
    "pretraining": "it is for qkv fill",
    "next_sentence": "it says whether one text follows another",
    "language_model": "it predicts the words of a text ahead and back, and qkv train begins with it",
    "span": "it is for qkv answer",
}


class Reader:
    """A text encoder, and what cuts texts for it."""

    heads: ClassVar[tuple[str, ...]] = ()  # of which the model must have one; none: any will do, also none

    def __init__(self, model: str | Path | TextEncoder, tokenizer: Any = None, device: str = "auto") -> None:
        given = model if isinstance(model, TextEncoder) else load_as(TextEncoder, model, pick_device(device))
        self.model: TextEncoder = given.eval()
        self.name = type(model).__name__ if isinstance(model, TextEncoder) else str(model)
        found = tokenizer or self.model.tokenizer
        if found is None:
            raise InputError(f"{self.name}: to read a text takes a tokenizer, and there is none beside the weights")
        self._check_head(self.model.config.head)
        self.splitter: Any = splitter_for(found, self.model.config)

    def _check_head(self, head: str | None) -> None:
        if not self.heads or head in self.heads:
            return
        has = "has no head" if head is None else f"has the head {head!r} ({USES[head]})"
        # A head for words comes from pre-training; those for labels are put on by fine-tuning.
        words = "masked_lm" in self.heads
        remedy = "take a model that kept its own" if words else "qkv train gives it one, with init = this folder"
        raise InputError(f"{self.name}: {has}, and {' or '.join(map(repr, self.heads))} is needed here: {remedy}")

    @property
    def room(self) -> int:
        """How many tokens of a text the model reads, those at its edges not counted."""
        return self.splitter.room(self.model.config.max_length)

    @property
    def unit(self) -> str:
        """What a text is cut into: "tokens"."""
        return str(self.splitter.unit)

    def too_long(self, texts: Sequence[str]) -> list[int]:
        """The numbers, from 1, of the texts that are read to the model's last place and no further."""
        split = self.splitter.anew().split(texts)
        return [number for number, ids in enumerate(split, start=1) if len(ids) > self.room]


def require_text(texts: Sequence[str]) -> None:
    """Raise for the first text in which there is nothing to read."""
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise InputError(f"input {number} is empty")
