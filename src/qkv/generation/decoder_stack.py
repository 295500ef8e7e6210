"""Weights of a Transformer stack in one neutral form, from which the fast CPU and GPU decoders are built."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import nn

from qkv.attention import Dot, ScaledDot, Softmax
from qkv.attention.position import NoPosition
from qkv.errors import Unsupported
from qkv.models.gpt2 import GPT2, Block
from qkv.models.transformer import DecoderBlock, EncoderBlock, Transformer
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multi_head import MultiHeadAttention
from qkv.types import Float, Int, Tensor

WeightType = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True)
class LinearWeights:
    """y = W x + b; int8 weights have one scale per output."""

    weight: Float[Tensor, "outputs inputs"] | Int[Tensor, "outputs inputs"]
    bias: Float[Tensor, "outputs"] | None
    scale: Float[Tensor, "outputs"] | None = None

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    def rows(self, begin: int, end: int) -> "LinearWeights":
        """Return the layer with the outputs begin ... end - 1."""
        part = slice(begin, end)
        bias, scale = (None if tensor is None else tensor[part] for tensor in (self.bias, self.scale))
        return LinearWeights(self.weight[part], bias, scale)


@dataclass(frozen=True)
class NormWeights:
    """Layer normalization."""

    weight: Float[Tensor, "dim"]
    bias: Float[Tensor, "dim"]


@dataclass(frozen=True)
class CrossWeights:
    """Cross-attention over a source."""

    norm: NormWeights
    query: LinearWeights
    key_value: LinearWeights  # keys, then values
    out: LinearWeights
    scale: float


@dataclass(frozen=True)
class LayerWeights:
    """One layer: self-attention, cross-attention in decoders, feed-forward network."""

    attention_norm: NormWeights
    qkv: LinearWeights
    out: LinearWeights
    scale: float
    cross: CrossWeights | None
    ffn_norm: NormWeights
    up: LinearWeights
    down: LinearWeights


@dataclass(frozen=True)
class Stack:
    """A stack of Transformer layers with its embedding and, in decoders, its output layer."""

    heads: int
    pre_norm: bool
    activation: str
    eps: float
    embed: LinearWeights  # of the tokens, [vocab_size, dim]
    embed_scale: float
    position: Float[Tensor, "positions dim"] | None  # added to the embeddings
    layers: Sequence[LayerWeights]
    final_norm: NormWeights | None
    readout: LinearWeights | None  # None in encoders

    @property
    def dim(self) -> int:
        return self.embed.inputs

    @property
    def ffn_dim(self) -> int:
        return self.layers[0].up.outputs

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def has_cross_attention(self) -> bool:
        return self.layers[0].cross is not None

    @property
    def tied(self) -> bool:
        """Whether the output layer is the embedding."""
        return self.readout is not None and self.readout.weight.data_ptr() == self.embed.weight.data_ptr()


@torch.no_grad()
def decoder_stack(model: nn.Module) -> Stack:
    """Return the decoder of a model; raise `Unsupported` if the fast decoders do not implement its terms."""
    match model:
        case GPT2():
            return _gpt2_stack(model)
        case Transformer():
            return _transformer_decoder(model)
    raise _unsupported(f"{type(model).__name__} has no Transformer decoder")


@torch.no_grad()
def encoder_stack(model: nn.Module) -> Stack:
    """Return the encoder of a Transformer; raise `Unsupported` if the fast decoders do not implement its terms."""
    if not isinstance(model, Transformer):
        raise _unsupported(f"{type(model).__name__} has no Transformer encoder")
    if model.config.tree != "none":
        raise _unsupported("positions in dependency trees")
    config, embed = model.config, model.source_embed
    return Stack(
        heads=config.heads,
        pre_norm=config.norm == "pre",
        activation=config.activation,
        eps=_eps(model.encoder),
        embed=linear_weights(embed.tokens),
        embed_scale=embed.tokens.scale,
        position=_position_table(embed.positions, config.position.name, config.max_length + 1),
        layers=[_encoder_layer(cast(EncoderBlock, block)) for block in model.encoder],
        final_norm=_norm(model.encoder_norm),
        readout=None,
    )


def _unsupported(reason: str) -> Unsupported:
    return Unsupported("fast decoding", reason)


def _gpt2_stack(model: GPT2) -> Stack:
    config = model.config
    table = _position_table(model.positions, config.position.name, config.max_length)
    scaled = model.positions is not None and model.positions.scales_embeddings
    return Stack(
        heads=config.heads,
        pre_norm=True,
        activation=config.activation,
        eps=config.layer_norm_eps,
        embed=linear_weights(model.embed),
        embed_scale=config.dim**0.5 if scaled else 1.0,
        position=table,
        layers=[_gpt2_layer(cast(Block, block)) for block in model.blocks],
        final_norm=_norm(model.norm),
        readout=linear_weights(model.readout),
    )


def _transformer_decoder(model: Transformer) -> Stack:
    config, embed = model.config, model.target_embed
    readout = linear_weights(model.readout)
    if model.readout_bias is not None:
        readout = LinearWeights(readout.weight, model.readout_bias.detach()[0].float(), readout.scale)
    return Stack(
        heads=config.heads,
        pre_norm=config.norm == "pre",
        activation=config.activation,
        eps=_eps(model.decoder),
        embed=linear_weights(embed.tokens),
        embed_scale=embed.tokens.scale,
        position=_position_table(embed.positions, config.position.name, config.max_length + 1),
        layers=[_decoder_layer(cast(DecoderBlock, block)) for block in model.decoder],
        final_norm=_norm(model.decoder_norm),
        readout=readout,
    )


def _gpt2_layer(block: Block) -> LayerWeights:
    norms = _norm(block.attention_norm), _norm(block.ffn_norm)
    return _layer(block.attention, None, block.ffn, norms)


def _encoder_layer(block: EncoderBlock) -> LayerWeights:
    norms = _norm(block.attention_norm), _norm(block.ffn_norm)
    return _layer(block.attention, None, block.ffn, norms)


def _decoder_layer(block: DecoderBlock) -> LayerWeights:
    attention, norm = block.cross_attention, _norm(block.cross_norm)
    assert norm is not None
    dim, projections = attention.heads * attention.head_dim, linear_weights(attention.qkv_proj)
    cross = CrossWeights(
        norm,
        projections.rows(0, dim),
        projections.rows(dim, 3 * dim),
        linear_weights(attention.out_proj),
        _scale(attention),
    )
    return _layer(block.self_attention, cross, block.ffn, (_norm(block.self_norm), _norm(block.ffn_norm)))


def _layer(
    attention: MultiHeadAttention,
    cross: CrossWeights | None,
    ffn: FeedForward,
    norms: tuple[NormWeights | None, NormWeights | None],
) -> LayerWeights:
    attention_norm, ffn_norm = norms
    assert attention_norm is not None
    assert ffn_norm is not None
    return LayerWeights(
        attention_norm,
        linear_weights(attention.qkv_proj),
        linear_weights(attention.out_proj),
        _scale(attention),
        cross,
        ffn_norm,
        linear_weights(ffn.up_proj),
        linear_weights(ffn.down_proj),
    )


def _scale(attention: MultiHeadAttention) -> float:
    """Return the scale of the dot products; raise `Unsupported` for any other kind of attention."""
    attend = attention.attend
    if not isinstance(attend.score, Dot | ScaledDot):
        raise _unsupported(f"the score {type(attend.score).__name__}")
    if not isinstance(attend.align, Softmax):
        raise _unsupported(f"the alignment {type(attend.align).__name__}")
    if not isinstance(attend.position, NoPosition | None):
        raise _unsupported(f"the position {type(attend.position).__name__} inside attention")
    if attend.backend != "auto":
        raise _unsupported(f"the explicit backend {attend.backend!r}")
    if attend.watchers or attend.ablations:
        raise _unsupported("watched or ablated attention")
    return attend.score.scale_for(attention.head_dim)


def _position_table(encoding: Any, name: str, length: int) -> Float[Tensor, "positions dim"] | None:
    if encoding is not None:
        return cast(Tensor, encoding(length)).detach().float()
    if name != "none":
        raise _unsupported(f"the position {name!r}")
    return None


def _norm(module: nn.Module) -> NormWeights | None:
    if not isinstance(module, nn.LayerNorm):
        return None
    return NormWeights(module.weight.detach().float(), module.bias.detach().float())


def _eps(blocks: nn.ModuleList) -> float:
    return next(module.eps for module in blocks.modules() if isinstance(module, nn.LayerNorm))


def linear_weights(module: nn.Module) -> LinearWeights:
    """Return the weights of a linear layer or an embedding."""
    bias = getattr(module, "bias", None)
    weight, scale = cast(Tensor, module.weight).detach(), getattr(module, "weight_scale", None)
    return LinearWeights(
        weight, None if bias is None else bias.detach().float(), scale if weight.dtype == torch.int8 else None
    )


def all_linears(stack: Stack) -> Iterator[LinearWeights]:
    """Yield every matrix of a stack, tied ones once."""
    yield stack.embed
    for layer in stack.layers:
        yield from (layer.qkv, layer.out, layer.up, layer.down)
        if layer.cross is not None:
            yield from (layer.cross.query, layer.cross.key_value, layer.cross.out)
    if stack.readout is not None and not stack.tied:
        yield stack.readout
