"""Language models are unsupervised multitask learners (Radford et al. 2019): a stack of causal Transformer blocks.

    h_0 = E[x_t] + P[t]
    h_l = h' + FeedForward(norm(h')),   h' = h_{l-1} + MaskedSelfAttention(norm(h_{l-1})),   l = 1 ... L
    p(x_{t+1} | x_1 ... x_t) = softmax(E norm(h_L))

The output layer is the embedding itself (Press and Wolf 2017). Weights begin normal with deviation 0.02, those that
write into the sum of layers, W_O and W_2, with 0.02 / sqrt(2L): the sum of 2L of them is then as large as one.
"""

import math
from dataclasses import dataclass
from typing import Any

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
from qkv.nn.described import PLACES, described_block, described_encoding
from qkv.nn.dropout import Dropout
from qkv.nn.feedforward import ACTIVATIONS
from qkv.nn.language_model import LanguageModel
from qkv.nn.stack import Stack
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, Any]] = {
    "baby": {"dim": 384, "heads": 6, "layers": 6, "max_length": 256, "dropout": 0.2, "attention_dropout": 0.2},
    "small": {"dim": 768, "heads": 12, "layers": 12},  # 124 M parameters with GPT-2's own 50,257 tokens
    "medium": {"dim": 1024, "heads": 16, "layers": 24},
    "large": {"dim": 1280, "heads": 20, "layers": 36},
    "xl": {"dim": 1600, "heads": 25, "layers": 48},
}


@dataclass(frozen=True)
class Config:
    """The sizes and terms of the model; the data set the size of the vocabulary."""

    vocabulary_size: int
    dim: int = 768
    heads: int = 12
    layers: int = 12
    feedforward: int | None = None  # None: four times dim
    max_length: int = 1024  # how many tokens it reads together: learned positions end there, the others go on
    position: str = "learned"
    score: str = "scaled_dot"
    inverse_layer_scale: bool = False  # divide the scores of layer l = 1 ... L by l
    upcast_scores: bool = False  # for transformers' eager attention; scores are always computed in float32 here
    activation: str = "gelu_tanh"
    dropout: float = 0.1  # of the embeddings, and of what each layer adds
    attention_dropout: float = 0.1  # of the attention weights
    tie: bool = True  # one matrix for the embedding and the output
    eps: float = 1e-5  # of layer normalisation
    ends: bool = False  # whether the texts that it learned from end with a token that says so

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("vocabulary_size", "dim", "heads", "layers", "max_length")}
        for name, size in (sizes | {"feedforward": self.hidden}).items():
            require(1 <= size <= 2**24, f"{name} must lie between 1 and 2^24")
        require(self.layers <= 1024, "layers must be 1,024 at most")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        widest = max(self.vocabulary_size, self.hidden, self.max_length, 3 * self.dim)
        require(self.dim * widest <= 2**34, f"a matrix of {self.dim} by {widest} numbers is too large: 2^34 at most")
        require_known(self, position=PLACES, score=SCORES, activation=ACTIVATIONS)
        require(
            self.position != "rotary" or self.head_dim % 2 == 0,
            f"position 'rotary' turns pairs of features, but a head has {self.head_dim}: choose dim and heads anew",
        )
        require(
            not self.inverse_layer_scale or self.score in ("dot", "scaled_dot"),
            f"inverse_layer_scale needs score 'dot' or 'scaled_dot', not {self.score!r}",
        )
        for name in ("dropout", "attention_dropout", "eps"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1)")

    @property
    def hidden(self) -> int:
        """The width of the feed-forward networks."""
        return 4 * self.dim if self.feedforward is None else self.feedforward

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


@dataclass(frozen=True)
class State:
    """What the model carries from token to token, and from one part of a text to the next."""

    past: tuple[Cache, ...] | None  # for each layer, the keys and values of the tokens so far; None before the first
    position: int  # the place of the next token
    padding: Int[Tensor, "batch"] | None = None  # how many places at the start of each row hold no token


