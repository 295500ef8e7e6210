"""Recurrent layers: all steps as one call, or one at a time with part of their input projected beforehand.

    rnn     h' = tanh(W x + U h)                                                                (Elman 1990)
    gru     r, z = sigmoid(W x + U h),   n = tanh(W x + r * U h),   h' = (1 - z) n + z h        (Cho et al. 2014)
    lstm    i, f, o = sigmoid(W x + U h),   g = tanh(W x + U h),   c' = f c + i g,   h' = o tanh(c')
                                                                                (Hochreiter and Schmidhuber 1997)

each product with a bias of its own, and the weights PyTorch's (`nn.RNN`, `nn.GRU`, `nn.LSTM`): where a whole sequence
is known, PyTorch reads it at once. Where a step waits for what attention reads after the step before it, what is known
of W x is computed for all steps together, and a step is left with no more than it has to wait for.
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

Layer = tuple[Float[Tensor, "batch hidden"], ...]  # what one layer carries from step to step: h, of an LSTM h and c


class Recurrent(nn.Module):
    """A stack of recurrent layers, with dropout between them.

    The state of all layers is one tensor [batch, layers, width], in which an LSTM has its h and c side by side.
    """

    def __init__(self, cell: str, inputs: int, hidden: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.cell = cell
        self.hidden = hidden
        self.width = 2 * hidden if cell == "lstm" else hidden  # of the state of a layer
        self.dropout = dropout
        self.rnn = CELLS[cell](inputs, hidden, batch_first=True)
        self.above = Stack(CELLS[cell](hidden, hidden, batch_first=True) for _ in range(layers - 1))

    @property
    def layers(self) -> list[nn.RNNBase]:
        """The lowest first. Each is a module of its own, so that dropout between them draws from PyTorch's generator:
        cuDNN, which could run the stack in one call, has one of its own, that no checkpoint and no graph knows of.
        """
        return [self.rnn, *self.above]

    def forward(
        self, x: Float[Tensor, "batch length inputs"], state: Float[Tensor, "batch layers width"] | None = None
    ) -> tuple[Float[Tensor, "batch length hidden"], Float[Tensor, "batch layers width"]]:
        """The outputs of the last layer for all steps, and the state after them; it begins with zeros."""
        dtype = self.rnn.all_weights[0][0].dtype
        if state is None:
            state = x.new_zeros(x.shape[0], len(self.layers), self.width)
        after: list[Layer] = []
        # In the weights' own precision: under autocast PyTorch would have cuDNN work in float16, whatever it was told,
        # and the gradient of a mean over thousands of tokens is too small for that.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(dtype)
            for layer, before in zip(self.layers, self.split(state.to(dtype)), strict=True):
                if after:
                    x = dropout(x, self.dropout) if self.training else x
                x, last = self._read(layer, x, before)
                after.append(last)
        return x, self.join(after)

    def _read(
        self, layer: nn.RNNBase, x: Float[Tensor, "batch length inputs"], before: Layer
    ) -> tuple[Float[Tensor, "batch length hidden"], Layer]:
        """One layer, over all steps."""
        if self.cell == "gru" and x.device.type == "cpu" and torch.is_grad_enabled():
            # PyTorch would take as many steps, and ask at each for its part of the gradient of U.
            cell, states = Unrolled(self.cell, [layer], x.transpose(0, 1)), []
            for _ in range(x.shape[1]):
                h, [before] = cell([before])
                states.append(h)
            return torch.stack(states, dim=1), before
        first = tuple(part[None].contiguous() for part in before)
        x, last = layer(x, first if self.cell == "lstm" else first[0])
        return x, tuple(part[0] for part in (last if self.cell == "lstm" else (last,)))

    def unroll(self, x: Float[Tensor, "batch length inputs"]) -> "Unrolled":
        """The same layers, one step at a time, for what is known of their input: the first part, of all steps."""
        return Unrolled(self.cell, self.layers, x.transpose(0, 1), self.dropout if self.training else 0.0)

    def split(self, state: Float[Tensor, "batch layers width"]) -> list[Layer]:
        """A state as steps take it."""
        return [layer.split(self.hidden, dim=-1) for layer in state.unbind(1)]

    def join(self, layers: Sequence[Layer]) -> Float[Tensor, "batch layers width"]:
        """A state as it is kept."""
        return torch.stack([torch.cat(layer, dim=-1) for layer in layers], dim=1)


class BothWays(nn.Module):
    """h_i = [ahead_i ; back_i], or with one direction ahead_i alone; and h_n, what is known at the end.

    The backward layer reads each sentence turned round, so that for both directions padding comes last, where it can do
    no harm: no packing, and one matrix product for the inputs of all steps.
    """

    def __init__(self, cell: str, inputs: int, features: int, directions: int = 2) -> None:
        super().__init__()
        self.ahead = Recurrent(cell, inputs, features // directions)
        self.back = Recurrent(cell, inputs, features // directions) if directions == 2 else None

    def forward(
        self,
        x: Float[Tensor, "batch length inputs"],
        lengths: Int[Tensor, "batch"],
        turned: Int[Tensor, "batch length"],
    ) -> tuple[Float[Tensor, "batch length features"], Float[Tensor, "batch features"]]:
        """h_i at all places, and h_n; `turned` is `turning(lengths, length)`, made once for all layers."""
        outputs, _ = self.ahead(x)
        final = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, -1, outputs.shape[-1])
        last = outputs.gather(1, final)[:, 0]
        if self.back is not None:
            back, _ = self.back(take(x, turned))
            back = take(back, turned)
            outputs, last = torch.cat((outputs, back), dim=-1), torch.cat((last, back[:, 0]), dim=-1)
        return outputs, last.masked_fill(lengths[:, None] < 1, 0.0)  # an empty sentence leaves nothing


def turning(lengths: Int[Tensor, "batch"], longest: int) -> Int[Tensor, "batch length"]:
    """The order that turns each sentence round and leaves its padding where it is."""
    place = torch.arange(longest, device=lengths.device)
    return torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)


def take(x: Float[Tensor, "batch length dim"], order: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
    """The positions of each sentence in the given order."""
    return x.gather(1, order[:, :, None].expand(-1, -1, x.shape[-1]))


class Bridge(nn.Module):
    """The first state of some layers, from h_n of as many others: B h_n, tanh(B h_n), h_n itself ("none"), or zeros.

    Without weights an LSTM's c begins as its h does: the encoder's own c stands at the end of the padding.
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


