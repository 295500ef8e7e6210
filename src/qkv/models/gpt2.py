"""Language models are unsupervised multitask learners (Radford et al. 2019): a stack of causal Transformer blocks.

    h_0 = E[x_t] + P[t]
    h_l = h' + FeedForward(norm(h')),   h' = h_{l-1} + MaskedSelfAttention(norm(h_{l-1})),   l = 1 ... L
    p(x_{t+1} | x_1 ... x_t) = softmax(E norm(h_L))

The output layer is tied to the embedding (Press and Wolf 2017). Weights are initialised with N(0, 0.02^2), those of the
residual projections, W_O and W_2, with deviation 0.02 / sqrt(2L), which keeps the scale of the residual stream.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from qkv.attention import (
    SCORES,
    Cache,
    Causal,
    Documents,
    Learned,
    Mask,
    Prefix,
    ScaledDot,
    Score,
)
from qkv.attention.mask import Not
from qkv.config import require, require_known
from qkv.errors import InputError
from qkv.nn.block_config import ALL_POSITIONS, build_block, build_encoding
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import ACTIVATIONS
from qkv.nn.language_model import LanguageModel
from qkv.nn.stack import Stack
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, Any]] = {
    "baby": {"dim": 384, "heads": 6, "layers": 6, "max_length": 256, "dropout": 0.2, "attention_dropout": 0.2},
    "small": {"dim": 768, "heads": 12, "layers": 12},  # 124 M parameters with GPT-2's vocabulary of 50,257 tokens
    "medium": {"dim": 1024, "heads": 16, "layers": 24},
    "large": {"dim": 1280, "heads": 20, "layers": 36},
    "xl": {"dim": 1600, "heads": 25, "layers": 48},
}


@dataclass(frozen=True)
class Config:
    """Sizes and terms of the model; the vocabulary size comes from the data."""

    vocabulary_size: int
    dim: int = 768
    heads: int = 12
    layers: int = 12
    feedforward: int | None = None  # None: 4 * dim
    max_length: int = 1024  # maximum context length; a hard limit for learned positions
    position: str = "learned"
    score: str = "scaled_dot"
    inverse_layer_scale: bool = False  # divide the scores of layer l by l
    upcast_scores: bool = False  # kept for transformers; scores are always computed in float32 here
    activation: str = "gelu_tanh"
    dropout: float = 0.1  # of embeddings and residual branches
    attention_dropout: float = 0.1  # of the attention weights
    tie: bool = True  # tie embedding and output
    eps: float = 1e-5  # of layer normalisation
    ends: bool = False  # whether training texts end with an end token

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("vocabulary_size", "dim", "heads", "layers", "max_length")}
        for name, size in (sizes | {"feedforward": self.hidden}).items():
            require(1 <= size <= 2**24, f"{name} must be between 1 and 2^24")
        require(self.layers <= 1024, "layers must be at most 1,024")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        widest = max(self.vocabulary_size, self.hidden, self.max_length, 3 * self.dim)
        require(self.dim * widest <= 2**34, f"a matrix of {self.dim} x {widest} is too large: at most 2^34 elements")
        require_known(self, position=ALL_POSITIONS, score=SCORES, activation=ACTIVATIONS)
        require(
            self.position != "rotary" or self.head_dim % 2 == 0,
            f"position 'rotary' needs an even head size (dim / heads), not {self.head_dim}",
        )
        require(
            not self.inverse_layer_scale or self.score in ("dot", "scaled_dot"),
            f"inverse_layer_scale needs score 'dot' or 'scaled_dot', not {self.score!r}",
        )
        for name in ("dropout", "attention_dropout", "eps"):
            require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1)")

    @property
    def hidden(self) -> int:
        """Width of the feed-forward networks."""
        return 4 * self.dim if self.feedforward is None else self.feedforward

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


@dataclass(frozen=True)
class State:
    """State between tokens, or between chunks of a text."""

    past: tuple[Cache, ...] | None  # key/value cache of each layer; None before the first token
    position: int  # of the next token
    padding: Int[Tensor, "batch"] | None = None  # number of left-padding positions per row


@register("model", "gpt2")
class GPT2(LanguageModel[State]):
    """Decoder-only Transformer language model."""

    config_class = Config
    presets: ClassVar = PRESETS

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary_size, config.dim)
        self.positions = build_encoding(config)
        self.dropout = Dropout(config.dropout)
        self.blocks = Stack(
            build_block(config, norm="pre", score=_score(config, layer)) for layer in range(1, config.layers + 1)
        )
        self.norm = nn.LayerNorm(config.dim, config.eps)
        self.readout = nn.Linear(config.dim, config.vocabulary_size, bias=False)
        if config.tie:
            self.readout.weight = self.embed.weight
        self.initialise()

    def initialise(self) -> None:
        """Initialise the weights as described in the module docstring, and biases with zeros."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            for residual in (block.attention.output, block.feedforward.down_proj):
                nn.init.normal_(residual.weight, std=0.02 / math.sqrt(2 * self.config.layers))

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        padding: Int[Tensor, "batch"] | None = None,
        documents: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits after each token.

        For left-padded batches, `padding` is the number of padding positions per row. For packed batches, `documents`
        is the document index of each token: attention is restricted to the document, and positions restart in each.
        """
        if documents is None:
            return self.forward_from(tokens, self.init_state(tokens.shape[0], padding))[0]
        if padding is not None:
            raise InputError("documents and padding are mutually exclusive: a batch is either packed or left-padded")
        x = self._embed(tokens, _positions_within(documents))
        return self._run(x, Causal() & Documents(documents), None)[0]

    def init_state(self, batch: int, padding: Int[Tensor, "batch"] | None = None) -> State:
        """Return the state before the first token; `padding` is the number of left-padding positions per row."""
        return State(None, 0, padding)

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        length = tokens.shape[1]
        mask: Mask = Causal()
        positions: int | Tensor = state.position
        if state.padding is not None:
            position = torch.arange(state.position, state.position + length, device=tokens.device)
            positions = (position - state.padding[:, None]).clamp(min=0)  # counted from each row's first token
            mask &= Not(Prefix(state.padding))  # not ~Prefix, which torch.compile cannot trace
        logits, past = self._run(self._embed(tokens, positions), mask, state.past)
        return logits, State(past, state.position + length, state.padding)

    def _embed(
        self, tokens: Int[Tensor, "batch length"], positions: int | Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length dim"]:
        """Return h_0 of tokens at the given positions, or at consecutive positions from one on."""
        x = self.embed(tokens)
        if self.positions is not None and not isinstance(self.positions, Learned):
            x = x * math.sqrt(self.config.dim)  # match the scale of the sinusoidal encoding
        if self.positions is not None:
            if isinstance(positions, int):
                x = x + self.positions(tokens.shape[1], positions)
            else:
                x = x + self.positions.at(positions)
        return self.dropout(x)

    def _run(
        self, x: Float[Tensor, "batch length dim"], mask: Mask, past: tuple[Cache, ...] | None
    ) -> tuple[Float[Tensor, "batch length vocabulary"], tuple[Cache, ...]]:
        """Run the blocks and the output layer; also return the caches."""
        present = []
        for block, cache in zip(self.blocks, past or (None,) * len(self.blocks), strict=True):
            x, new_cache = block(x, mask, cache)
            present.append(new_cache)
        return self.readout(self.norm(x)), tuple(present)


def _score(config: Config, layer: int) -> Score | None:
    """Return the score q . k / l or q . k / (l sqrt(d)) of layer l with inverse_layer_scale, else None."""
    if not config.inverse_layer_scale:
        return None
    return ScaledDot(1 / layer if config.score == "dot" else 1 / (layer * math.sqrt(config.head_dim)))


def _positions_within(documents: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Return the position of each token within its document."""
    position = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return position - position.masked_fill(~starts, 0).cummax(dim=1).values