class GPT2(LanguageModel[State]):
    """Embeddings with positions, blocks that look back, and the output layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary_size, config.dim)
        self.positions = described_encoding(config)
        self.dropout = Dropout(config.dropout)
        self.blocks = Stack(
            described_block(config, norm="pre", score=_score(config, layer)) for layer in range(1, config.layers + 1)
        )
        self.norm = nn.LayerNorm(config.dim, config.eps)
        self.readout = nn.Linear(config.dim, config.vocabulary_size, bias=False)
        if config.tie:
            self.readout.weight = self.embed.weight
        self.initialise()

    def initialise(self) -> None:
        """Weights as the module's docstring says, biases zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            for writing in (block.attention.output, block.feedforward.narrow):
                nn.init.normal_(writing.weight, std=0.02 / math.sqrt(2 * self.config.layers))

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        padding: Int[Tensor, "batch"] | None = None,
        documents: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocabulary"]:
        """The logits after each token.

        Rows of different lengths are filled up on the left: `padding` says how many places of each row hold no token.
        Rows that several texts were packed into have the number of the text at each place in `documents`: no token
        sees another text, and places are counted anew in each.
        """
        if documents is None:
            return self.read(tokens, self.start(tokens.shape[0], padding))[0]
        if padding is not None:
            raise InputError("a batch is packed (documents) or filled up on the left (padding), not both")
        x = self._embedded(tokens, _places_within(documents))
        return self._run(x, Causal() & Documents(documents), None)[0]

    def start(self, batch: int, padding: Int[Tensor, "batch"] | None = None) -> State:
        """The state before the first token; `padding` says how many places of each row come before it."""
        return State(None, 0, padding)

    def read(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        length = tokens.shape[1]
        mask: Mask = Causal()
        places: int | Tensor = state.position
        if state.padding is not None:
            place = torch.arange(state.position, state.position + length, device=tokens.device)
            places = (place - state.padding[:, None]).clamp(min=0)  # counted from the first token of each row
            mask &= Not(Prefix(state.padding))  # and not ~Prefix, which torch.compile cannot trace
        logits, past = self._run(self._embedded(tokens, places), mask, state.past)
        return logits, State(past, state.position + length, state.padding)

    def _embedded(
        self, tokens: Int[Tensor, "batch length"], places: int | Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length dim"]:
        """h_0 of tokens that stand at the given places, or one after another from one place on."""
        x = self.embed(tokens)
        if self.positions is not None and not isinstance(self.positions, Learned):
            x = x * math.sqrt(self.config.dim)  # beside sines, which are not small, the embeddings must not be
        if self.positions is not None:
            at = self.positions(tokens.shape[1], places) if isinstance(places, int) else self.positions.at(places)
            x = x + at
        return self.dropout(x)

    def _run(
        self, x: Float[Tensor, "batch length dim"], mask: Mask, past: tuple[Cache, ...] | None
    ) -> tuple[Float[Tensor, "batch length vocabulary"], tuple[Cache, ...]]:
        """The blocks and the output layer; also the keys and values of all that was read."""
        present = []
        for block, before in zip(self.blocks, past or (None,) * len(self.blocks), strict=True):
            x, seen = block(x, mask, before)
            present.append(seen)
        return self.readout(self.norm(x)), tuple(present)


def _score(config: Config, layer: int) -> Score | None:
    """q . k / l, or q . k / (l sqrt(d)), in layer l of a model with inverse_layer_scale; None: the config's score."""
    if not config.inverse_layer_scale:
        return None
    return ScaledDot(1 / layer if config.score == "dot" else 1 / (layer * math.sqrt(config.head_dim)))


def _places_within(documents: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """The place of each token in its own document, from 0 on."""
    place = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return place - place.masked_fill(~begins, 0).cummax(dim=1).values
