"""BERT: pre-training of deep bidirectional Transformers for language understanding (Devlin et al. 2019).

    h_0 = LN(E[x_t] + S[segment of t] + P[t])
    h_l = LN(h' + FFN(h')),   h' = LN(h_{l-1} + SelfAttention(h_{l-1})),   l = 1 ... L
    pooled = tanh(W h_L[CLS])

with an optional head:

    masked_lm        E LN(f(W h_L)) + b         the token at each position
    next_sentence    W pooled                   whether the second segment follows the first
    pretraining      both of these
    classifier       W pooled                   the label of the text
    tagger           W h_L                      the label of each token
    span             W h_L                      start and end of an answer

Each W is a separate matrix with a bias, LN is layer normalization and f the activation function; FFN(x) = W f(W x).

A tagger, or a model without a head, can also use positions in the dependency trees of its sentences (Wang, Tu, Wang and
Shi 2019):

    tree = "depth"       h_0 = LN(E[x_t] + S[segment of t] + P[t] + D[min(depth(t), 32)])
    tree = "distance"    score(i, j) += q_i . K[r] / sqrt(d_head),   output_i += sum_j a_ij V[r]     in each head
                         with r = distance(i, j), clipped to [-16, 16]: all larger distances share one K and one V

where depth(t) counts the edges to the root, and distance(i, j) is depth(i) - depth(j) if one word is an ancestor of the
other, else +-(depth(i) + depth(j)), minus if i comes first. The vectors D[.], K[.] and V[.] are learned, and d_head =
d / heads. The argument `tree` holds depth and distance of all tokens (`qkv.nn.tree_positions`). Gold trees leak
information about the labels: the parent of a word reveals much about its role.
"""

from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import model_validator
from torch import nn

from qkv.attention import AnyMask, Padding, Sizes, TreePositions
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
from qkv.errors import InputError
from qkv.nn.embedding import build_attention_position, build_positional_encoding
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import ACTIVATIONS, Activation, FeedForward
from qkv.nn.interfaces import TextEncoder
from qkv.nn.multi_head import BackendName, MultiHeadAttention, check_terms, head_sizes
from qkv.nn.residual_norm import FFNKind, ResidualNorm
from qkv.nn.tree_positions import TreeDepth, TreeDistance, TreeKind, check_tree, check_tree_input
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 128, "heads": 2, "layers": 2},
    "mini": {"dim": 256, "heads": 4, "layers": 4},
    "base": {"dim": 768, "heads": 12, "layers": 12},
    "large": {"dim": 1024, "heads": 16, "layers": 24},
}
Head = Literal["masked_lm", "next_sentence", "pretraining", "classifier", "tagger", "span"]
MLM_HEADS = ("masked_lm", "pretraining")  # heads with token logits at each position
SEQUENCE_HEADS = ("next_sentence", "pretraining", "classifier")  # heads on the pooled vector
LABEL_HEADS = ("classifier", "tagger")


