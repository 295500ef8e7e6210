"""Recurrent encoder-decoders: a fixed context vector, or attention over the source.

The encoder computes a state h_i of each source token i, by default h_i = [forward_i ; backward_i] of a bidirectional
RNN, and h_final, a summary of the n tokens: [forward_n ; backward_1] of each layer, the states after each direction has
read all tokens. For encoders that are not recurrent, h_final is the mean of all h_i (`qkv.nn.encoders`). s_t is the
state of the decoder, y_{t-1} the previous token or its embedding, o_t the input of the readout O:

    s_0 = tanh(B h_final),   p(y_t) = softmax(O o_t), mixed with the weights a_t if `copying` is set (`qkv.nn.copying`)

RNN(x, s) is by default a GRU (`qkv.nn.rnn` has all cells). Each gate has its own W, U, b and b'; * is elementwise:

    r, z = sigmoid(W x + b + U s + b'),   n = tanh(W x + b + r * (U s + b')),   RNN(x, s) = (1 - z) * n + z * s

For an LSTM, s is [hidden ; cell] in the recurrence and `hidden` elsewhere. The bridge B is one matrix, from h_final of
all encoder layers to s_0 of all decoder layers. With bridge = "none", s_0 of a layer is h_final of the same encoder
layer, for an LSTM both as hidden and as cell. B and R have biases; O and the matrices of the score have none.

decoder = "plain"       Cho et al. (2014); Sutskever, Vinyals and Le (2014)
    s_t = RNN([y_{t-1} ; c], s_{t-1}),   o_t = tanh(R [s_t ; y_{t-1} ; c]),   c = h_final of the last layer
    context = "initial": without c;   "every_step": with c, and s_0 = 0;   "both": with c, and s_0 from the bridge

decoder = "bahdanau"    Bahdanau, Cho and Bengio (2015): attention with the previous state, before the recurrence
    a_ti = softmax_i(score(s_{t-1}, h_i)),   score(s, h) = v_a . tanh(W_a s + U_a h)
    c_t = sum_i a_ti h_i
    s_t = RNN([y_{t-1} ; c_t], s_{t-1})
    o_t = tanh(R [s_t ; c_t ; y_{t-1}])
    In the paper, o_t is a maxout layer on s_{t-1}, c_t and y_{t-1}, and s_0 = tanh(B backward_1).

decoder = "luong"       Luong, Pham and Manning (2015): attention with the new state, after the recurrence
    s_t = RNN([y_{t-1} ; o_{t-1}], s_{t-1})            with input feeding, else s_t = RNN(y_{t-1}, s_{t-1})
    a_ti = softmax_i(score(s_t, h_i)),                 with a score of the paper, or any other:
           dot: s . h,   bilinear: s W_a h,   concat: v_a . tanh(W_a [s ; h]),   location: (W_a s)_i
    c_t = sum_i a_ti h_i
    o_t = tanh(R [s_t ; c_t])                          the attentional state
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import model_validator
from torch import nn

from qkv.attention import Sizes
from qkv.config import AlignTerm, Config, Count, EncoderTerm, Probability, Rate, ScoreTerm, Size, Term, require
from qkv.nn.copying import PointerGenerator, attach_source_tokens, check_copying, mix_copy_distribution
from qkv.nn.embedding import ScaledEmbedding
from qkv.nn.encoders.source_encoders import EncoderSizes
from qkv.nn.fast import Dropout, StepLinear
from qkv.nn.interfaces import EncoderDecoder, Source, SourceEncoder
from qkv.nn.multi_head import BackendName, check_terms
from qkv.nn.pooling import full_lengths
from qkv.nn.rnn import Bridge, Cell, Recurrent
from qkv.nn.source_attention import EncodedSource, build_source_attention, step_numbers
from qkv.nn.source_pointer import ConsumingTokens, PointerState, add_next_word_state, build_pointer
from qkv.registry import register
from qkv.types import Float, Int, Tensor


class RNNSeq2SeqConfig(Config):
    """Sizes and terms of the model; the vocabulary sizes come from the data."""

    source_vocab_size: Size = 30000  # source tokens
    target_vocab_size: Size = 30000  # target tokens
    cell: Cell = "gru"  # recurrent cell: gru, lstm, or rnn (tanh)
    layers: Count = 1  # layers of the decoder, and of the encoder unless encoder.layers is set
    embedding_dim: Size = 128  # size of the token embeddings
    hidden_dim: Size = 128  # size of s_t, and of h_i (both directions together) unless encoder.dim is set
    encoder: EncoderTerm = Term("encoder", "rnn")  # source encoder: rnn, conv, transformer; pyramid: speech
    bridge: Literal["none", "linear", "tanh"] = "tanh"  # B: from h_final to s_0; none: copy
    decoder: Literal["bahdanau", "luong", "plain"] = "bahdanau"  # equations of the decoder
    context: Literal["initial", "every_step", "both"] = "initial"  # plain: use h_final for s_0, as the input c, or both
    input_feeding: bool = True  # luong: feed the attentional state to the next step
    score: ScoreTerm = Term("score", "additive")  # score of decoder states and encoder states
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    coverage: bool = False  # add w sum_{u<t} a_ui, w a learned vector, to the key of h_i (See et al. 2017)
    copying: bool = False  # copy source tokens: pointer-generator (See et al. 2017; `qkv.nn.copying`)
    pointer: bool = False  # add the encoder state of the next source word to the target embeddings, for parsing
    consuming_tokens: ConsumingTokens = ()  # after these target tokens, the pointer moves to the next source word
    tie_embeddings: bool = False  # tie target embedding and readout, and source embedding if the sizes are equal
    scheduled_sampling: Probability = 0.0  # probability of feeding the model's own token in training
    dropout: Rate = 0.1  # dropout of embeddings, between layers and of o_t
    context_dropout: Rate | None = None  # dropout of the encoder states h_i; None: same as dropout
    max_length: Size = 512  # maximum source and target length
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms

    @model_validator(mode="after")
    def _check(self) -> "RNNSeq2SeqConfig":
        require(self.layers * self.hidden_dim <= 2**24, "layers * hidden_dim must be at most 2^24")
        self.encoder.cls.check_options(self.encoder_dim, self.encoder.options)
        if self.decoder == "plain":
            for key in ("score", "align", "coverage", "copying", "context_dropout"):
                is_default = getattr(self, key) == type(self).model_fields[key].default
                require(is_default, f"{key} does not apply to decoder = 'plain', which has no attention")
        else:
            require(self.context == "initial", "context applies to decoder = 'plain' only")
            check_terms(self.attention_sizes, cross_attention=True, align=self.align, score=self.score)
        require(self.input_feeding or self.decoder == "luong", "input_feeding applies to decoder = 'luong' only")
        if self.coverage:
            require(self.score.name != "location", "coverage needs a score that depends on the keys")
            require(self.input_feeding, "coverage needs input_feeding: otherwise all steps are computed at once")
        check_copying(self)  # copying needs a shared vocabulary, and a source of tokens
        if self.bridge == "none":
            require(
                self.encoder.cls.has_final_states
                and self.encoder_dim == self.hidden_dim
                and self.encoder.options.get("layers") in (None, self.layers),
                "bridge = 'none' copies the final states of an encoder with the layers and hidden_dim of the decoder: "
                "set bridge to linear or tanh",
            )
        return self

    @property
    def encoder_dim(self) -> int:
        """Size of h_i, both directions together."""
        return self.encoder.options.get("dim") or self.hidden_dim

    @property
    def attention_sizes(self) -> Sizes:
        return Sizes(query=self.hidden_dim, key=self.encoder_dim, hidden=self.hidden_dim, max_keys=self.max_length)

    @property
    def pre_output_dim(self) -> int:
        """Size of o_t: that of an embedding if the readout is tied to it."""
        return self.embedding_dim if self.tie_embeddings else self.hidden_dim


@dataclass(frozen=True)
class Memory:
    """Encoded source, plus what each target token updates: the coverage (in `source`) and the pointer."""

    final: Float[Tensor, "batch layers features"]  # h_final of each layer
    source: EncodedSource | None  # h_i, their keys, coverage so far, tokens to copy; None for the plain decoder
    pointer: PointerState | None = None  # h_i, first tokens of the words, number of words consumed so far


@dataclass(frozen=True)
class State:
    """Decoder state between tokens."""

    memory: Memory
    step: Int[Tensor, "*batch"]  # number of tokens so far, of all rows or of each; "local_m" attends around it
    hidden: Float[Tensor, "batch layers state_dim"]  # s_t of each layer; [hidden ; cell] for an LSTM
    attentional_state: Float[Tensor, "batch pre_output_dim"] | None = None  # o_t, with input feeding


@register("model", "rnn_seq2seq")
class RNNSeq2Seq(EncoderDecoder[Memory, State]):
    """Recurrent decoder on a recurrent, convolutional or Transformer encoder."""

    config_class = RNNSeq2SeqConfig
    description = "recurrent encoder-decoder with or without attention (Bahdanau et al. 2015; Luong et al. 2015)"

    def __init__(self, config: RNNSeq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder: SourceEncoder = config.encoder.build(
            EncoderSizes(
                vocab_size=config.source_vocab_size, embedding_dim=config.embedding_dim, dim=config.hidden_dim,
                layers=config.layers, dropout=config.dropout, max_length=config.max_length,
                cell=config.cell, tie_embeddings=config.tie_embeddings,
            )
        )  # fmt: skip
        self.log_mel = self.encoder.log_mel  # used by callers to compute the source of "pyramid"; None for texts
        self.decoder = DECODERS[config.decoder](config, self.encoder)
        self.readout = nn.Linear(config.pre_output_dim, config.target_vocab_size, bias=False)  # O
        self.dropout = Dropout(config.dropout)
        self.pointer = build_pointer(config, self.encoder.dim, config.embedding_dim)
        self.copying = PointerGenerator(config.pre_output_dim) if config.copying else None
        self.context_dropout = Dropout(config.dropout if config.context_dropout is None else config.context_dropout)
        if config.tie_embeddings:  # Press and Wolf (2017)
            self.readout.weight = self.decoder.embed.weight
            if config.source_vocab_size == config.target_vocab_size:
                self.encoder.embed.weight = self.decoder.embed.weight

    def encode(
        self,
        source: Source,
        source_lengths: Int[Tensor, "batch"] | None = None,
        word_starts: Int[Tensor, "batch words"] | None = None,  # index of the first token of each source word
    ) -> Memory:
        """Encode the source (see `EncoderDecoder`); `word_starts` is required if the config has a pointer."""
        encoded = self.encoder(source, full_lengths(source) if source_lengths is None else source_lengths)
        pointer = None if self.pointer is None else self.pointer.init_state(encoded.values, word_starts)
        lengths = source_lengths if encoded.lengths is None else encoded.lengths  # "pyramid" shortens the source
        encoded_source = self.decoder.precompute(self.context_dropout(encoded.values), lengths)
        return Memory(encoded.final, attach_source_tokens(self.copying, encoded_source, source), pointer)

    def init_state(self, memory: Memory) -> State:
        """Return the decoder state before the first token."""
        return self.decoder.init_state(memory)

    def decode(self, target: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target vocabulary"]:
        """Return the logits after each target token; with scheduled sampling in training if it is configured."""
        if self.training and self.config.scheduled_sampling > 0:
            return self.decode_with_sampling(target, memory, self.config.scheduled_sampling)
        return super().decode(target, memory)

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each token, and the new state."""
        y = self.dropout(self.decoder.embed(tokens))
        y, pointer = add_next_word_state(self.pointer, y, tokens, state.memory.pointer)  # unchanged without a pointer
        o, state = self.decoder(y, replace(state, memory=replace(state.memory, pointer=pointer)))
        o = self.dropout(o)
        # With copying, the logits are log p(y_t) (`qkv.nn.copying`), and the weights a_t are dropped from the source.
        logits, source = mix_copy_distribution(self.copying, self.readout(o), o, state.memory.source)
        return logits, replace(state, memory=replace(state.memory, source=source), step=state.step + tokens.shape[1])


