"""Language models are unsupervised multitask learners (Radford et al. 2019): a stack of causal Transformer blocks.

    h_0 = E[x_t] + P[t]
    h_l = h' + FFN(LN(h')),   h' = h_{l-1} + MaskedSelfAttention(LN(h_{l-1})),   l = 1 ... L
    p(x_{t+1} | x_1 ... x_t) = softmax(E LN(h_L)),   FFN(x) = W_2 gelu(W_1 x + b_1) + b_2

LN is layer normalization. The attention projections W_Q, W_K, W_V and W_O have biases, too. The readout is tied to the
embedding E (Press and Wolf 2017). Weights are initialized from N(0, 0.02^2). W_O and W_2, whose outputs are added to h,
have the standard deviation 0.02 / sqrt(2L) instead, so that the scale of h does not grow with the number of layers.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

from pydantic import model_validator
from torch import nn

from qkv.attention import KeyValue, Mask, ScaledDot, Sizes
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
from qkv.nn.causal_batch import batch_mask, batch_positions
from qkv.nn.embedding import build_attention_position, build_positional_encoding
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.interfaces import LanguageModel
from qkv.nn.multi_head import BackendName, MultiHeadAttention, check_terms, head_sizes
from qkv.nn.residual_norm import FFNKind, NormPlacement, ResidualNorm, build_final_norm
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, Any]] = {
    # nanoGPT's "baby GPT" for the characters of Tiny Shakespeare
    "baby": {"dim": 384, "heads": 6, "layers": 6, "max_length": 256, "dropout": 0.2, "attention_dropout": 0.2},
    "small": {"dim": 768, "heads": 12, "layers": 12},  # 124 M parameters with GPT-2's vocabulary of 50,257 tokens
    "medium": {"dim": 1024, "heads": 16, "layers": 24},
    "large": {"dim": 1280, "heads": 20, "layers": 36},
    "xl": {"dim": 1600, "heads": 25, "layers": 48},
}


class GPT2Config(Config):
    """Sizes and terms of the model; the vocabulary size comes from the data."""

    vocab_size: Size = 50257  # number of tokens in the vocabulary
    dim: Size = 768  # width of embeddings and hidden states
    heads: Count = 12  # attention heads per layer
    layers: Count = 12  # number of blocks
    ffn_dim: Size | None = None  # width of the feed-forward networks; None: 4 * dim
    max_length: Size = 1024  # maximum context length; a hard limit for learned positions
    position: PositionTerm = Term("position", "learned")  # added to the embeddings, or inside self-attention
    score: ScoreTerm = Term("score", "scaled_dot")  # score between queries and keys
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    inverse_layer_scale: bool = False  # divide the scores of layer l by l
    upcast_scores: bool = False  # ignored (scores are in float32); stored so that Hugging Face configs round-trip
    activation: Activation = "gelu_tanh"  # of the feed-forward networks
    dropout: Rate = 0.1  # of embeddings and residual branches
    attention_dropout: Rate = 0.1  # of the attention weights
    tie_embeddings: bool = True  # tie embedding and readout
    layer_norm_eps: PositiveFloat = 1e-5  # epsilon of layer normalization
    norm: NormPlacement = "pre"  # layer normalization before each sub-layer ("pre"), after each sum ("post"), or "none"
    residual: bool = True  # add the input of each sub-layer to its output
    ffn: FFNKind = "position_wise"  # one feed-forward network per block, or "none"
    causal: bool = True  # mask later tokens; if false, each token can see the one it should predict
    has_end_token: bool = False  # whether training texts end with an end token, at which `qkv generate` stops

    @property
    def sizes(self) -> Sizes:
        return head_sizes(self.dim, self.heads, self.max_length)

    @model_validator(mode="after")
    def _check(self) -> "GPT2Config":
        widest = max(self.vocab_size, self.ffn_dim or 4 * self.dim, self.max_length, 3 * self.dim)
        require_matrix_size(self.dim, widest)
        check_terms(self.sizes, score=self.score, align=self.align, position=self.position)
        if self.inverse_layer_scale:
            require(self.score.name in ("dot", "scaled_dot"), "inverse_layer_scale needs score dot or scaled_dot")
        return self


@dataclass(frozen=True)
class State:
    """State between tokens, or between chunks of a text."""

    past: tuple[KeyValue, ...] | None  # key/value cache of each layer; None before the first token
    position: int  # of the next token
    padding: Int[Tensor, "batch"] | None = None  # number of left-padding positions per row


@register("model", "gpt2")
class GPT2(LanguageModel[State]):
    """Decoder-only Transformer language model."""

    config_class = GPT2Config
    presets: ClassVar = PRESETS
    description = "GPT-2 (Radford et al. 2019): a causal Transformer language model"

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim)  # E
        # P; None if the position acts inside self-attention (see `Block`)
        self.positions = build_positional_encoding(config.position, config.sizes)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(1, config.layers + 1))
        self.norm = build_final_norm(config.dim, config.layer_norm_eps, config.norm)  # LN for pre-norm, else identity
        self.readout = nn.Linear(config.dim, config.vocab_size, bias=False)  # E
        if config.tie_embeddings:
            self.readout.weight = self.embed.weight
        self.init_weights()

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return [*self.blocks]

    def init_weights(self) -> None:
        """Initialize the weights as described in the module docstring, and biases with zeros."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for name, weight in self.named_parameters():
            if name.endswith(("out_proj.weight", "down_proj.weight")):  # W_O of attention, W_2 of the FFN
                nn.init.normal_(weight, std=0.02 / (2 * self.config.layers) ** 0.5)

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
        """Return LN(h_L) of each token of a plain, left-padded or packed batch (see `nn.causal_batch`)."""
        mask = batch_mask(padding, documents, causal=self.config.causal)
        x = self._embed(tokens, batch_positions(tokens, 0, padding, documents))
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)

    def init_state(self, batch: int, padding: Int[Tensor, "batch"] | None = None) -> State:
        """Return the state before the first token (see `LanguageModel`)."""
        return State(past=None, position=0, padding=padding)

    def hidden_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length dim"], State]:
        """Return LN(h_L) of each token, and the new state."""
        mask = batch_mask(state.padding, causal=self.config.causal)
        x = self._embed(tokens, batch_positions(tokens, state.position, state.padding))
        present = []
        for block, past in zip(self.blocks, state.past or (None,) * len(self.blocks), strict=True):
            x, cache = cast(Block, block).extend(x, mask, past)
            present.append(cache)
        return self.norm(x), State(tuple(present), state.position + tokens.shape[1], state.padding)

    def _embed(
        self, tokens: Int[Tensor, "batch length"], positions: int | Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length dim"]:
        """Return h_0; `positions` are those of all tokens, or that of the first."""
        x = self.embed(tokens)
        # add_to: x + P, or sqrt(d) x + P for sinusoidal positions
        return self.dropout(x if self.positions is None else self.positions.add_to(x, positions))


class Block(nn.Module):
    """x = x + MaskedSelfAttention(LN(x)),   x = x + FFN(LN(x))   (pre-norm)."""

    def __init__(self, config: GPT2Config, layer: int) -> None:
        super().__init__()
        score = config.score.build(config.sizes)
        if config.inverse_layer_scale:
            score = ScaledDot(score.scale_for(config.sizes.query) / layer)  # scale_for: 1 / sqrt(d), or 1 for dot
        # build_attention_position: None if the position is added to the embeddings
        self.attention = MultiHeadAttention(
            config.dim, config.heads, config.attention_dropout, backend=config.backend, score=score,
            position=build_attention_position(config.position, config.sizes), align=config.align.build(config.sizes),
        )  # fmt: skip
        norm = partial(ResidualNorm, config.dim, config.layer_norm_eps, config.norm, config.residual)
        self.attention_norm = norm()
        self.ffn: FeedForward | None = None
        if config.ffn != "none":
            self.ffn = FeedForward(config.dim, config.ffn_dim or 4 * config.dim, activation=config.activation)
            self.ffn_norm = norm()
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "batch length dim"], mask: Mask | None = None
    ) -> Float[Tensor, "batch length dim"]:
        return self.extend(x, mask)[0]

    def extend(
        self, x: Float[Tensor, "batch length dim"], mask: Mask | None = None, past: KeyValue | None = None
    ) -> tuple[Float[Tensor, "batch length dim"], KeyValue]:
        """Return the block's output after `past`, and the key/value cache for the next call."""
        # before(x): LN(x) with pre-norm, else x.   after(x, y): x + y, or y without residual; then LN with post-norm.
        attended, present = self.attention(self.attention_norm.before(x), mask, past)
        x = self.attention_norm.after(x, self.dropout(attended))
        if self.ffn is None:
            return x, present
        return self.ffn_norm.after(x, self.dropout(self.ffn(self.ffn_norm.before(x)))), present
