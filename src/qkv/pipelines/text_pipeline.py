"""Base class of the inference pipelines for text encoders: a model with its head, and an example encoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from qkv.errors import InputError
from qkv.hub import load_as
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.text_inputs import build_example_encoder
from qkv.runtime.device import pick_device

BATCH_TOKENS = 8192  # per batch, including padding
USES = {  # of each head
    "classifier": "use qkv classify",
    "tagger": "use qkv tag",
    "masked_lm": "use qkv fill",
    "pretraining": "use qkv fill",
    "next_sentence": "it predicts whether one text follows another",
    "language_model": "a bidirectional language model, for fine-tuning with qkv train",
    "span": "use qkv answer",
}


class TextPipeline:
    """A text encoder with its tokenizer."""

    heads: ClassVar[tuple[str, ...]] = ()  # heads this pipeline supports; empty: any head, or none

    def __init__(self, model: str | Path | TextEncoder, tokenizer: Any = None, device: str = "auto") -> None:
        loaded = model if isinstance(model, TextEncoder) else load_as(TextEncoder, model, pick_device(device))
        self.model: TextEncoder = loaded.eval()
        self.name = type(model).__name__ if isinstance(model, TextEncoder) else str(model)
        tokenizer = tokenizer or self.model.tokenizer
        if tokenizer is None:
            raise InputError(f"{self.name}: no tokenizer was found next to the weights; pass one")
        self._check_head(self.model.config.head)
        self.encoder: Any = build_example_encoder(tokenizer, self.model.config)

    def _check_head(self, head: str | None) -> None:
        if not self.heads or head in self.heads:
            return
        has = "has no head" if head is None else f"has the head {head!r} ({USES[head]})"
        # A masked-LM head comes from pre-training; heads for labels are added by fine-tuning.
        masked_lm = "masked_lm" in self.heads
        remedy = "use a model saved with its masked-LM head" if masked_lm else "fine-tune it with qkv train and init"
        raise InputError(f"{self.name}: {has}, but {' or '.join(map(repr, self.heads))} is required: {remedy}")

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a text, without special tokens."""
        return self.encoder.max_tokens(self.model.config.max_length)

    @property
    def unit(self) -> str:
        """Unit that `max_tokens` counts: "tokens" or "sentences"."""
        return str(self.encoder.unit)

    def too_long(self, texts: Sequence[str]) -> list[int]:
        """The 1-based numbers of the texts that are truncated to the model's maximum length."""
        encoded = self.encoder.fresh_copy().encode(texts)
        return [number for number, ids in enumerate(encoded, start=1) if len(ids) > self.max_tokens]


def require_text(texts: Sequence[str]) -> None:
    """Raise for the first text that is empty or blank."""
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise InputError(f"input {number} is empty")