DecoderOutput = tuple[Float[Tensor, "batch target pre_output_dim"], State]  # o_t after each token, and the final state


class RNNDecoder(nn.Module, ABC):
    """Embeddings, recurrent layers with their initial state, and the layer before the readout, which computes o_t."""

    def __init__(
        self, config: RNNSeq2SeqConfig, encoder: SourceEncoder, extra_input_dim: int, pre_output_input_dim: int
    ) -> None:
        """`extra_input_dim` is the size of the input of the RNN in addition to the embedding: c, c_t or o_{t-1}."""
        super().__init__()
        embedding = ScaledEmbedding if config.tie_embeddings else nn.Embedding  # sqrt(d) E if tied to O
        self.embed = embedding(config.target_vocab_size, config.embedding_dim)
        self.rnn = Recurrent(
            config.cell, config.embedding_dim + extra_input_dim, config.hidden_dim, config.layers, config.dropout
        )
        bridge = "zeros" if config.context == "every_step" else config.bridge  # "zeros": s_0 = 0
        self.bridge = Bridge(bridge, (encoder.final_layers, encoder.dim), (config.layers, self.rnn.state_dim))  # B
        self.pre_output = nn.Linear(pre_output_input_dim, config.pre_output_dim)  # R

    def precompute(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> EncodedSource | None:
        """Return the keys and values of the source for all steps, or None without attention."""
        return None

    def init_state(self, memory: Memory) -> State:
        """Return the state with s_0."""
        step = torch.zeros((), dtype=torch.long, device=memory.final.device)
        return State(memory, step, self.bridge(memory.final))

    @abstractmethod
    def forward(self, y: Float[Tensor, "batch target embedding_dim"], state: State) -> DecoderOutput:
        """Decode any number of tokens."""


class PlainDecoder(RNNDecoder):
    """s_t = RNN([y_{t-1} ; c], s_{t-1}),   o_t = tanh(R [s_t ; y_{t-1} ; c]);   without c if context = "initial"."""

    def __init__(self, config: RNNSeq2SeqConfig, encoder: SourceEncoder) -> None:
        context_dim = 0 if config.context == "initial" else encoder.dim
        super().__init__(config, encoder, context_dim, config.hidden_dim + config.embedding_dim + context_dim)
        self.feeds_context = context_dim > 0

    def forward(self, y: Float[Tensor, "batch target embedding_dim"], state: State) -> DecoderOutput:
        if self.feeds_context:
            c = state.memory.final[:, -1:].expand(-1, y.shape[1], -1)  # h_final of the last layer
            y = torch.cat((y, c), dim=-1)
        s, hidden = self.rnn(y, state.hidden)
        o = self.pre_output(torch.cat((s, y), dim=-1)).tanh()
        return o, replace(state, hidden=hidden)


class AttentionDecoder(RNNDecoder):
    """Base class of decoders with attention over the source; `input_dims` are the sizes that `RNNDecoder` takes."""

    def __init__(self, config: RNNSeq2SeqConfig, encoder: SourceEncoder, *input_dims: int) -> None:
        super().__init__(config, encoder, *input_dims)
        self.attention = build_source_attention(config, encoder.dim)

    def precompute(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> EncodedSource:
        return self.attention.precompute(values, lengths)


class BahdanauDecoder(AttentionDecoder):
    """Attention before the recurrence, with the previous state as the query."""

    def __init__(self, config: RNNSeq2SeqConfig, encoder: SourceEncoder) -> None:
        super().__init__(config, encoder, encoder.dim, config.hidden_dim + encoder.dim + config.embedding_dim)

    def forward(self, y: Float[Tensor, "batch target embedding_dim"], state: State) -> DecoderOutput:
        rnn_step = self.rnn.unroll(y)  # computes W y of all steps; each call of rnn_step runs the next step
        layers = self.rnn.unpack_state(state.hidden)  # (hidden,) of each layer, or (hidden, cell) for an LSTM
        source = state.memory.source
        states, contexts = [], []
        for step in step_numbers(state.step, y.shape[1]):
            query = layers[-1][0]  # s_{t-1} of the last layer
            # a_ti = softmax_i(score(s_{t-1}, h_i)),   c_t = sum_i a_ti h_i
            context, source = self.attention(query[:, None], source, step)
            context = context.squeeze(1)  # not context[:, 0], whose backward copies
            s, layers = rnn_step(layers, context)  # s_t = RNN([y_{t-1} ; c_t], s_{t-1})
            states.append(s)
            contexts.append(context)
        s, c = torch.stack(states, dim=1), torch.stack(contexts, dim=1)
        o = self.pre_output(torch.cat((s, c, y), dim=-1)).tanh()  # o_t = tanh(R [s_t ; c_t ; y_{t-1}]) of all steps
        return o, replace(state, hidden=self.rnn.pack_state(layers), memory=replace(state.memory, source=source))


class LuongDecoder(AttentionDecoder):
    """Attention after the recurrence, with the new state as the query."""

    def __init__(self, config: RNNSeq2SeqConfig, encoder: SourceEncoder) -> None:
        feedback_dim = config.pre_output_dim if config.input_feeding else 0
        super().__init__(config, encoder, feedback_dim, config.hidden_dim + encoder.dim)
        self.input_feeding = config.input_feeding

    def init_state(self, memory: Memory) -> State:
        """Return the state with s_0 and, with input feeding, o_0 = 0."""
        state = super().init_state(memory)
        if not self.input_feeding:
            return state
        o = state.hidden.new_zeros(len(memory.final), self.pre_output.out_features)
        return replace(state, attentional_state=o)

    def forward(self, y: Float[Tensor, "batch target embedding_dim"], state: State) -> DecoderOutput:
        return self._forward_feeding(y, state) if self.input_feeding else self._forward_at_once(y, state)

    def _forward_feeding(self, y: Float[Tensor, "batch target embedding_dim"], state: State) -> DecoderOutput:
        rnn_step = self.rnn.unroll(y)  # computes W y of all steps; each call of rnn_step runs the next step
        # StepLinear: the same linear layer, one step per call; the gradient of W is one product over all steps
        pre_output = StepLinear.from_linear(self.pre_output, y.shape[1], y.shape[0])
        layers = self.rnn.unpack_state(state.hidden)  # (hidden,) of each layer, or (hidden, cell) for an LSTM
        source = state.memory.source
        o, outputs = state.attentional_state, []
        for step in step_numbers(state.step, y.shape[1]):
            s, layers = rnn_step(layers, o)  # s_t = RNN([y_{t-1} ; o_{t-1}], s_{t-1})
            # a_ti = softmax_i(score(s_t, h_i)),   c_t = sum_i a_ti h_i
            context, source = self.attention(s[:, None], source, step)
            o = pre_output(torch.cat((s, context.squeeze(1)), dim=-1)).tanh()  # o_t = tanh(R [s_t ; c_t])
            outputs.append(o)
        memory = replace(state.memory, source=source)
        state = replace(state, hidden=self.rnn.pack_state(layers), attentional_state=o, memory=memory)
        return torch.stack(outputs, dim=1), state

    def _forward_at_once(self, y: Float[Tensor, "batch target embedding_dim"], state: State) -> DecoderOutput:
        s, hidden = self.rnn(y, state.hidden)  # s_t = RNN(y_{t-1}, s_{t-1}) of all steps
        c, source = self.attention(s, state.memory.source, state.step)  # c_t = sum_i a_ti h_i
        o = self.pre_output(torch.cat((s, c), dim=-1)).tanh()  # o_t = tanh(R [s_t ; c_t])
        return o, replace(state, hidden=hidden, memory=replace(state.memory, source=source))


DECODERS: dict[str, Callable[[RNNSeq2SeqConfig, SourceEncoder], RNNDecoder]]
DECODERS = {"plain": PlainDecoder, "bahdanau": BahdanauDecoder, "luong": LuongDecoder}
