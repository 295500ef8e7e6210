"""Whisper (Radford et al. 2023): speech recognition with an encoder-decoder Transformer.

    x = gelu(Conv_2(gelu(Conv_1(log-mel spectrogram)))) + PE      kernels of 3 frames, Conv_2 with stride 2
    encoder block:  x = x + SelfAttention(LN(x));        x = x + FFN(LN(x))
    memory = LN(x)                                                after the last encoder block

    y_t = E[token t] + P[t]
    decoder block:  y = y + MaskedSelfAttention(LN(y));  y = y + CrossAttention(LN(y), memory);  y = y + FFN(LN(y))
    p(token t + 1) = softmax(E LN(y_t))                           E is also the embedding of the tokens

LN is layer normalization. PE is sinusoidal, P is learned. The input is a 30-second window: 3,000 frames of 10 ms, which
the convolutions reduce to 1,500 positions. The decoder is prompted with special tokens: the start of the transcript,
the language and the task in multilingual models, and "no timestamps".
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field, Strict, model_validator
from torch import nn
from torch.nn import functional as F

from qkv.attention import Causal, KeyValue, Learned
from qkv.attention.encoding import angles
from qkv.config import Config, Count, NonNegativeInt, Rate, Size, TokenIds, require, require_matrix_size
from qkv.errors import ShapeError
from qkv.nn.encoders.log_mel import LogMel
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.interfaces import EncoderDecoder, Source
from qkv.nn.multi_head import BackendName, MultiHeadAttention
from qkv.registry import register
from qkv.types import Float, Int, Tensor

STRIDE = 2  # of the second convolution: frames per encoder position
# Strict(False): accept the lists of JSON.
Head = Annotated[tuple[NonNegativeInt, NonNegativeInt], Strict(False)]  # decoder layer and head
Heads = Annotated[tuple[Head, ...], Strict(False), Field(max_length=2**12)]

PRESETS = {  # Radford et al. 2023, table 1
    name: {"dim": dim, "heads": heads, "encoder_layers": layers, "decoder_layers": layers, "ffn_dim": 4 * dim}
    for name, dim, heads, layers in (
        ("tiny", 384, 6, 4), ("base", 512, 8, 6), ("small", 768, 12, 12), ("medium", 1024, 16, 24),
        ("large", 1280, 20, 32),
    )
}  # fmt: skip


class WhisperConfig(Config):
    """Sizes of the model, and the tokens that decoding begins with or never generates."""

    vocab_size: Size = 51864  # number of tokens
    mels: Count = 80  # features of a frame
    dim: Size = 384  # width of embeddings and hidden states
    heads: Count = 6  # attention heads per layer
    encoder_layers: Count = 4  # number of encoder blocks
    decoder_layers: Count = 4  # number of decoder blocks
    ffn_dim: Size = 1536  # width of the feed-forward networks
    positions: Size = 1500  # encoder positions of a window, two frames each
    max_length: Size = 448  # maximum number of tokens, the prompt included
    dropout: Rate = 0.0  # of embeddings and residual branches
    attention_dropout: Rate = 0.0  # of the attention weights
    activation_dropout: Rate = 0.0  # inside the feed-forward networks
    activation: Activation = "gelu"  # of the feed-forward networks
    backend: BackendName = "auto"  # attention implementation; auto: the fastest
    begin_token: NonNegativeInt | None = None  # first token of the prompt
    prompt_tokens: TokenIds = ()  # tokens of the prompt after the first
    end_token: NonNegativeInt | None = None
    pad_token: NonNegativeInt | None = None
    suppress_tokens: TokenIds = ()  # never generated
    begin_suppress_tokens: TokenIds = ()  # not generated as the first token after the prompt
    alignment_heads: Heads = ()  # (decoder layer, head) pairs whose cross-attention aligns tokens with the audio

    @model_validator(mode="after")
    def _check(self) -> "WhisperConfig":
        require(self.dim % self.heads == 0, f"dim {self.dim} must be divisible by heads {self.heads}")
        require(self.dim % 2 == 0 and self.dim > 2, f"dim {self.dim} must be even and more than 2")
        widest = max(3 * self.dim, self.vocab_size, self.ffn_dim, self.positions, self.max_length, 3 * self.mels)
        require_matrix_size(self.dim, widest)
        ids = (*self.prompt_tokens, *self.suppress_tokens, *self.begin_suppress_tokens)
        for token in (*ids, self.begin_token, self.end_token, self.pad_token):
            require(token is None or token < self.vocab_size, f"token {token} is not one of {self.vocab_size} tokens")
        require(len(self.prompt_tokens) + 2 < self.max_length, "prompt_tokens must be shorter than max_length")
        for layer, head in self.alignment_heads:
            inside = layer < self.decoder_layers and head < self.heads
            require(inside, f"alignment_heads: there is no head {head} in a decoder layer {layer}")
        return self


@dataclass(frozen=True)
class Memory:
    """Output of the encoder."""

    hidden: Float[Tensor, "batch positions dim"]  # LN(x)


@dataclass(frozen=True)
class State:
    """Decoder state between tokens."""

    source_kv: tuple[KeyValue, ...]  # keys and values of the memory, for the cross-attention of each layer
    past: tuple[KeyValue, ...] | None  # key/value cache of each layer; None before the first token
    position: int  # of the next token


@register("model", "whisper")
class Whisper(EncoderDecoder[Memory, State]):
    """Convolutions and a Transformer over a log-mel spectrogram."""

    config_class = WhisperConfig
    presets: ClassVar = PRESETS
    description = "Whisper (Radford et al. 2023): speech recognition with an encoder-decoder Transformer"
    kind_description = "a speech recognizer (for qkv transcribe)"

    encoder_positions: Float[Tensor, "positions dim"]  # PE

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        # Callers compute the input of `encode` with it: model.encode(model.log_mel(waveforms, lengths)[0]).
        self.log_mel = LogMel(config.mels, frames=STRIDE * config.positions)
        self.conv1 = nn.Conv1d(config.mels, config.dim, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(config.dim, config.dim, kernel_size=3, stride=STRIDE, padding=1)
        self.register_buffer("encoder_positions", sinusoids(config.positions, config.dim), persistent=False)
        self.encoder = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.encoder_norm = nn.LayerNorm(config.dim)
        self.embed = nn.Embedding(config.vocab_size, config.dim)  # E
        self.positions = Learned(config.max_length, config.dim)  # P, of the decoder
        self.decoder = nn.ModuleList(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.decoder_norm = nn.LayerNorm(config.dim)
        self.readout = nn.Linear(config.dim, config.vocab_size, bias=False)  # E
        self.dropout = Dropout(config.dropout)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.readout.weight = self.embed.weight

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return [*self.encoder, *self.decoder]

    def encode(self, source: Source, source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        """Encode windows of log-mel features; all have the same length, so `source_lengths` must be None."""
        frames = STRIDE * self.config.positions
        if source_lengths is not None:
            raise ShapeError(f"Whisper takes no source_lengths: all windows have {frames} frames")
        if source.shape[1:] != (frames, self.config.mels):
            raise ShapeError(f"expected windows [batch, {frames}, {self.config.mels}], got {list(source.shape)}")
        features = source.to(self.conv1.weight.dtype).transpose(1, 2)
        x = F.gelu(self.conv2(F.gelu(self.conv1(features)))).transpose(1, 2)
        x = self.dropout(x + self.encoder_positions)
        for block in self.encoder:
            x = block(x)
        return Memory(self.encoder_norm(x))

    def init_state(self, memory: Memory) -> State:
        """Return the decoder state before the first token, with the keys and values of the recording."""
        blocks = [cast(DecoderBlock, block) for block in self.decoder]
        return State(tuple(block.cross_attention.keys_values(memory.hidden) for block in blocks), None, 0)

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each token, and the new state."""
        y = self.dropout(self.embed(tokens) + self.positions(tokens.shape[1], state.position))
        present: list[KeyValue] = []
        for block, source, past in zip(
            self.decoder, state.source_kv, state.past or (None,) * len(self.decoder), strict=True
        ):
            y, cache = block(y, source, past)
            present.append(cache)
        logits = self.readout(self.decoder_norm(y))
        return logits, State(state.source_kv, tuple(present), state.position + tokens.shape[1])