class BertConfig(Config):
    """Sizes and terms of the model; the vocabulary size and the labels come from the data."""

    vocab_size: Size = 30522  # number of tokens in the vocabulary
    head: Head | None = None  # layers from hidden states to logits; None: hidden states only
    labels: Size = 2  # number of labels of a classifier or tagger
    label_names: StringList = ()  # names of the labels, if known
    dim: Size = 768  # width of embeddings and hidden states
    heads: Count = 12  # attention heads per layer
    layers: Count = 12  # number of blocks
    ffn_dim: Size | None = None  # width of the feed-forward networks; None: 4 * dim
    segments: Size = 2  # number of segment embeddings
    max_length: Size = 512  # maximum input length; a hard limit for learned positions
    position: PositionTerm = Term("position", "learned")  # added to the embeddings, or inside self-attention
    tree: TreeKind = "none"  # positions in dependency trees: "none", "depth", "distance" or "both" of these
    score: ScoreTerm = Term("score", "scaled_dot")  # score between queries and keys
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    activation: Activation = "gelu"  # of the feed-forward networks
    dropout: Rate = 0.1  # of embeddings and residual branches
    attention_dropout: Rate = 0.1  # of the attention weights
    pooler: bool = True  # whether there is a pooled vector of the text
    tie_embeddings: bool = True  # tie the embedding and the output of the MLM head
    layer_norm_eps: PositiveFloat = 1e-12  # epsilon of layer normalization
    norm: Literal["post", "none"] = "post"  # layer normalization after each sum, or "none"
    residual: bool = True  # add the input of each sub-layer to its output
    ffn: FFNKind = "position_wise"  # one feed-forward network per block, or "none"

    @property
    def sizes(self) -> Sizes:
        return head_sizes(self.dim, self.heads, self.max_length)

    @model_validator(mode="after")
    def _check(self) -> "BertConfig":
        ffn_dim = self.ffn_dim or 4 * self.dim
        widest = max(self.vocab_size, self.labels, ffn_dim, self.segments, self.max_length, 3 * self.dim)
        require_matrix_size(self.dim, widest)
        check_terms(self.sizes, score=self.score, align=self.align, position=self.position)
        check_tree(self.tree, self.position)
        if self.tree != "none":
            require(self.head in (None, "tagger"), f"tree {self.tree!r} needs head 'tagger', or no head")
        if self.head in SEQUENCE_HEADS:
            require(self.pooler, f"head {self.head!r} needs pooler = true")
        require(len(self.label_names) in (0, self.labels), f"label_names must name all {self.labels} labels, or none")
        return self


class Pretraining(NamedTuple):
    """Logits of the two pre-training heads."""

    masked_lm: Float[Tensor, "batch length vocabulary"]
    next_sentence: Float[Tensor, "batch 2"]  # the second segment follows the first, or does not


@register("model", "bert")
class Bert(TextEncoder):
    """Bidirectional Transformer encoder with an optional head: `bert.logits(bert(tokens))`."""

    config_class = BertConfig
    presets: ClassVar = PRESETS
    batch_invariant = True
    description = "BERT (Devlin et al. 2019): a bidirectional Transformer encoder"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config)
        self.encoder = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.pooler = nn.Linear(config.dim, config.dim) if config.pooler else None
        self.mlm_head = MLMHead(config) if config.head in MLM_HEADS else None
        self.label_dropout = Dropout(config.dropout if config.head in LABEL_HEADS else 0.0)
        self.label: nn.Linear | None = None  # W of all heads but masked_lm
        if config.head not in (None, "masked_lm"):
            self.label = nn.Linear(config.dim, config.labels if config.head in LABEL_HEADS else 2)
        if self.mlm_head is not None and config.tie_embeddings:
            self.mlm_head.readout.weight = self.embed.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return [*self.encoder]

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        *,
        mask: AnyMask | None = None,
        tree: TreePositions | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return h_L of each token. `segments` default to 0; positions beyond a row's length are masked.

        `mask` masks further positions. Heads on the pooled vector use the first token, so padding must be on the right.
        """
        check_tree_input(self.config.tree, tree)
        if lengths is not None:
            mask = Padding(lengths) if mask is None else Padding(lengths) & mask
        x = self.embed(tokens, segments, tree)
        for block in self.encoder:
            x = block(x, mask, tree)
        return x

    def pooled(self, hidden: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch dim"]:
        """Return one vector per text, from the hidden state of the first token."""
        if self.pooler is None:
            raise InputError("this BERT has no pooler: average the hidden states, or build it with pooler = true")
        return self.pooler(hidden[:, 0]).tanh()

    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch *shape"] | Pretraining:
        """Return the head's logits.

        masked_lm                    [batch, length, vocabulary]
        tagger, span                 [batch, length, labels], with start and end as the 2 labels of span
        classifier, next_sentence    [batch, labels]; next_sentence has 2 labels
        pretraining                  a `Pretraining` of masked_lm and next_sentence
        """
        head = self.config.head
        if head is None:
            raise InputError("this BERT has no head: build it with one, e.g. head = 'classifier'")
        if self.label is None:
            return self.mlm_logits(hidden)
        features = self.pooled(hidden) if head in SEQUENCE_HEADS else hidden
        label_logits = self.label(self.label_dropout(features))
        return Pretraining(self.mlm_logits(hidden), label_logits) if head == "pretraining" else label_logits

    def mlm_logits(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocabulary"]:
        """Return the MLM head's logits; training computes them at the masked positions only."""
        if self.mlm_head is None:
            raise InputError(f"this BERT has no MLM head: build it with head {' or '.join(MLM_HEADS)}")
        return self.mlm_head(hidden)


