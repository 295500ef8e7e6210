"""Recurrent layers, run over a whole sequence or step by step with part of the input projected beforehand.

    rnn     h' = tanh(W x + U h)                                                                (Elman 1990)
    gru     r, z = sigmoid(W x + U h),   n = tanh(W x + r * U h),   h' = (1 - z) * n + z * h    (Cho et al. 2014)
    lstm    i, f, o = sigmoid(W x + U h),   g = tanh(W x + U h),   c' = f * c + i * g,   h' = o * tanh(c')
                                                                                (Hochreiter and Schmidhuber 1997)

where each gate has its own W and U, and each W x and U h a bias. The weights have the layout of PyTorch (`nn.RNN`,
`nn.GRU`, `nn.LSTM`). Where the whole input is known, PyTorch runs the sequence in one call. Where a step's input
depends on the attention of the previous step, the known part of W x is computed for all steps at once, and each step
computes only the rest.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.precision import upcast_dtype
from qkv.nn import fast
from qkv.nn.fast import StepLinear, autocast_once, dropout
from qkv.types import Float, Int, Tensor

Cell = Literal["gru", "lstm", "rnn"]
CELLS: dict[str, type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}

LayerState = tuple[Float[Tensor, "batch hidden"], ...]  # state of one layer: (h,), or (h, c) for an LSTM
Gates = Float[Tensor, "batch gates"]  # W x + b or U h + c of all gates, concatenated


class Recurrent(nn.Module):
    """A stack of recurrent layers, with dropout between them.

    The state of all layers is one tensor [batch, layers, state_dim]: h of each layer, or [h ; c] for an LSTM.
    """

    def __init__(self, cell: str, inputs: int, hidden: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.cell = cell
        self.hidden = hidden
        self.state_dim = 2 * hidden if cell == "lstm" else hidden  # size of h, or of [h ; c]
        self.dropout = dropout
        self.rnn = CELLS[cell](inputs, hidden, batch_first=True)
        self.upper_layers = nn.ModuleList(CELLS[cell](hidden, hidden, batch_first=True) for _ in range(layers - 1))

    @property
    def layers(self) -> list[nn.RNNBase]:
        """The layers, bottom first. Each is a separate module so that dropout between them uses PyTorch's generator:
        cuDNN's own dropout state is in no checkpoint and no CUDA graph.
        """
        return [self.rnn, *self.upper_layers]

    def forward(
        self, x: Float[Tensor, "batch length inputs"], state: Float[Tensor, "batch layers state_dim"] | None = None
    ) -> tuple[Float[Tensor, "batch length hidden"], Float[Tensor, "batch layers state_dim"]]:
        """Return the outputs of the last layer and the final state; the initial state defaults to zeros."""
        dtype = self.rnn.all_weights[0][0].dtype
        if state is None:
            state = x.new_zeros(x.shape[0], len(self.layers), self.state_dim)
        new_state: list[LayerState] = []
        # Disable autocast: PyTorch would run cuDNN in float16 whatever the autocast dtype, and the gradient of a mean
        # over thousands of tokens underflows there.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(dtype)
            for layer, layer_state in zip(self.layers, self.unpack_state(state.to(dtype)), strict=True):
                if new_state:
                    x = dropout(x, self.dropout) if self.training else x
                x, last = self._run_layer(layer, x, layer_state)
                new_state.append(last)
        return x, self.pack_state(new_state)

    def _run_layer(
        self, layer: nn.RNNBase, x: Float[Tensor, "batch length inputs"], state: LayerState
    ) -> tuple[Float[Tensor, "batch length hidden"], LayerState]:
        """Run one layer over all steps."""
        if isinstance(layer, nn.GRU):
            x, h = fast.gru_layer(layer, x, state[0])
            return x, (h,)
        first = tuple(part[None].contiguous() for part in state)
        x, last = layer(x, first if self.cell == "lstm" else first[0])
        return x, tuple(part[0] for part in (last if self.cell == "lstm" else (last,)))

    def unroll(self, x: Float[Tensor, "batch length inputs"]) -> "StepwiseRNN":
        """Return a step function, with W x computed for all steps at once.

        x is the part of the input that is known before the first step; each call of the step function takes the rest
        (see `StepwiseRNN`).
        """
        return StepwiseRNN(self.cell, self.layers, x.transpose(0, 1), self.dropout if self.training else 0.0)

    def unpack_state(self, state: Float[Tensor, "batch layers state_dim"]) -> list[LayerState]:
        """Split a state tensor into the state of each layer: (h,), or (h, c) for an LSTM."""
        return [layer.split(self.hidden, dim=-1) for layer in state.unbind(1)]

    def pack_state(self, layers: Sequence[LayerState]) -> Float[Tensor, "batch layers state_dim"]:
        """Concatenate the states of all layers into one tensor."""
        return torch.stack([torch.cat(layer, dim=-1) for layer in layers], dim=1)


class BiRNN(nn.Module):
    """h_i = [forward_i ; backward_i], or forward_i with one direction; also returns h_final.

    h_final = [forward_n ; backward_1], or forward_n: the states after each direction has read all n tokens.

    The backward layer runs over each sentence reversed, so that padding comes last in both directions and no packing is
    needed.
    """

    def __init__(self, cell: str, inputs: int, features: int, directions: int = 2) -> None:
        super().__init__()
        self.forward_rnn = Recurrent(cell, inputs, features // directions)
        self.backward_rnn = Recurrent(cell, inputs, features // directions) if directions == 2 else None

    def forward(
        self,
        x: Float[Tensor, "batch length inputs"],
        lengths: Int[Tensor, "batch"],
        reverse: Int[Tensor, "batch length"],
    ) -> tuple[Float[Tensor, "batch length features"], Float[Tensor, "batch features"]]:
        """Return h_i of all tokens, and h_final; `reverse` is `reverse_index(lengths, length)` for all layers."""
        outputs, _ = self.forward_rnn(x)
        if self.backward_rnn is None:
            return outputs, last_states(outputs, lengths, 1)
        backward, _ = self.backward_rnn(gather_time(x, reverse))
        outputs = torch.cat((outputs, gather_time(backward, reverse)), dim=-1)
        return outputs, last_states(outputs, lengths, 2)


def last_states(
    h: Float[Tensor, "batch length features"], lengths: Int[Tensor, "batch"], directions: int
) -> Float[Tensor, "batch features"]:
    """Return [forward_n ; backward_1], or forward_n with one direction; zeros for an empty sentence."""
    features = h.shape[-1] // directions
    last_index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, -1, features)
    forward, backward = h[..., :features].gather(1, last_index)[:, 0], h[:, 0, features:]
    return torch.cat((forward, backward), dim=-1).masked_fill(lengths[:, None] < 1, 0.0)


def reverse_index(lengths: Int[Tensor, "batch"], longest: int) -> Int[Tensor, "batch length"]:
    """Return indices that reverse each sentence and leave its padding in place."""
    position = torch.arange(longest, device=lengths.device)
    return torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)


def gather_time(
    x: Float[Tensor, "a b features"], index: Int[Tensor, "a b"], dim: int = 1
) -> Float[Tensor, "a b features"]:
    """Reorder the time axis `dim` of each row."""
    return x.gather(dim, index[:, :, None].expand_as(x))


class Bridge(nn.Module):
    """Initial state of the decoder, h or [h ; c] of each layer, from h_final of each layer of the encoder.

    linear    B h_final, with the layers concatenated on both sides
    tanh      tanh(B h_final)
    none      h_final of the same layer, for h and also for c of an LSTM: the encoder's c is not at the end of the
              sentence, but of the padding
    zeros     0
    """

    def __init__(
        self, kind: Literal["linear", "tanh", "none", "zeros"], inputs: tuple[int, int], outputs: tuple[int, int]
    ) -> None:
        """`inputs` and `outputs` are the layers and the features per layer of the encoder and of the decoder."""
        super().__init__()
        self.kind, self.outputs = kind, outputs
        sizes = inputs[0] * inputs[1], outputs[0] * outputs[1]
        self.project = nn.Linear(*sizes) if kind in ("linear", "tanh") else None  # B

    def forward(self, final: Float[Tensor, "batch encoder_layers features"]) -> Float[Tensor, "batch layers state_dim"]:
        layers, state_dim = self.outputs
        if self.kind == "zeros":
            return final.new_zeros(len(final), layers, state_dim)
        if self.project is None:
            return final.repeat(1, 1, state_dim // final.shape[-1])
        state = self.project(final.flatten(1)).unflatten(1, (layers, state_dim))
        return state.tanh() if self.kind == "tanh" else state


class StepwiseRNN:
    """Recurrent layers run step by step; whatever does not depend on the previous step is computed once for all."""

    def __init__(
        self, cell: str, layers: Sequence[nn.RNNBase], x: Float[Tensor, "length batch inputs"], dropout: float = 0.0
    ) -> None:
        self.cell = cell
        self.dropout = dropout
        self.layers: list[tuple[StepLinear, StepLinear]] = []  # W x and U h
        for layer in layers:
            w, u, b, c = map(autocast_once, layer.parameters())
            base = b.expand(*x.shape[:2], -1)
            if not self.layers:
                w_known, w = w.split((x.shape[-1], w.shape[1] - x.shape[-1]), dim=1)
                base = F.linear(x, w_known, b)
            self.layers.append((StepLinear(base, w), StepLinear(c.expand(*x.shape[:2], -1), u)))

    def __call__(
        self, state: Sequence[LayerState], extra: Float[Tensor, "batch inputs"] | None = None
    ) -> tuple[Float[Tensor, "batch hidden"], list[LayerState]]:
        """Run the next step on the next x concatenated with `extra`; return its output and the new layer states."""
        new_state: list[LayerState] = []
        for (input_linear, hidden_linear), layer in zip(self.layers, state, strict=True):
            if new_state:
                extra = dropout(new_state[-1][0], self.dropout)
            new_state.append(self._cell_step(input_linear(extra), hidden_linear(layer[0]), layer))
        return new_state[-1][0], new_state

    def _cell_step(self, input_gates: Gates, hidden_gates: Gates, state: LayerState) -> LayerState:
        """Return h', or h' and c', from W x and U h (see the module docstring)."""
        if self.cell == "rnn":
            return (torch.tanh(input_gates + hidden_gates),)
        if self.cell == "gru":
            return (fast.gru_cell(input_gates, hidden_gates, state[0].to(input_gates.dtype)),)
        # c is a sum over all steps and accumulates at least in float32
        return fast.lstm_cell(input_gates, hidden_gates, state[1].to(upcast_dtype(input_gates.dtype)))
