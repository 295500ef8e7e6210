"""Rows of a batch for language models that the engine does not support: each row is run on its own."""

from collections.abc import Sequence
from typing import Any

import torch

from qkv.errors import Unsupported
from qkv.generation.runner import Runner
from qkv.nn.interfaces import LanguageModel
from qkv.types import Float, Int, Tensor


class RowRunner(Runner):
    """Decodes each row by the model's own `forward_from`, with a state per row."""

    def __init__(self, model: LanguageModel[Any], rows: int) -> None:
        self._model, self.rows, self.device = model, rows, model.device
        self._states: list[Any] = [None] * rows
        self.vocab_size = model.config.vocab_size

    def encode(self, sources: Sequence[int], inputs: Sequence[Any]) -> None:
        raise Unsupported("decoding row by row", "models with a source")

    def reset(self, rows: Sequence[int], sources: Sequence[int] = ()) -> None:
        for row in rows:
            self._states[row] = self._model.init_state(1)

    def reorder(self, rows: Int[Tensor, "rows"], parents: Int[Tensor, "rows"]) -> None:
        raise Unsupported("decoding row by row", "beam search")

    def step(self, rows: Int[Tensor, "rows"], tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        return self.extend(rows.tolist(), [[token] for token in tokens.tolist()])

    def extend(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], wanted: Sequence[int] | None = None
    ) -> Float[Tensor, "positions vocabulary"]:
        assert wanted is None or max(wanted) == 1, "there are no guesses to check"
        logits = []
        for row, text in zip(rows, tokens, strict=True):
            ids = torch.tensor([list(text)], device=self.device)
            all_logits, self._states[row] = self._model.forward_from(ids, self._states[row])
            logits.append(all_logits[0, -1].float())
        return torch.stack(logits)

    def truncate(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        raise Unsupported("decoding row by row", "speculative decoding")
