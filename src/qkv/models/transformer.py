"""Attention is all you need (Vaswani et al. 2017): an encoder and a decoder of attention and feed-forward layers.

    encoder block:  x = x + SelfAttention(x);                          x = x + FFN(x)
    decoder block:  y = y + MaskedSelfAttention(y);  y = y + CrossAttention(y, x);  y = y + FFN(y)
    p(token t + 1) = softmax(E y_t),   with output_bias softmax(E y_t + b);   FFN(x) = W_2 relu(W_1 x + b_1) + b_2

x and y start as embeddings, sqrt(d) E[token] + PE[position] (`Embedding`). With `copying`, p is a mixture with the
attention weights a_ti = softmax_i(y_t W x_i / sqrt(d)), a distribution over the source tokens (`qkv.nn.copying`).

LN is layer normalization. With norm = "post", as in the paper, it follows each sum: x = LN(x + SelfAttention(x)). With
norm = "pre", the default, it is applied to the input of each sub-layer, x = x + SelfAttention(LN(x)), and to the
outputs of encoder and decoder; training is then less sensitive to the learning rate warmup (Xiong et al. 2020).

The encoder can also use positions in the dependency trees of its sentences (Wang, Tu, Wang and Shi 2019), with
depth(i) the number of edges to the root, and distance(i, j) = depth(i) - depth(j) if one word is an ancestor of the
other, else +-(depth(i) + depth(j)), minus if i comes first. The argument `tree` holds depth and distance of all tokens
(`qkv.nn.tree_positions`).

    tree = "depth"       D[min(depth(i), 32)] is added to the embedding of token i
    tree = "distance"    score(i, j) += q_i . K[r] / sqrt(d_head),   output_i += sum_j a_ij V[r]     in each head
                         with r = distance(i, j), clipped to [-16, 16]: all larger distances share one K and one V

The vectors D[.], K[.] and V[.] are learned; d_head = d / heads.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from pydantic import model_validator
from torch import nn

from qkv.attention import Causal, KeyValue, Mask, Padding, Position, Sizes, TreePositions
from qkv.config import (
    AlignTerm,
    Config,
    Count,
    NonNegativeInt,
    PositionTerm,
    Rate,
    ScoreTerm,
    Size,
    Term,
    require,
    require_matrix_size,
)
from qkv.nn.copying import AttentivePointerGenerator, check_copying
from qkv.nn.embedding import ScaledEmbedding, build_attention_position, build_positional_encoding
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.interfaces import EncoderDecoder, ParallelDecoder
from qkv.nn.multi_head import BackendName, MultiHeadAttention, check_terms, head_sizes
from qkv.nn.residual_norm import FFNKind, NormPlacement, ResidualNorm, build_final_norm
from qkv.nn.source_attention import EncodedSource
from qkv.nn.source_pointer import ConsumingTokens, PointerState, add_next_word_state, build_pointer
from qkv.nn.tree_positions import TreeDepth, TreeDistance, TreeKind, check_tree, check_tree_input
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, int]] = {
    # for small corpora, as in Wu et al. 2021 ("Good for misconceived reasons")
    "tiny": {"dim": 128, "heads": 4, "encoder_layers": 4, "decoder_layers": 4, "ffn_dim": 256},
    # Vaswani et al. 2017, table 3
    "base": {"dim": 512, "heads": 8, "encoder_layers": 6, "decoder_layers": 6, "ffn_dim": 2048},
    "big": {"dim": 1024, "heads": 16, "encoder_layers": 6, "decoder_layers": 6, "ffn_dim": 4096},
}


class TransformerConfig(Config):
    """Sizes and terms of the model; the vocabulary sizes come from the data."""

    source_vocab_size: Size = 37000  # number of tokens in the source vocabulary
    target_vocab_size: Size = 37000  # number of tokens in the target vocabulary
    dim: Size = 256  # width of embeddings and hidden states
    heads: Count = 4  # attention heads per layer
    encoder_layers: Count = 3  # number of encoder blocks
    decoder_layers: Count = 3  # number of decoder blocks
    ffn_dim: Size = 1024  # width of the feed-forward networks
    dropout: Rate = 0.1  # of embeddings and residual branches
    attention_dropout: Rate | None = None  # of the attention weights; None: same as dropout
    activation_dropout: Rate | None = None  # inside the feed-forward networks; None: same as dropout
    norm: NormPlacement = "pre"  # layer normalization before each sub-layer ("pre"), after each sum ("post"), or "none"
    residual: bool = True  # add the input of each sub-layer to its output
    ffn: FFNKind = "position_wise"  # one feed-forward network per block, or "none"
    causal: bool = True  # mask later target tokens; if false, each token can see the one it should predict
    activation: Activation = "relu"  # of the feed-forward networks
    score: ScoreTerm = Term("score", "scaled_dot")  # score between queries and keys
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    position: PositionTerm = Term("position", "sinusoidal")  # added to the embeddings, or inside self-attention
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    copying: bool = False  # copy source tokens: pointer-generator (See, Liu and Manning 2017; `qkv.nn.copying`)
    pointer: bool = False  # add the encoder state of the next source word to the target embeddings, for parsing
    consuming_tokens: ConsumingTokens = ()  # after these target tokens, the pointer moves to the next source word
    tree: TreeKind = "none"  # dependency trees of the source: "none", "depth", "distance" or "both" of these
    tie_embeddings: bool = True  # tie source and target embedding and readout; needs a shared vocabulary
    tie_output: bool = False  # tie target embedding and readout only
    scale_embeddings: bool = True  # multiply embeddings by sqrt(dim)
    output_bias: bool = False  # whether the readout has a bias b
    max_length: Size = 512  # maximum source and target length
    pad_token: NonNegativeInt | None = None  # pad_token_id of a Hugging Face config, stored so that it round-trips
    begin_token: NonNegativeInt | None = None  # decoder_start_token_id, likewise
    end_token: NonNegativeInt | None = None  # eos_token_id, likewise

    @property
    def attention_dropout_p(self) -> float:
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def activation_dropout_p(self) -> float:
        return self.dropout if self.activation_dropout is None else self.activation_dropout

    @property
    def sizes(self) -> Sizes:
        """Sizes of an attention head; the begin token takes a position, too."""
        return head_sizes(self.dim, self.heads, self.max_length + 1)

    @model_validator(mode="after")
    def _check(self) -> "TransformerConfig":
        source, target = self.source_vocab_size, self.target_vocab_size
        widest = max(3 * self.dim, source, target, self.ffn_dim, self.max_length)
        require_matrix_size(self.dim, widest)
        check_terms(self.sizes, score=self.score, align=self.align, position=self.position)
        check_tree(self.tree, self.position)
        check_copying(self)  # copying needs a shared vocabulary
        if self.tie_embeddings:
            require(source == target, "tie_embeddings needs a shared vocabulary")
        for name, size in (("pad_token", min(source, target)), ("begin_token", target), ("end_token", target)):
            token = getattr(self, name)
            if token is not None:
                require(token < size, f"{name} {token} is not one of {size} tokens")
        return self


@dataclass(frozen=True)
class Memory:
    """Output of the encoder."""

    hidden: Float[Tensor, "batch source dim"]
    lengths: Int[Tensor, "batch"] | None
    word_starts: Int[Tensor, "batch words"] | None = None  # for a pointer: index of the first token of each word
    tokens: Int[Tensor, "batch source"] | None = None  # for copying


@dataclass(frozen=True)
class State:
    """Decoder state between tokens."""

    source_kv: tuple[KeyValue, ...]  # keys and values of the source, for the cross-attention of each layer
    lengths: Int[Tensor, "batch"] | None  # of the source
    past: tuple[KeyValue, ...] | None  # key/value cache of each layer; None before the first token
    position: int  # of the next token
    pointer: PointerState | None = None  # encoded source, and the number of words consumed so far
    copy_source: EncodedSource | None = None  # for copying: keys and tokens of the source


@register("model", "transformer")
class Transformer(ParallelDecoder[Memory, State], EncoderDecoder[Memory, State]):
    """The encoder-decoder Transformer."""

    config_class = TransformerConfig
    presets: ClassVar = PRESETS
    description = "Transformer (Vaswani et al. 2017): an encoder-decoder of attention and feed-forward layers"

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embed = Embedding(config, config.source_vocab_size, config.tree)
        self.target_embed = Embedding(config, config.target_vocab_size)
        self.encoder = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.encoder_norm = build_final_norm(config.dim, norm=config.norm)  # LN for pre-norm, else the identity
        self.decoder = nn.ModuleList(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.decoder_norm = build_final_norm(config.dim, norm=config.norm)
        self.readout = nn.Linear(config.dim, config.target_vocab_size, bias=False)  # E
        self.readout_bias = nn.Parameter(torch.zeros(1, config.target_vocab_size)) if config.output_bias else None  # b
        self.pointer = build_pointer(config, config.dim, config.dim)
        self.copying = AttentivePointerGenerator(config.dim, config.backend) if config.copying else None
        if config.tie_embeddings:
            self.target_embed.tokens.weight = self.source_embed.tokens.weight
        if config.tie_embeddings or config.tie_output:
            self.readout.weight = self.target_embed.tokens.weight

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return [*self.encoder, *self.decoder]

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, "batch"] | None = None,
        *,
        tree: TreePositions | None = None,
        word_starts: Int[Tensor, "batch words"] | None = None,  # index of the first token of each source word
    ) -> Memory:
        """Encode the source; `tree` is required if the config uses trees, `word_starts` if it has a pointer."""
        check_tree_input(self.config.tree, tree)
        x, mask = self.source_embed(source, tree=tree), padding_mask(source_lengths)
        for block in self.encoder:
            x = block(x, mask, tree)
        return Memory(self.encoder_norm(x), source_lengths, word_starts, source if self.config.copying else None)

    def init_state(self, memory: Memory) -> State:
        """Return the decoder state before the first token, with the keys and values of the source."""
        blocks = [cast(DecoderBlock, block) for block in self.decoder]
        source_kv = tuple(block.cross_attention.keys_values(memory.hidden) for block in blocks)
        pointer, copy_source = self._init_pointer(memory), self._init_copying(memory)
        return State(source_kv, memory.lengths, past=None, position=0, pointer=pointer, copy_source=copy_source)

    def _init_pointer(self, memory: Memory) -> PointerState | None:
        return None if self.pointer is None else self.pointer.init_state(memory.hidden, memory.word_starts)

    def _init_copying(self, memory: Memory) -> EncodedSource | None:
        if self.copying is None or memory.tokens is None:
            return None
        return self.copying.precompute(memory.hidden, memory.lengths, memory.tokens)

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each token, and the new state."""
        y, mask = self.target_embed(tokens, offset=state.position), padding_mask(state.lengths)
        y, pointer = add_next_word_state(self.pointer, y, tokens, state.pointer)  # y itself without a pointer
        present: list[KeyValue] = []
        past = state.past or (None,) * len(self.decoder)
        for block, cache, source in zip(self.decoder, past, state.source_kv, strict=True):
            y, new_cache = cast(DecoderBlock, block).extend(y, source, mask, cache)
            present.append(new_cache)
        position = state.position + tokens.shape[1]
        new_state = State(state.source_kv, state.lengths, tuple(present), position, pointer, state.copy_source)
        return self._logits(y, state.copy_source), new_state

    def decode(self, target: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target vocabulary"]:
        """Return the logits after each token of `target` (teacher forcing), without key/value caches."""
        y, mask = self.target_embed(target), padding_mask(memory.lengths)
        y, _ = add_next_word_state(self.pointer, y, target, self._init_pointer(memory))
        for block in self.decoder:
            y = block(y, memory.hidden, mask)
        return self._logits(y, self._init_copying(memory))

    def _logits(
        self, y: Float[Tensor, "batch target dim"], copy_source: EncodedSource | None
    ) -> Float[Tensor, "batch target vocabulary"]:
        y = self.decoder_norm(y)
        logits = self.readout(y)
        logits = logits if self.readout_bias is None else logits + self.readout_bias
        return logits if self.copying is None or copy_source is None else self.copying.mix(logits, y, copy_source)


class Embedding(nn.Module):
    """dropout(sqrt(d) * E[token] + PE[position] + D[tree depth])   (sections 3.4 and 3.5)."""

    def __init__(self, config: TransformerConfig, vocab_size: int, tree: TreeKind = "none") -> None:
        super().__init__()
        # PE; None if the position acts inside self-attention
        self.positions = build_positional_encoding(config.position, config.sizes)
        scale = None if config.scale_embeddings else 1.0  # None: sqrt(d)
        self.tokens = ScaledEmbedding(vocab_size, config.dim, scale=scale)  # E
        self.depths = TreeDepth(tree, config.dim)  # D
        self.dropout = Dropout(config.dropout)

    def forward(
        self, tokens: Int[Tensor, "batch length"], offset: int = 0, tree: TreePositions | None = None
    ) -> Float[Tensor, "batch length dim"]:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(tokens.shape[1], offset)
        return self.dropout(self.depths(x, tree))  # x + D[tree depth], or x if the model does not use it


class EncoderBlock(nn.Module):
    """pre: x = x + SelfAttention(LN(x)), x = x + FFN(LN(x)); post: x = LN(x + SelfAttention(x)), x = LN(x + FFN(x))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.distances = TreeDistance(config.tree, config.sizes.query)
        # build_attention_position: None if the position is added to the embeddings
        self.attention = build_attention(config, build_attention_position(config.position, config.sizes))
        self.attention_norm = build_norm(config)
        self.ffn: FeedForward | None = None
        if config.ffn != "none":
            self.ffn = FeedForward(config.dim, config.ffn_dim, config.activation_dropout_p, config.activation)
            self.ffn_norm = build_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "batch source dim"], mask: Mask | None = None, tree: TreePositions | None = None
    ) -> Float[Tensor, "batch source dim"]:
        # before(x): LN(x) with pre-norm, else x.   after(x, y): x + y, or y without residual; then LN with post-norm.
        # distances(tree): K[r] and V[r], which replace the position of the constructor; None without tree distances.
        attended, _ = self.attention(self.attention_norm.before(x), mask, position=self.distances(tree))
        x = self.attention_norm.after(x, self.dropout(attended))
        if self.ffn is None:
            return x
        return self.ffn_norm.after(x, self.dropout(self.ffn(self.ffn_norm.before(x))))


class DecoderBlock(nn.Module):
    """Masked self-attention, cross-attention over the source, then the feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_mask = Causal() if config.causal else None
        self.self_attention = build_attention(config, build_attention_position(config.position, config.sizes))
        self.self_norm = build_norm(config)
        self.cross_attention = build_attention(config)
        self.cross_norm = build_norm(config)
        self.ffn: FeedForward | None = None
        if config.ffn != "none":
            self.ffn = FeedForward(config.dim, config.ffn_dim, config.activation_dropout_p, config.activation)
            self.ffn_norm = build_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, y: Float[Tensor, "batch target dim"], memory: Float[Tensor, "batch source dim"], mask: Mask | None = None
    ) -> Float[Tensor, "batch target dim"]:
        """Return the block's output for a whole target; `mask` is that of the source."""
        return self.extend(y, self.cross_attention.keys_values(memory), mask)[0]

    def extend(
        self, y: Float[Tensor, "batch target dim"], source: KeyValue, mask: Mask | None, past: KeyValue | None = None
    ) -> tuple[Float[Tensor, "batch target dim"], KeyValue]:
        """Return the block's output after `past`, and the key/value cache for the next call."""
        start = 0 if past is None else past.length  # position of y[:, 0], for local attention over the source
        attended, present = self.self_attention(self.self_norm.before(y), self.self_mask, past)
        y = self.self_norm.after(y, self.dropout(attended))
        attended = self.cross_attention.cross(self.cross_norm.before(y), source, mask, start=start)
        y = self.cross_norm.after(y, self.dropout(attended))
        if self.ffn is None:
            return y, present
        return self.ffn_norm.after(y, self.dropout(self.ffn(self.ffn_norm.before(y)))), present


def build_attention(config: TransformerConfig, position: Position | None = None) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.dim, config.heads, config.attention_dropout_p, backend=config.backend, position=position,
        score=config.score.build(config.sizes), align=config.align.build(config.sizes),
    )  # fmt: skip


def build_norm(config: TransformerConfig) -> ResidualNorm:
    return ResidualNorm(config.dim, norm=config.norm, residual=config.residual)


def padding_mask(lengths: Int[Tensor, "batch"] | None) -> Mask | None:
    return None if lengths is None else Padding(lengths)
