"""Recurrent layers, run over a whole sequence or step by step with part of the input projected beforehand.

    rnn     h' = tanh(W x + U h)                                                                (Elman 1990)
    gru     r, z = sigmoid(W x + U h),   n = tanh(W x + r * U h),   h' = (1 - z) n + z h        (Cho et al. 2014)
    lstm    i, f, o = sigmoid(W x + U h),   g = tanh(W x + U h),   c' = f c + i g,   h' = o tanh(c')
                                                                                (Hochreiter and Schmidhuber 1997)

with a bias per product and the weight layout of PyTorch (`nn.RNN`, `nn.GRU`, `nn.LSTM`). Where the whole input is
known, PyTorch runs the sequence in one call. Where a step's input depends on the attention of the previous step, the
known part of W x is computed for all steps at once, and each step computes only the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from qkv.attention.precision import upcast_dtype
from qkv.nn.dropout import dropout
from qkv.nn.stack import Stack
from qkv.types import Float, Int, Tensor

CELLS: dict[str, type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}

Layer = tuple[Float[Tensor, "batch hidden"], ...]  # state of one layer: (h,), or (h, c) for an LSTM


class Recurrent(nn.Module):
    """A stack of recurrent layers, with dropout between them.

    The state of all layers is one tensor [batch, layers, width]; an LSTM concatenates h and c.
    """

    def __init__(self, cell: str, inputs: int, hidden: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.cell = cell
        self.hidden = hidden
        self.width = 2 * hidden if cell == "lstm" else hidden  # of the state of a layer
        self.dropout = dropout
        self.rnn = CELLS[cell](inputs, hidden, batch_first=True)
        self.upper_layers = Stack(CELLS[cell](hidden, hidden, batch_first=True) for _ in range(layers - 1))

    @property
    def layers(self) -> list[nn.RNNBase]:
        """The layers, bottom first. Each is a separate module so that dropout between them uses PyTorch's generator:
        cuDNN's own dropout state is in no checkpoint and no CUDA graph.
        """
        return [self.rnn, *self.upper_layers]

    def forward(
        self, x: Float[Tensor, "batch length inputs"], state: Float[Tensor, "batch layers width"] | None = None
    ) -> tuple[Float[Tensor, "batch length hidden"], Float[Tensor, "batch layers width"]]:
        """Return the outputs of the last layer and the final state; the initial state defaults to zeros."""
        dtype = self.rnn.all_weights[0][0].dtype
        if state is None:
            state = x.new_zeros(x.shape[0], len(self.layers), self.width)
        new_state: list[Layer] = []
        # Disable autocast: PyTorch would run cuDNN in float16 whatever the autocast dtype, and the gradient of a mean
        # over thousands of tokens underflows there.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(dtype)
            for layer, layer_state in zip(self.layers, self.split(state.to(dtype)), strict=True):
                if new_state:
                    x = dropout(x, self.dropout) if self.training else x
                x, last = self._run_layer(layer, x, layer_state)
                new_state.append(last)
        return x, self.join(new_state)

    def _run_layer(
        self, layer: nn.RNNBase, x: Float[Tensor, "batch length inputs"], state: Layer
    ) -> tuple[Float[Tensor, "batch length hidden"], Layer]:
        """Run one layer over all steps."""
        if self.cell == "gru" and x.device.type == "cpu" and torch.is_grad_enabled():
            # PyTorch also loops over the steps here, and accumulates the gradient of U at each of them.
            cell, states = StepwiseRNN(self.cell, [layer], x.transpose(0, 1)), []
            for _ in range(x.shape[1]):
                h, [state] = cell([state])
                states.append(h)
            return torch.stack(states, dim=1), state
        first = tuple(part[None].contiguous() for part in state)
        x, last = layer(x, first if self.cell == "lstm" else first[0])
        return x, tuple(part[0] for part in (last if self.cell == "lstm" else (last,)))

    def unroll(self, x: Float[Tensor, "batch length inputs"]) -> "StepwiseRNN":
        """Return a step-by-step version of these layers; x is the part of the input known for all steps."""
        return StepwiseRNN(self.cell, self.layers, x.transpose(0, 1), self.dropout if self.training else 0.0)

    def split(self, state: Float[Tensor, "batch layers width"]) -> list[Layer]:
        """Split a state tensor into per-layer states."""
        return [layer.split(self.hidden, dim=-1) for layer in state.unbind(1)]

    def join(self, layers: Sequence[Layer]) -> Float[Tensor, "batch layers width"]:
        """Concatenate per-layer states into one tensor."""
        return torch.stack([torch.cat(layer, dim=-1) for layer in layers], dim=1)


class BiRNN(nn.Module):
    """h_i = [forward_i ; backward_i], or forward_i with one direction; also returns the final state h_n.

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
        """Return h_i at all positions, and h_n; `reverse` is `reverse_index(lengths, length)`, shared by all layers."""
        outputs, _ = self.forward_rnn(x)
        last_index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, -1, outputs.shape[-1])
        last = outputs.gather(1, last_index)[:, 0]
        if self.backward_rnn is not None:
            backward, _ = self.backward_rnn(gather_time(x, reverse))
            backward = gather_time(backward, reverse)
            outputs, last = torch.cat((outputs, backward), dim=-1), torch.cat((last, backward[:, 0]), dim=-1)
        return outputs, last.masked_fill(lengths[:, None] < 1, 0.0)  # zeros for an empty sentence