class Embedding(nn.Module):
    """h_0 = LN(E[x_t] + S[segment of t] + P[t] + D[tree depth of t])."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.dim)  # E
        self.segments = nn.Embedding(config.segments, config.dim)  # S
        # P; None if the position acts inside self-attention (see `Block`)
        self.positions = build_positional_encoding(config.position, config.sizes)
        self.depths = TreeDepth(config.tree, config.dim)  # D
        self.norm = nn.LayerNorm(config.dim, config.layer_norm_eps) if config.norm == "post" else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        tree: TreePositions | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        x = self.tokens(tokens) + (self.segments.weight[0] if segments is None else self.segments(segments))
        if self.positions is not None:
            x = self.positions.add_to(x)  # x + P, or sqrt(d) x + P for sinusoidal positions
        return self.dropout(self.norm(self.depths(x, tree)))  # depths(x, tree): x + D[...], or x without tree depth


class Block(nn.Module):
    """x = LN(x + SelfAttention(x)),   x = LN(x + FFN(x))   (post-norm)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        # build_attention_position: None if the position is added to the embeddings
        self.attention = MultiHeadAttention(
            config.dim, config.heads, config.attention_dropout, backend=config.backend,
            score=config.score.build(config.sizes), position=build_attention_position(config.position, config.sizes),
            align=config.align.build(config.sizes),
        )  # fmt: skip
        norm = partial(ResidualNorm, config.dim, config.layer_norm_eps, config.norm, config.residual)
        self.attention_norm = norm()
        self.ffn: FeedForward | None = None
        if config.ffn != "none":
            self.ffn = FeedForward(config.dim, config.ffn_dim or 4 * config.dim, activation=config.activation)
            self.ffn_norm = norm()
        self.dropout = Dropout(config.dropout)
        self.distances = TreeDistance(config.tree, config.sizes.query)

    def forward(
        self, x: Float[Tensor, "batch length dim"], mask: AnyMask | None = None, tree: TreePositions | None = None
    ) -> Float[Tensor, "batch length dim"]:
        # before(x): x.   after(x, y): LN(x + y); norm = "none" omits LN; residual = false omits the x.
        # distances(tree): K[r] and V[r], which replace the position of the constructor; None without tree distances.
        attended, _ = self.attention(self.attention_norm.before(x), mask, position=self.distances(tree))
        x = self.attention_norm.after(x, self.dropout(attended))
        if self.ffn is None:
            return x
        return self.ffn_norm.after(x, self.dropout(self.ffn(self.ffn_norm.before(x))))


class MLMHead(nn.Module):
    """E LN(f(W h)) + b, with E the token embedding, or a separate matrix if untied."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.transform = nn.Linear(config.dim, config.dim)  # W
        self.norm = nn.LayerNorm(config.dim, config.layer_norm_eps)
        self.readout = nn.Linear(config.dim, config.vocab_size)  # E and b

    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocabulary"]:
        return self.readout(self.norm(ACTIVATIONS[self.activation](self.transform(hidden))))
