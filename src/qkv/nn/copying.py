"""Copying: attention weights over the source as a distribution of the next token (See, Liu and Manning 2017).

A pointer-generator mixes a distribution over the vocabulary with one over the source tokens x_i, whose probabilities
are the attention weights a_ti. o_t is the input of the readout O:

    p_gen = sigmoid(g . o_t + b)
    p(w) = p_gen softmax(O o_t)_w + (1 - p_gen) sum_{i : x_i = w} a_ti

In the paper, p_gen depends on the context c_t, the state s_t and the embedding y_{t-1}, of which o_t is a function.
Source and target share one vocabulary: tokens are copied by their ids.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import ScaledDot, Softmax
from qkv.attention.precision import at_least_float32
from qkv.config import require
from qkv.nn.interfaces import Source
from qkv.nn.multi_head import BackendName
from qkv.nn.source_attention import EncodedSource, SourceAttention
from qkv.types import Float, Int, Tensor

Vocabulary = Float[Tensor, "batch target vocabulary"]  # logits, or log-probabilities, which are logits, too


class PointerGenerator(nn.Module):
    """p(w) = p_gen softmax(logits)_w + (1 - p_gen) sum_{i : x_i = w} a_ti,   p_gen = sigmoid(g . o_t + b)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 1)  # g and b

    def forward(
        self,
        logits: Vocabulary,
        hidden: Float[Tensor, "batch target dim"],
        weights: Float[Tensor, "batch target source"],
        tokens: Int[Tensor, "batch source"],
    ) -> Vocabulary:
        """Return log p(w), which are logits, too: the softmax normalizes them if the weights sum to less than 1."""
        generated = self.log_generated(logits, hidden)
        copied = torch.zeros_like(generated).scatter_add(
            2, tokens[:, None].expand_as(weights), weights.to(generated.dtype)
        )  # sum_{i : x_i = w} a_ti
        log_copied = copied.clamp(min=torch.finfo(copied.dtype).tiny).log() + F.logsigmoid(-self._gate_logit(hidden))
        # The logarithm of 0 has no gradient: tokens that are not in the source are generated.
        return torch.where(copied > 0, torch.logaddexp(generated, log_copied), generated)

    def log_generated(self, logits: Vocabulary, hidden: Float[Tensor, "batch target dim"]) -> Vocabulary:
        """Return log(p_gen softmax(logits)_w)."""
        return at_least_float32(logits).log_softmax(dim=-1) + F.logsigmoid(self._gate_logit(hidden))

    def _gate_logit(self, hidden: Float[Tensor, "batch target dim"]) -> Float[Tensor, "batch target 1"]:
        return at_least_float32(self.gate(hidden))


class AttentivePointerGenerator(PointerGenerator):
    """A pointer-generator with an attention layer of its own: a_ti = softmax_i(o_t W h_i / sqrt(d)).

    For decoders with several layers and heads of attention.
    """

    def __init__(self, dim: int, backend: BackendName = "auto") -> None:
        super().__init__(dim)
        self.query_proj = nn.Linear(dim, dim, bias=False)  # W
        self.attention = SourceAttention(ScaledDot(), Softmax(), backend, keep_weights=True)

    def precompute(
        self,
        values: Float[Tensor, "batch source dim"],
        lengths: Int[Tensor, "batch"] | None,
        tokens: Int[Tensor, "batch source"],
    ) -> EncodedSource:
        """Return what the attention needs of the source."""
        return replace(self.attention.precompute(values, lengths), tokens=tokens)

    def mix(self, logits: Vocabulary, hidden: Float[Tensor, "batch target dim"], source: EncodedSource) -> Vocabulary:
        """Attend to the source and return log p(w)."""
        _, source = self.attention(
            self.query_proj(hidden), source, torch.zeros((), dtype=torch.long, device=hidden.device)
        )
        return mix_copy_distribution(self, logits, hidden, source)[0]


def attach_source_tokens(
    copying: PointerGenerator | None, source: EncodedSource | None, tokens: Source
) -> EncodedSource | None:
    """Add the source tokens to the encoded source, if the model copies them."""
    return source if copying is None or source is None else replace(source, tokens=tokens)


def mix_copy_distribution(
    copying: PointerGenerator | None,
    logits: Vocabulary,
    hidden: Float[Tensor, "batch target dim"],
    source: EncodedSource | None,
) -> tuple[Vocabulary, EncodedSource | None]:
    """Return log p(w) of the pointer-generator, and the source without the weights of these steps, which it used.

    Without copying, logits and source are returned unchanged.
    """
    if copying is None or source is None:
        return logits, source
    assert source.tokens is not None
    return copying(logits, hidden, torch.cat(source.weights, dim=1), source.tokens), replace(source, weights=())


def check_copying(config: Any) -> None:
    """Raise ConfigError if the config of a model does not allow it to copy."""
    if not config.copying:
        return
    shared = config.source_vocab_size == config.target_vocab_size
    require(shared, "copying needs a shared vocabulary: tokens are copied by their ids")
    encoder = getattr(config, "encoder", None)
    require(encoder is None or not encoder.cls.reads_speech, "copying needs a source of tokens, not of speech")


@contextmanager
def record_copying(model: nn.Module) -> Iterator[list[Vocabulary]]:
    """Record, in each pass, the probability that a token is copied if it comes next: 1 - p_gen softmax(O o_t)_w / p(w).

    The list stays empty for a model without copying.
    """
    records: list[Tensor] = []
    copying = getattr(model, "copying", None)
    if copying is None:
        yield records
        return

    def record(module: PointerGenerator, inputs: tuple[Tensor, ...], log_p: Tensor) -> None:
        logits, hidden, *_ = inputs
        records.append(1.0 - (module.log_generated(logits, hidden) - log_p).exp())

    hook = copying.register_forward_hook(record)
    try:
        yield records
    finally:
        hook.remove()