def reverse_index(lengths: Int[Tensor, "batch"], longest: int) -> Int[Tensor, "batch length"]:
    """Return indices that reverse each sentence and leave its padding in place."""
    position = torch.arange(longest, device=lengths.device)
    return torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)


def gather_time(
    x: Float[Tensor, "batch length dim"], index: Int[Tensor, "batch length"]
) -> Float[Tensor, "batch length dim"]:
    """Reorder the time axis of each row."""
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[-1]))


class Bridge(nn.Module):
    """Initial decoder state from the encoder's final states h_n: B h_n, tanh(B h_n), h_n itself ("none"), or zeros.

    With "none", an LSTM's c is initialised with h as well: the encoder's c is only available after the padding.
    """

    def __init__(self, kind: str, layers: int, features: int, width: int) -> None:
        super().__init__()
        self.kind, self.layers, self.width = kind, layers, width
        self.project = nn.Linear(layers * features, layers * width) if kind in ("linear", "tanh") else None  # B

    def forward(self, last: Float[Tensor, "batch layers features"]) -> Float[Tensor, "batch layers width"]:
        if self.kind == "zeros":
            return last.new_zeros(*last.shape[:2], self.width)
        if self.project is None:
            return last.repeat(1, 1, self.width // last.shape[-1])
        state = self.project(last.flatten(1)).unflatten(1, (self.layers, self.width))
        return state.tanh() if self.kind == "tanh" else state


class StepwiseRNN:
    """Recurrent layers run step by step; whatever does not depend on the previous step is computed once for all."""

    def __init__(
        self, cell: str, layers: Sequence[nn.RNNBase], x: Float[Tensor, "length batch inputs"], dropout: float = 0.0
    ) -> None:
        self.cell_step = CELL_STEPS[cell]
        self.dropout = dropout
        self.layers: list[tuple[StepLinear, StepLinear]] = []  # W x and U h
        for layer in layers:
            w, u, b, c = map(_cast, layer.parameters())
            base = b.expand(*x.shape[:2], -1)
            if not self.layers:
                w_known, w = w.split((x.shape[-1], w.shape[1] - x.shape[-1]), dim=1)
                base = F.linear(x, w_known, b)
            self.layers.append((StepLinear(base, w), StepLinear(c.expand(*x.shape[:2], -1), u)))

    def __call__(
        self, state: Sequence[Layer], extra: Float[Tensor, "batch inputs"] | None = None
    ) -> tuple[Float[Tensor, "batch hidden"], list[Layer]]:
        """Run the next step on the next x concatenated with `extra`; return its output and the new layer states."""
        new_state: list[Layer] = []
        for (input_linear, hidden_linear), layer in zip(self.layers, state, strict=True):
            if new_state:
                extra = dropout(new_state[-1][0], self.dropout)
            new_state.append(self.cell_step(input_linear(extra), hidden_linear(layer[0]), layer))
        return new_state[-1][0], new_state


class StepLinear:
    """g_t = base_t + W x_t, one step t at a time.

    Accumulating dW = sum_t dg_t x_t^T per step would cost a product and a sum of the size of W each time. Instead, W is
    detached in the steps and dW is computed in one product, once the gradients dg_t of all base_t are known.
    """

    def __init__(self, base: Float[Tensor, "length batch out"], weight: Float[Tensor, "out inputs"]) -> None:
        self.inputs: list[Tensor] = []  # x_t
        self.collects_inputs = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if self.collects_inputs:
            base, weight = _DeferredWeightGrad.apply(base, weight, self.inputs), weight.detach()  # type: ignore[no-untyped-call]
        self.base, self.weight = iter(base.unbind(0)), weight.t()

    @classmethod
    def from_linear(cls, linear: nn.Linear, length: int, batch: int) -> "StepLinear":
        """Apply a linear layer over `length` steps."""
        return cls(_cast(linear.bias).expand(length, batch, -1), _cast(linear.weight))

    def __call__(self, x: Float[Tensor, "batch inputs"] | None) -> Float[Tensor, "batch out"]:
        base = next(self.base)
        if x is None:
            return base
        x = x.to(base.dtype)
        if self.collects_inputs:
            self.inputs.append(x.detach())  # x itself would keep the graph, which holds this list, alive
        return torch.addmm(base, x, self.weight)


class _DeferredWeightGrad(torch.autograd.Function):
    """Identity on `base` whose backward also computes the gradient of the weight that the steps multiply by."""

    @staticmethod
    def forward(base: Tensor, weight: Tensor, step_inputs: list[Tensor]) -> Tensor:
        return base.view_as(base)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, list[Tensor]], output: Tensor) -> None:
        ctx.step_inputs = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if not ctx.step_inputs or not ctx.needs_input_grad[1]:
            return grad, None, None
        return grad, grad.flatten(0, 1).t() @ torch.cat(ctx.step_inputs), None