class EncoderBlock(nn.Module):
    """x = x + SelfAttention(LN(x));   x = x + FFN(LN(x))."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.attention = build_attention(config)
        self.attention_norm = nn.LayerNorm(config.dim)
        self.ffn = FeedForward(config.dim, config.ffn_dim, config.activation_dropout, config.activation)
        self.ffn_norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "batch positions dim"]) -> Float[Tensor, "batch positions dim"]:
        attended, _ = self.attention(self.attention_norm(x))
        x = x + self.dropout(attended)
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class DecoderBlock(nn.Module):
    """y = y + MaskedSelfAttention(LN(y));   y = y + CrossAttention(LN(y), memory);   y = y + FFN(LN(y))."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.self_attention = build_attention(config)
        self.self_norm = nn.LayerNorm(config.dim)
        self.cross_attention = build_attention(config)
        self.cross_norm = nn.LayerNorm(config.dim)
        self.ffn = FeedForward(config.dim, config.ffn_dim, config.activation_dropout, config.activation)
        self.ffn_norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, y: Float[Tensor, "batch target dim"], source: KeyValue, past: KeyValue | None = None
    ) -> tuple[Float[Tensor, "batch target dim"], KeyValue]:
        """Return the block's output after `past`, and the key/value cache for the next call."""
        attended, present = self.self_attention(self.self_norm(y), Causal(), past)
        y = y + self.dropout(attended)
        y = y + self.dropout(self.cross_attention.cross(self.cross_norm(y), source))
        return y + self.dropout(self.ffn(self.ffn_norm(y))), present


def build_attention(config: WhisperConfig) -> MultiHeadAttention:
    """Return multi-head attention. Its keys have a bias, unlike Whisper's: that adds the same number to all scores of
    a query, so the softmax is unchanged.
    """
    return MultiHeadAttention(config.dim, config.heads, config.attention_dropout, backend=config.backend)


def sinusoids(length: int, dim: int) -> Float[Tensor, "length dim"]:
    """PE(pos, i) = sin(pos w_i),   PE(pos, d/2 + i) = cos(pos w_i),   w_i = 10000^(-i / (d/2 - 1))."""
    # angles are pos * base^(-2i/d), which is pos w_i for base = 10000^(d / (d - 2))
    angle = angles(torch.arange(length), dim, torch.float64, base=10000.0 ** (dim / (dim - 2)))
    return torch.cat((angle.sin(), angle.cos()), dim=1).float()
