"""Llama (Touvron et al. 2023): a causal Transformer with rotary positions, RMS normalization and gated networks.

    h_0 = E[x_t]
    h_l = h' + FFN(RMSNorm(h')),   h' = h_{l-1} + MaskedSelfAttention(RMSNorm(h_{l-1})),   l = 1 ... L
    p(x_{t+1} | x_1 ... x_t) = softmax(W RMSNorm(h_L))

    RMSNorm(x) = g * x / sqrt(mean(x^2) + eps)   (Zhang and Sennrich 2019)
    FFN(x) = W_2 (silu(W_1 x) * W_3 x)           (SwiGLU; Shazeer 2020)

and * is the elementwise product. Queries and keys are rotated by their positions (Su et al. 2021). Groups of heads can
share keys and values (grouped-query attention; Ainslie et al. 2023). There are no biases. W_O of attention and W_2,
whose outputs are added to h, are initialized from N(0, 0.02^2 / (2L)), all other matrices from N(0, 0.02^2).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

from pydantic import model_validator
from torch import nn

from qkv.attention import KeyValue, Mask, Sizes
from qkv.config import (
    AlignTerm,
    Config,
    Count,
    PositionTerm,
    PositiveFloat,
    Rate,
    ScoreTerm,
    Size,
    Term,
    require,
    require_matrix_size,
)
from qkv.nn.causal_batch import batch_mask
from qkv.nn.embedding import is_encoding
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import Activation, GatedFeedForward
from qkv.nn.interfaces import LanguageModel
from qkv.nn.multi_head import BackendName, MultiHeadAttention, check_terms, head_sizes
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, Any]] = {
    # The sizes of llama2.c, whose models tell children's stories.
    "stories15m": {"dim": 288, "heads": 6, "layers": 6, "max_length": 256, "tie_embeddings": True},
    "stories42m": {"dim": 512, "heads": 8, "layers": 8, "max_length": 1024, "tie_embeddings": True},
    "stories110m": {"dim": 768, "heads": 12, "layers": 12, "max_length": 1024, "tie_embeddings": True},
    "7b": {"dim": 4096, "heads": 32, "layers": 32, "ffn_dim": 11008, "max_length": 4096},  # Llama 2
}


class LlamaConfig(Config):
    """Sizes and terms of the model; the vocabulary size comes from the data."""

    vocab_size: Size = 32000  # number of tokens in the vocabulary
    dim: Size = 288  # width of embeddings and hidden states
    heads: Count = 6  # attention heads per layer
    kv_heads: Count | None = None  # grouped-query attention: number of heads of keys and values; None: heads
    layers: Count = 6  # number of blocks
    ffn_dim: Size | None = None  # width of the feed-forward networks; None: 8/3 dim, rounded up to a multiple of 32
    max_length: Size = 256  # maximum context length
    position: PositionTerm = Term("position", "rotary")  # inside self-attention: rotary, relative, alibi or none
    score: ScoreTerm = Term("score", "scaled_dot")  # score between queries and keys
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    activation: Activation = "silu"  # of the gates
    dropout: Rate = 0.0  # of embeddings and residual branches
    attention_dropout: Rate = 0.0  # of the attention weights
    tie_embeddings: bool = False  # tie embedding and readout
    norm_eps: PositiveFloat = 1e-5  # epsilon of RMS normalization
    has_end_token: bool = False  # whether training texts end with an end token, at which `qkv generate` stops

    @property
    def sizes(self) -> Sizes:
        return head_sizes(self.dim, self.heads, self.max_length)

    @property
    def ffn_width(self) -> int:
        """Width of the feed-forward networks."""
        return self.ffn_dim or -(-8 * self.dim // (3 * 32)) * 32

    @model_validator(mode="after")
    def _check(self) -> "LlamaConfig":
        widest = max(self.vocab_size, 2 * self.ffn_width, 3 * self.dim)
        require_matrix_size(self.dim, widest)
        require(
            self.heads % (self.kv_heads or self.heads) == 0,
            f"heads {self.heads} must be divisible by kv_heads {self.kv_heads}",
        )
        require(
            not is_encoding(self.position),
            f"position {self.position.name!r} is added to embeddings; choose one inside attention, or none",
        )
        check_terms(self.sizes, score=self.score, align=self.align, position=self.position)
        return self


@dataclass(frozen=True)
class State:
    """State between tokens, or between chunks of a text."""

    past: tuple[KeyValue, ...] | None  # key/value cache of each layer; None before the first token
    padding: Int[Tensor, "batch"] | None = None  # number of left-padding positions per row


@register("model", "llama")
class Llama(LanguageModel[State]):
    """Decoder-only Transformer language model with rotary positions."""

    config_class = LlamaConfig
    presets: ClassVar = PRESETS
    description = "Llama (Touvron et al. 2023): rotary positions, RMSNorm, SwiGLU, grouped-query attention"

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim)  # E
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.readout = nn.Linear(config.dim, config.vocab_size, bias=False)  # W
        if config.tie_embeddings:
            self.readout.weight = self.embed.weight
        self.init_weights()

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return [*self.blocks]

    def init_weights(self) -> None:
        """Initialize the matrices as described in the module docstring."""
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                added = name.endswith(("out_proj.weight", "down_proj.weight"))  # W_O and W_2
                nn.init.normal_(weight, std=0.02 / (2 * self.config.layers) ** 0.5 if added else 0.02)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        padding: Int[Tensor, "batch"] | None = None,
        documents: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits after each token (see `hidden_states`)."""
        return self.readout(self.hidden_states(tokens, padding=padding, documents=documents))

    def hidden_states(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        padding: Int[Tensor, "batch"] | None = None,
        documents: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return RMSNorm(h_L) of each token of a plain, left-padded or packed batch (see `nn.causal_batch`).

        Positions need not restart in each document: only the distances between them matter.
        """
        mask = batch_mask(padding, documents)
        x = self.dropout(self.embed(tokens))
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)

    def init_state(self, batch: int, padding: Int[Tensor, "batch"] | None = None) -> State:
        """Return the state before the first token (see `LanguageModel`)."""
        return State(past=None, padding=padding)

    def hidden_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length dim"], State]:
        """Return RMSNorm(h_L) of each token, and the new state."""
        x, mask, present = self.dropout(self.embed(tokens)), batch_mask(state.padding), []
        for block, past in zip(self.blocks, state.past or (None,) * len(self.blocks), strict=True):
            x, cache = cast(Block, block).extend(x, mask, past)
            present.append(cache)
        return self.norm(x), State(tuple(present), state.padding)


class Block(nn.Module):
    """x = x + MaskedSelfAttention(RMSNorm(x)),   x = x + FFN(RMSNorm(x))."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            config.dim, config.heads, config.attention_dropout, bias=False, out_bias=False,
            kv_heads=config.kv_heads, backend=config.backend, score=config.score.build(config.sizes),
            position=config.position.build(config.sizes), align=config.align.build(config.sizes),
        )  # fmt: skip
        self.attention_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.ffn = GatedFeedForward(config.dim, config.ffn_width, activation=config.activation)
        self.ffn_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "batch length dim"], mask: Mask | None = None
    ) -> Float[Tensor, "batch length dim"]:
        return self.extend(x, mask)[0]

    def extend(
        self, x: Float[Tensor, "batch length dim"], mask: Mask | None = None, past: KeyValue | None = None
    ) -> tuple[Float[Tensor, "batch length dim"], KeyValue]:
        """Return the block's output after `past`, and the key/value cache for the next call."""
        attended, present = self.attention(self.attention_norm(x), mask, past)
        x = x + self.dropout(attended)
        return x + self.dropout(self.ffn(self.ffn_norm(x))), present
