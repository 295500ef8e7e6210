"""Linformer: self-attention with linear complexity (Wang, Li, Khabsa, Fang and Ma 2020), as an encoder of long texts.

    h_0 = LN(T[x_t] + P[t])                 token embedding T, position embedding P
    h_l = LN(h' + FFN(h')),   h' = LN(h_{l-1} + LowRankAttention(h_{l-1})),   l = 1 ... L
    classifier    W tanh(V h_L[first])      the label of the text
    tagger        W h_L                     the label of each token

It is BERT with attention over k projected keys and values instead of all n:

    head_i = attend(x W_Qi, E_i x W_Ki, F_i x W_Vi)             E_i and F_i: [k, n], a column for each position
    LowRankAttention(x) = Concat(head_1 ... head_h) W_O

All matrices but T, P, E and F have biases, and LN is layer normalization.

There are n k scores instead of n^2, so time and memory are linear in the length. The attention weights, which
`qkv.watch` records, are over the k projections, each of which mixes all tokens. `sharing` is that of the paper:

        none         E and F for every head of every layer
        headwise     E and F for every layer
        key_value    E = F for every layer
        layerwise    one E = F for all layers
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import model_validator
from torch import nn

from qkv.attention import LocalMonotonic, LocalPredictive, Sizes
from qkv.config import (
    AlignTerm,
    Config,
    Count,
    PositionTerm,
    PositiveFloat,
    Rate,
    ScoreTerm,
    Size,
    StringList,
    Term,
    require,
    require_matrix_size,
)
from qkv.errors import ConfigError, InputError
from qkv.nn.embedding import ScaledEmbedding, build_positional_encoding, is_encoding
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.interfaces import TextEncoder
from qkv.nn.multi_head import BackendName, MultiHeadAttention, check_terms, head_sizes
from qkv.nn.pooling import valid_positions
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 128, "heads": 2, "layers": 2},
    "mini": {"dim": 256, "heads": 4, "layers": 4},
    "base": {"dim": 768, "heads": 12, "layers": 12},
}
Sharing = Literal["none", "headwise", "key_value", "layerwise"]


class LinformerConfig(Config):
    """Sizes and terms of the model; the vocabulary size and the labels come from the data."""

    vocab_size: Size = 30522  # number of tokens in the vocabulary
    head: Literal["classifier", "tagger"] | None = None  # layers from hidden states to logits; None: hidden states only
    labels: Size = 2  # number of labels
    label_names: StringList = ()  # names of the labels, if known
    dim: Size = 256  # width of embeddings and hidden states
    heads: Count = 4  # attention heads per layer
    layers: Count = 4  # number of blocks
    ffn_dim: Size | None = None  # width of the feed-forward networks; None: 4 * dim
    max_length: Size = 1024  # n, the maximum number of tokens
    rank: Size = 128  # k, the number of projected keys and values
    sharing: Sharing = "headwise"  # which heads and layers share E and F: none, headwise, key_value or layerwise
    position: PositionTerm = Term("position", "learned")  # added to the embeddings
    score: ScoreTerm = Term("score", "scaled_dot")  # score between queries and projected keys
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    activation: Activation = "gelu"  # of the feed-forward networks
    dropout: Rate = 0.1  # of embeddings and residual branches
    attention_dropout: Rate = 0.1  # of the attention weights
    layer_norm_eps: PositiveFloat = 1e-12  # epsilon of layer normalization

    @property
    def sizes(self) -> Sizes:
        """Sizes of an attention head; the keys are the k projections."""
        return head_sizes(self.dim, self.heads, self.rank)

    @model_validator(mode="after")
    def _check(self) -> "LinformerConfig":
        require(self.rank <= self.max_length, f"rank {self.rank} must be at most max_length {self.max_length}")
        widest = max(self.vocab_size, self.labels, self.ffn_dim or 4 * self.dim, self.max_length, 3 * self.dim)
        require_matrix_size(self.dim, widest)
        require_matrix_size(self.heads * self.rank, self.max_length, "rank")  # E of all heads
        require(
            self.position.name == "none" or is_encoding(self.position),  # added to the embeddings
            f"position {self.position.name!r} acts inside self-attention, but projected keys have no position: choose "
            "one that is added to the embeddings",
        )
        if issubclass(self.align.cls, LocalMonotonic | LocalPredictive):
            raise ConfigError(
                f"align {self.align.name!r} is a window of positions, but projected keys have no position"
            )
        check_terms(self.sizes, score=self.score, align=self.align, position=self.position)
        require(len(self.label_names) in (0, self.labels), f"label_names must name all {self.labels} labels, or none")
        return self


@register("model", "linformer")
class Linformer(TextEncoder):
    """Bidirectional encoder with low-rank attention, with an optional head."""

    config_class = LinformerConfig
    presets: ClassVar = PRESETS
    batch_invariant = True
    description = "Linformer (Wang et al. 2020): a text encoder with attention of linear complexity"

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config)
        self.encoder = nn.ModuleList()
        shared = LengthProjection(config) if config.sharing == "layerwise" else None
        for _ in range(config.layers):
            keys = shared or LengthProjection(config)
            values = keys if config.sharing in ("key_value", "layerwise") else LengthProjection(config)
            self.encoder.append(Block(config, keys, values))
        self.pooler = nn.Linear(config.dim, config.dim) if config.head == "classifier" else None  # V
        self.label = None if config.head is None else nn.Linear(config.dim, config.labels)  # W
        self.dropout = Dropout(config.dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)  # as in BERT; E and F keep their values (`LengthProjection`)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return h_L of each token; positions beyond a row's length are excluded from the projections."""
        if segments is not None:
            raise InputError("a Linformer does not take segments")
        x = self.embed(tokens)
        for block in self.encoder:
            x = block(x, lengths)
        return x

    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch *length labels"]:
        """Return the head's logits: [batch, labels] for the text, or [batch, length, labels] per token."""
        if self.label is None:
            raise InputError("this Linformer has no head: build it with head = 'classifier' or 'tagger'")
        x = hidden if self.pooler is None else self.pooler(hidden[:, 0]).tanh()
        return self.label(self.dropout(x))


