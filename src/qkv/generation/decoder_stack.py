"""Weights of a Transformer stack in one neutral form, from which the fast CPU and GPU decoders are built."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import nn

from qkv.attention import Dot, ScaledDot, Softmax
from qkv.attention.encoding import angles
from qkv.attention.position import Rotary
from qkv.errors import InputError, Unsupported
from qkv.models.gpt2 import GPT2, Block
from qkv.models.llama import Block as LlamaBlock
from qkv.models.llama import Llama
from qkv.models.transformer import DecoderBlock, EncoderBlock, Transformer
from qkv.models.whisper import DecoderBlock as WhisperBlock
from qkv.models.whisper import Whisper
from qkv.nn.feed_forward import FeedForward, GatedFeedForward
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
    """Layer normalization or, without bias, RMS normalization."""

    weight: Float[Tensor, "dim"]
    bias: Float[Tensor, "dim"] | None


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
    kv_heads: int  # of self-attention
    rotation: Float[Tensor, "positions head_dim"] | None = None  # cosines, then sines of rotary positions
    gated: bool = False  # feed-forward networks: the first half of the outputs of `up` are gates of the second

    @property
    def dim(self) -> int:
        return self.embed.inputs

    @property
    def ffn_dim(self) -> int:
        return self.layers[0].down.inputs

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
    _require_whole_blocks(model)
    match model:
        case GPT2():
            return _gpt2_stack(model)
        case Transformer():
            return _transformer_decoder(model)
        case Llama():
            return _llama_stack(model)
        case Whisper():
            return _whisper_decoder(model)
    raise _unsupported(f"{type(model).__name__} has no Transformer decoder")


@torch.no_grad()
def encoder_stack(model: nn.Module) -> Stack:
    """Return the encoder of a Transformer; raise `Unsupported` if the fast decoders do not implement its terms."""
    if not isinstance(model, Transformer):
        raise _unsupported(f"{type(model).__name__} has no Transformer encoder")
    _require_whole_blocks(model)
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
        layers=[_block_layer(cast(EncoderBlock, block)) for block in model.encoder],
        final_norm=_norm(model.encoder_norm),
        readout=None,
        kv_heads=config.heads,
    )


def _require_whole_blocks(model: nn.Module) -> None:
    """Raise `Unsupported` if the config of a model leaves out parts of its blocks, or adds copying."""
    for key in ("norm", "residual", "ffn", "causal"):
        value = getattr(getattr(model, "config", None), key, None)
        if value in ("none", False):
            raise _unsupported(f"{key} = {value}")
    if getattr(model, "copying", None) is not None:
        raise _unsupported("copying")


def _unsupported(reason: str) -> Unsupported:
    return Unsupported("fast decoding", reason)


def _gpt2_stack(model: GPT2) -> Stack:
    config = model.config
    table = _position_table(model.positions, config.position.name, config.max_length)
    scaled = model.positions is not None and model.positions.scales_embeddings
    return Stack(
        heads=config.heads,
        pre_norm=config.norm == "pre",
        activation=config.activation,
        eps=config.layer_norm_eps,
        embed=linear_weights(model.embed),
        embed_scale=config.dim**0.5 if scaled else 1.0,
        position=table,
        layers=[_block_layer(cast(Block, block)) for block in model.blocks],
        final_norm=_norm(model.norm),
        readout=linear_weights(model.readout),
        kv_heads=config.heads,
    )


def _llama_stack(model: Llama) -> Stack:
    config, blocks = model.config, [cast(LlamaBlock, block) for block in model.blocks]
    rotary = blocks[0].attention.attend.position
    if not isinstance(rotary, Rotary):
        raise _unsupported(f"the position {config.position.name!r} of Llama")
    angle = angles(torch.arange(config.max_length), rotary.dim, torch.float64, rotary.base)
    return Stack(
        heads=config.heads,
        pre_norm=True,
        activation=config.activation,
        eps=config.norm_eps,
        embed=linear_weights(model.embed),
        embed_scale=1.0,
        position=None,
        layers=[_block_layer(block) for block in blocks],
        final_norm=_norm(model.norm),
        readout=linear_weights(model.readout),
        kv_heads=blocks[0].attention.kv_heads,
        rotation=torch.cat((angle.cos(), angle.sin()), dim=1).float(),
        gated=True,
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
        kv_heads=config.heads,
    )


def _whisper_decoder(model: Whisper) -> Stack:
    config = model.config
    return Stack(
        heads=config.heads,
        kv_heads=config.heads,
        pre_norm=True,
        activation=config.activation,
        eps=_eps(model.decoder),
        embed=linear_weights(model.embed),
        embed_scale=1.0,
        position=_position_table(model.positions, "learned", config.max_length),
        layers=[_decoder_layer(cast(WhisperBlock, block)) for block in model.decoder],
        final_norm=_norm(model.decoder_norm),
        readout=linear_weights(model.readout),
    )


def _block_layer(block: Block | EncoderBlock | LlamaBlock) -> LayerWeights:
    norms = _norm(block.attention_norm), _norm(block.ffn_norm)
    return _layer(block.attention, None, block.ffn, norms)


def _decoder_layer(block: DecoderBlock | WhisperBlock) -> LayerWeights:
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
    ffn: FeedForward | GatedFeedForward | None,
    norms: tuple[NormWeights | None, NormWeights | None],
) -> LayerWeights:
    attention_norm, ffn_norm = norms
    assert ffn is not None
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
    """Return the scale of the dot products; raise `Unsupported` for any other score or alignment."""
    attend = attention.attend
    if not isinstance(attend.score, Dot | ScaledDot):
        raise _unsupported(f"the score {type(attend.score).__name__}")
    if not isinstance(attend.align, Softmax):
        raise _unsupported(f"the alignment {type(attend.align).__name__}")
    if attend.backend != "auto":
        raise _unsupported(f"the explicit backend {attend.backend!r}")
    if attend.watchers or attend.ablations:
        raise _unsupported("watched or ablated attention")
    return attend.score.scale_for(attention.head_dim)


def _position_table(encoding: Any, name: str, length: int) -> Float[Tensor, "positions dim"] | None:
    if encoding is not None:
        try:
            return cast(Tensor, encoding(length)).detach().float()
        except InputError as error:  # e.g. one-hot vectors have fewer positions than the model
            raise _unsupported(str(error)) from None
    if name != "none":
        raise _unsupported(f"the position {name!r}")
    return None


def _norm(module: nn.Module) -> NormWeights | None:
    if isinstance(module, nn.RMSNorm):
        return NormWeights(module.weight.detach().float(), None)
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
