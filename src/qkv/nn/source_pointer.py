"""A pointer to the next source word, for decoders that consume the words of the source in order.

Some target tokens, such as the terminals of a linearized tree, consume a source word. The number of them so far tells
which word comes next, and the decoder is given its encoder state (deterministic attention, Liu, Zhu and Shi 2018):

    p_t = start of source word number |{s <= t : y_s consumes a word}|,   x_t = E[y_t] + W h_{p_t}
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from qkv.config import TokenIds
from qkv.errors import InputError
from qkv.types import Float, Int, Tensor

ConsumingTokens = TokenIds  # ids of the target tokens that consume a source word


@dataclass(frozen=True)
class PointerState:
    """Encoded source, the positions of its words, and the number of words consumed so far."""

    values: Float[Tensor, "batch source dim"]  # h_i
    word_starts: Int[Tensor, "batch words"]  # first token of each word, and then the last token of the source
    consumed: Int[Tensor, "batch"]


class SourcePointer(nn.Module):
    """Adds the projected encoder state of the next source word to the embedding of each target token."""

    is_consuming: Int[Tensor, "vocabulary"]

    def __init__(self, consuming_tokens: Sequence[int], vocab_size: int, source_dim: int, dim: int) -> None:
        super().__init__()
        if not all(0 <= token < vocab_size for token in consuming_tokens):
            raise InputError(f"consuming_tokens must be tokens of the target vocabulary, below {vocab_size:,}")
        self.proj = nn.Linear(source_dim, dim, bias=False)  # W
        is_consuming = torch.zeros(vocab_size, dtype=torch.long)
        is_consuming[torch.tensor(consuming_tokens, dtype=torch.long)] = 1
        self.register_buffer("is_consuming", is_consuming, persistent=False)

    def init_state(
        self, values: Float[Tensor, "batch source dim"], word_starts: Int[Tensor, "batch words"] | None
    ) -> PointerState:
        """Return the state before the first token."""
        if word_starts is None:
            raise InputError("a model with a source pointer (model.pointer) requires the positions of the words")
        return PointerState(values, word_starts, torch.zeros_like(word_starts[:, 0]))

    def forward(
        self, x: Float[Tensor, "batch length dim"], tokens: Int[Tensor, "batch length"], state: PointerState
    ) -> tuple[Float[Tensor, "batch length dim"], PointerState]:
        """Return x + W h_p for each token, and the new state."""
        consumed = state.consumed[:, None] + self.is_consuming[tokens].cumsum(dim=1)
        words = consumed.clamp(max=state.word_starts.shape[1] - 1)
        positions = state.word_starts.gather(1, words)
        values = state.values.gather(1, positions[:, :, None].expand(-1, -1, state.values.shape[2]))
        return x + self.proj(values), replace(state, consumed=consumed[:, -1])


def build_pointer(config: Any, source_dim: int, dim: int) -> SourcePointer | None:
    """Return the pointer of a model with this config; None if it has none."""
    if not config.pointer:
        return None
    return SourcePointer(config.consuming_tokens, config.target_vocab_size, source_dim, dim)


def add_next_word_state(
    pointer: SourcePointer | None,
    x: Float[Tensor, "batch length dim"],
    tokens: Int[Tensor, "batch length"],
    state: PointerState | None,
) -> tuple[Float[Tensor, "batch length dim"], PointerState | None]:
    """Return x + W h of the next source word for each target token, and the new state; x itself without a pointer."""
    return (x, None) if pointer is None or state is None else pointer(x, tokens, state)