class Embedding(nn.Module):
    """h_0 = LN(T[x_t] + P[t])."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.positions = build_positional_encoding(
            config.position, config.sizes._replace(max_keys=config.max_length)
        )  # P
        self.tokens = ScaledEmbedding(config.vocab_size, config.dim, scale=1.0)  # T; scale 1 instead of sqrt(d)
        self.norm = nn.LayerNorm(config.dim, config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = self.positions.add_to(x)  # x + P, or sqrt(d) x + P for sinusoidal positions
        return self.dropout(self.norm(x))


class Block(nn.Module):
    """x = LN(x + LowRankAttention(x)),   x = LN(x + FFN(x))   (post-norm)."""

    def __init__(self, config: LinformerConfig, keys: "LengthProjection", values: "LengthProjection") -> None:
        super().__init__()
        self.attention = LowRankAttention(config, keys, values)
        self.attention_norm = nn.LayerNorm(config.dim, config.layer_norm_eps)
        self.ffn = FeedForward(config.dim, config.ffn_dim or 4 * config.dim, activation=config.activation)
        self.ffn_norm = nn.LayerNorm(config.dim, config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "batch length dim"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch length dim"]:
        x = self.attention_norm(x + self.dropout(self.attention(x, lengths)))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))


class LowRankAttention(MultiHeadAttention):
    """head_i = attend(x W_Qi, E_i x W_Ki, F_i x W_Vi); E and F may be shared with each other and across layers."""

    def __init__(self, config: LinformerConfig, keys: "LengthProjection", values: "LengthProjection") -> None:
        super().__init__(
            config.dim, config.heads, config.attention_dropout, backend=config.backend,
            score=config.score.build(config.sizes), align=config.align.build(config.sizes),
        )  # fmt: skip
        self.key_projection = keys  # E of all heads
        self.value_projection = values  # F of all heads

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "batch length dim"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch length dim"]:
        query, key, value = (self.split_heads(part) for part in self.qkv_proj(x).chunk(3, dim=-1))
        if lengths is not None:
            padding = ~valid_positions(x, lengths)[:, None, :, None]
            key, value = (part.masked_fill(padding, 0.0) for part in (key, value))
        # start: position of the first query; by default, the last query would have the position of the last key
        attended = self.attend(query, self.key_projection(key), self.value_projection(value), start=0)
        return self.out_proj(self.merge_heads(attended.output))


class LengthProjection(nn.Module):
    """E x, or F x: projects n positions to k, with one matrix for all heads or one per head.

    A shorter sequence uses the first columns of E, as if it were padded with zeros.

    Each row of E is initialized to the mean of n / k neighboring positions, scaled to unit norm: mean pooling, which
    the paper mentions as an alternative to E. From random rows, as in the paper's proof, the model would have to learn
    the same word again at every position.
    """

    position_axis = 2  # axis of the n positions in the weight; fine-tuning with another max_length cuts or extends it

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.max_length, rank = config.max_length, config.rank
        position = torch.arange(self.max_length)
        self.weight = nn.Parameter(torch.zeros(config.heads if config.sharing == "none" else 1, rank, self.max_length))
        with torch.no_grad():
            self.weight[:, position * rank // self.max_length, position] = (rank / self.max_length) ** 0.5

    def forward(self, x: Float[Tensor, "batch heads length dim"]) -> Float[Tensor, "batch heads rank dim"]:
        if x.shape[2] > self.max_length:
            raise InputError(f"the input has {x.shape[2]} tokens, but max_length is {self.max_length}: shorten it")
        weight = self.weight[:, :, : x.shape[2]]
        if len(weight) == 1:
            return torch.einsum("kn,bhnd->bhkd", weight[0], x)  # one matrix product
        return torch.einsum("hkn,bhnd->bhkd", weight, x)