def _rnn(input_gates: Float[Tensor, "batch gates"], hidden_gates: Float[Tensor, "batch gates"], state: Layer) -> Layer:
    return (torch.tanh(input_gates + hidden_gates),)


def _gru(input_gates: Float[Tensor, "batch gates"], hidden_gates: Float[Tensor, "batch gates"], state: Layer) -> Layer:
    h = state[0].to(input_gates.dtype)
    if h.is_cuda:
        return (torch.ops.aten._thnn_fused_gru_cell(input_gates, hidden_gates, h)[0],)  # one kernel
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return (_GRU.apply(input_gates, hidden_gates, h),)  # type: ignore[no-untyped-call]
    return (_gru_parts(input_gates, hidden_gates, h)[-1],)


def _gru_parts(input_gates: Tensor, hidden_gates: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return r and z concatenated, n, and h'."""
    hidden = h.shape[-1]
    gates = (input_gates[:, : 2 * hidden] + hidden_gates[:, : 2 * hidden]).sigmoid_()
    reset, update = gates.split(hidden, dim=-1)
    new = torch.addcmul(input_gates[:, 2 * hidden :], reset, hidden_gates[:, 2 * hidden :]).tanh_()
    return gates, new, torch.lerp(new, h, update)


class _GRU(torch.autograd.Function):
    """One GRU step with a hand-written backward: autograd's bookkeeping per operation would dominate."""

    @staticmethod
    def forward(ctx: Any, input_gates: Tensor, hidden_gates: Tensor, h: Tensor) -> Tensor:
        gates, new, h_next = _gru_parts(input_gates, hidden_gates, h)
        ctx.save_for_backward(gates, new, h, hidden_gates)
        return h_next

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, new, h, hidden_gates = ctx.saved_tensors
        hidden = h.shape[-1]
        reset, update = gates.split(hidden, dim=-1)
        d_input, d_hidden = torch.empty_like(hidden_gates), torch.empty_like(hidden_gates)
        d_reset, d_update, d_new = d_input.split(hidden, dim=-1)
        d_h = grad * update
        torch.mul(grad - d_h, 1 - new * new, out=d_new)  # gradient before the tanh; likewise for the sigmoids below
        torch.mul(grad, h - new, out=d_update)
        torch.mul(d_new, hidden_gates[:, 2 * hidden :], out=d_reset)
        d_input[:, : 2 * hidden] *= gates * (1 - gates)
        d_hidden[:, : 2 * hidden] = d_input[:, : 2 * hidden]
        torch.mul(d_new, reset, out=d_hidden[:, 2 * hidden :])
        return d_input, d_hidden, d_h


def _lstm(input_gates: Float[Tensor, "batch gates"], hidden_gates: Float[Tensor, "batch gates"], state: Layer) -> Layer:
    c = state[1].to(upcast_dtype(input_gates.dtype))  # c is a sum over all steps: accumulate it in float32
    if c.is_cuda:
        # one fused kernel; a no-op cast unless the gates have lower precision
        h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(input_gates.to(c.dtype), hidden_gates.to(c.dtype), c)
        return h.to(input_gates.dtype), c
    i, f, g, o = (input_gates + hidden_gates).chunk(4, dim=-1)
    c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
    return (o.sigmoid() * c.tanh()).to(input_gates.dtype), c


CELL_STEPS: dict[str, Callable[[Tensor, Tensor, Layer], Layer]] = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}


def _cast(weight: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Cast a weight to the autocast dtype once, instead of at every step."""
    kind = weight.device.type
    return weight.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else weight