class Unrolled:
    """Recurrent layers one step after another: what need not wait for a step is done once for all of them."""

    def __init__(
        self, cell: str, layers: Sequence[nn.RNNBase], x: Float[Tensor, "length batch inputs"], dropout: float = 0.0
    ) -> None:
        self.move = MOVES[cell]
        self.dropout = dropout
        self.layers: list[tuple[Products, Products]] = []  # W x and U h
        for layer in layers:
            w, u, b, c = map(_cast, layer.parameters())
            given = b.expand(*x.shape[:2], -1)
            if not self.layers:
                known, w = w.split((x.shape[-1], w.shape[1] - x.shape[-1]), dim=1)
                given = F.linear(x, known, b)
            self.layers.append((Products(given, w), Products(c.expand(*x.shape[:2], -1), u)))

    def __call__(
        self, state: Sequence[Layer], further: Float[Tensor, "batch inputs"] | None = None
    ) -> tuple[Float[Tensor, "batch hidden"], list[Layer]]:
        """The next step, whose input is the next of x and what is given here; its output, and what is carried on."""
        after: list[Layer] = []
        for (given, recurrent), layer in zip(self.layers, state, strict=True):
            if after:
                further = dropout(after[-1][0], self.dropout)
            after.append(self.move(given(further), recurrent(layer[0]), layer))
        return after[-1][0], after


class Products:
    """g_t = base_t + W x_t for one step t after another.

    A step that asked for its own part of dW = sum_t dg_t x_t^T would cost a product and a sum as large as W each time.
    So W is left out of the steps, and what comes back to all of the base_t, which is dg_t, is multiplied once.
    """

    def __init__(self, base: Float[Tensor, "length batch out"], weight: Float[Tensor, "out inputs"]) -> None:
        self.seen: list[Tensor] = []  # x_t
        self.gathers = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if self.gathers:
            base, weight = _WithGradientOf.apply(base, weight, self.seen), weight.detach()  # type: ignore[no-untyped-call]
        self.base, self.weight = iter(base.unbind(0)), weight.t()

    @classmethod
    def of(cls, linear: nn.Linear, length: int, batch: int) -> "Products":
        """A linear layer, for so many steps."""
        return cls(_cast(linear.bias).expand(length, batch, -1), _cast(linear.weight))

    def __call__(self, x: Float[Tensor, "batch inputs"] | None) -> Float[Tensor, "batch out"]:
        base = next(self.base)
        if x is None:
            return base
        x = x.to(base.dtype)
        if self.gathers:
            self.seen.append(x.detach())  # not x itself, which would hold the graph that holds this list
        return torch.addmm(base, x, self.weight)


class _WithGradientOf(torch.autograd.Function):
    """The base as it is; backward, what comes to it also gives the gradient of the weight that steps multiply by."""

    @staticmethod
    def forward(base: Tensor, weight: Tensor, seen: list[Tensor]) -> Tensor:
        return base.view_as(base)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, list[Tensor]], output: Tensor) -> None:
        ctx.seen = inputs[2]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if not ctx.seen or not ctx.needs_input_grad[1]:
            return slope, None, None
        return slope, slope.flatten(0, 1).t() @ torch.cat(ctx.seen), None


def _rnn(given: Float[Tensor, "batch gates"], recurrent: Float[Tensor, "batch gates"], before: Layer) -> Layer:
    return (torch.tanh(given + recurrent),)


def _gru(given: Float[Tensor, "batch gates"], recurrent: Float[Tensor, "batch gates"], before: Layer) -> Layer:
    h = before[0].to(given.dtype)
    if h.is_cuda:
        return (torch.ops.aten._thnn_fused_gru_cell(given, recurrent, h)[0],)  # one kernel
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return (_GRU.apply(given, recurrent, h),)  # type: ignore[no-untyped-call]
    return (_gru_parts(given, recurrent, h)[-1],)


def _gru_parts(given: Tensor, recurrent: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """r and z side by side, n, and h'."""
    hidden = h.shape[-1]
    gates = (given[:, : 2 * hidden] + recurrent[:, : 2 * hidden]).sigmoid_()
    reset, update = gates.split(hidden, dim=-1)
    new = torch.addcmul(given[:, 2 * hidden :], reset, recurrent[:, 2 * hidden :]).tanh_()
    return gates, new, torch.lerp(new, h, update)


class _GRU(torch.autograd.Function):
    """The step of a GRU, differentiated as a whole: what autograd would do after each operation is most of its time."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, recurrent: Tensor, h: Tensor) -> Tensor:
        gates, new, after = _gru_parts(given, recurrent, h)
        ctx.save_for_backward(gates, new, h, recurrent)
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, new, h, recurrent = ctx.saved_tensors
        hidden = h.shape[-1]
        reset, update = gates.split(hidden, dim=-1)
        d_given, d_recurrent = torch.empty_like(recurrent), torch.empty_like(recurrent)
        d_reset, d_update, d_new = d_given.split(hidden, dim=-1)
        d_h = slope * update
        torch.mul(slope - d_h, 1 - new * new, out=d_new)  # before its tanh, as the gates before their sigmoid
        torch.mul(slope, h - new, out=d_update)
        torch.mul(d_new, recurrent[:, 2 * hidden :], out=d_reset)
        d_given[:, : 2 * hidden] *= gates * (1 - gates)
        d_recurrent[:, : 2 * hidden] = d_given[:, : 2 * hidden]
        torch.mul(d_new, reset, out=d_recurrent[:, 2 * hidden :])
        return d_given, d_recurrent, d_h


def _lstm(given: Float[Tensor, "batch gates"], recurrent: Float[Tensor, "batch gates"], before: Layer) -> Layer:
    c = before[1].to(upcast_dtype(given.dtype))  # a sum over all steps, which short numbers would soon no longer add to
    if c.is_cuda:
        # One kernel, in one precision; where it is the gates' own, nothing is cast.
        h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(given.to(c.dtype), recurrent.to(c.dtype), c)
        return h.to(given.dtype), c
    i, f, g, o = (given + recurrent).chunk(4, dim=-1)
    c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
    return (o.sigmoid() * c.tanh()).to(given.dtype), c


MOVES: dict[str, Callable[[Tensor, Tensor, Layer], Layer]] = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}


def _cast(weight: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A weight in the precision that autocast would give it at every step."""
    kind = weight.device.type
    return weight.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else weight
