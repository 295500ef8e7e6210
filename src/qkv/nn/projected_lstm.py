"""LSTM with a projection and clipping, over all steps (Sak et al. 2014), for several directions at once.

    i, f, o = sigmoid(x_t + U h + b),   g = tanh(x_t + U h + b)
    c = clip(f c + i g),   h = clip(V (o tanh(c)))

`scan` computes what `plain_scan` does, with a hand-written backward pass: one kernel for the gates of a step, and the
gradients of U and V in one product over all steps. In memory the directions come first, so that the steps of a
direction are the rows of one matrix.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from qkv.attention.precision import upcast_dtype
from qkv.nn import fast
from qkv.types import Float, Tensor

Steps = Float[Tensor, "length directions batch _"]


def plain_scan(
    x: Float[Tensor, "length directions batch gates"],
    bias: Float[Tensor, "directions gates"],
    hidden: Float[Tensor, "directions batch dim"],
    cell: Float[Tensor, "directions batch hidden"],
    u: Float[Tensor, "directions dim gates"],
    v: Float[Tensor, "directions hidden dim"],
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Steps, Steps]:
    """Return h and c after each step."""
    states, cells = [], []
    for step in (x + bias[:, None]).unbind(0):
        i, g, f, o = torch.baddbmm(step, hidden, u).chunk(4, dim=-1)
        cell = _clip(f.sigmoid() * cell + i.sigmoid() * g.tanh(), cell_clip)
        hidden = _clip(torch.bmm((o.sigmoid() * cell.tanh()).to(u.dtype), v), projection_clip)
        states.append(hidden)
        cells.append(cell)
    return torch.stack(states), torch.stack(cells)


def scan(
    x: Float[Tensor, "length directions batch gates"],
    bias: Float[Tensor, "directions gates"],
    hidden: Float[Tensor, "directions batch dim"],
    cell: Float[Tensor, "directions batch hidden"],
    u: Float[Tensor, "directions dim gates"],
    v: Float[Tensor, "directions hidden dim"],
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Steps, Steps]:
    """`plain_scan`; on a GPU the products are in the dtype of autocast, and c is in float32."""
    if not fast.enabled() or torch.compiler.is_compiling():
        with torch.autocast(x.device.type, enabled=False):
            tensors = (x.to(u.dtype), bias, hidden.to(u.dtype), cell.to(upcast_dtype(u.dtype)))
            return plain_scan(*tensors, u, v, cell_clip, projection_clip)
    u, v = (fast.autocast_once(weight) if x.is_cuda else weight for weight in (u, v))
    with torch.autocast(x.device.type, enabled=False):
        tensors = (x.to(u.dtype), bias, hidden.to(u.dtype), cell.to(upcast_dtype(u.dtype)))
        states, cells = _Scan.apply(*tensors, u, v, cell_clip, projection_clip)  # type: ignore[no-untyped-call]
    return states, cells


class _Scan(torch.autograd.Function):
    """The recurrence and its gradient, step by step."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor,
        hidden: Tensor,
        cell: Tensor,
        u: Tensor,
        v: Tensor,
        cell_clip: float | None,
        projection_clip: float | None,
    ) -> tuple[Tensor, Tensor]:
        length, directions, batch, _ = x.shape
        x = x.transpose(0, 1).contiguous()
        gates = torch.empty_like(x)  # U h, and then the activations
        states = x.new_empty(directions, 1 + length, batch, v.shape[-1])
        cells = cell.new_empty(directions, 1 + length, *cell.shape[1:])
        outputs = x.new_empty(directions, length, *cell.shape[1:])  # o tanh(c)
        states[:, 0], cells[:, 0] = hidden, cell
        u, v = u.contiguous(), v.contiguous()
        for t in range(length):
            torch.bmm(states[:, t], u, out=gates[:, t])
            _cell_forward(gates[:, t], x[:, t], bias, cells[:, t], cells[:, t + 1], outputs[:, t], cell_clip)
            torch.bmm(outputs[:, t], v, out=states[:, t + 1])
            if projection_clip is not None:
                states[:, t + 1].clamp_(-projection_clip, projection_clip)
        ctx.save_for_backward(gates, bias, states, cells, outputs, u, v)
        ctx.clips = cell_clip, projection_clip
        ctx.set_materialize_grads(False)
        return states[:, 1:].transpose(0, 1), cells[:, 1:].transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor | None, grad_cells: Tensor | None) -> tuple[Tensor | None, ...]:
        gates, bias, states, cells, outputs, u, v = ctx.saved_tensors
        cell_clip, projection_clip = ctx.clips
        grad_gates, grad_projected = torch.empty_like(gates), torch.empty_like(states[:, 1:])
        grad_h, grad_cell = torch.zeros_like(states[:, 0]), torch.zeros_like(cells[:, 0])
        if grad_states is not None:
            grad_states = grad_states.transpose(0, 1).contiguous()
        u_t, v_t = u.transpose(1, 2), v.transpose(1, 2)
        for t in range(gates.shape[1] - 1, -1, -1):
            grad_output = None if grad_states is None else grad_states[:, t]
            _projected_gradient(grad_h, grad_output, states[:, t + 1], grad_projected[:, t], projection_clip)
            if grad_cells is not None:
                grad_cell += grad_cells[t]
            grad_m = torch.bmm(grad_projected[:, t], v_t)
            _cell_backward(gates[:, t], cells[:, t], cells[:, t + 1], grad_m, grad_gates[:, t], grad_cell, cell_clip)
            torch.bmm(grad_gates[:, t], u_t, out=grad_h)
        grad_bias = grad_gates.sum(dim=(1, 2), dtype=bias.dtype) if ctx.needs_input_grad[1] else None
        grad_u = _sum_of_products(states[:, :-1], grad_gates) if ctx.needs_input_grad[4] else None
        grad_v = _sum_of_products(outputs, grad_projected) if ctx.needs_input_grad[5] else None
        return grad_gates.transpose(0, 1), grad_bias, grad_h, grad_cell, grad_u, grad_v, None, None


def _sum_of_products(
    a: Float[Tensor, "directions length batch rows"], b: Float[Tensor, "directions length batch columns"]
) -> Float[Tensor, "directions rows columns"]:
    """sum_t a_t^T b_t for each direction, in one product."""
    return torch.bmm(a.flatten(1, 2).transpose(1, 2), b.flatten(1, 2))


def _cell_forward(
    gates: Tensor, x: Tensor, bias: Tensor, cell: Tensor, new_cell: Tensor, output: Tensor, clip: float | None
) -> None:
    """See `lstm_kernels.cell_forward`."""
    if gates.is_cuda and cell.dtype == torch.float32 and fast.has_triton():
        from qkv.nn.kernels.lstm_kernels import cell_forward

        cell_forward(gates, x, bias, cell, new_cell, output, clip)
        return
    gates.add_(x).add_(bias[:, None])
    i, g, f, o = gates.chunk(4, dim=-1)
    for gate in (i, f, o):
        gate.sigmoid_()
    g.tanh_()
    torch.mul(f, cell, out=new_cell).addcmul_(i, g)
    if clip is not None:
        new_cell.clamp_(-clip, clip)
    torch.mul(o, new_cell.tanh(), out=output)


def _cell_backward(
    gates: Tensor,
    cell: Tensor,
    new_cell: Tensor,
    grad_output: Tensor,
    grad_gates: Tensor,
    grad_cell: Tensor,
    clip: float | None,
) -> None:
    """See `lstm_kernels.cell_backward`."""
    if gates.is_cuda and cell.dtype == torch.float32 and fast.has_triton():
        from qkv.nn.kernels.lstm_kernels import cell_backward

        cell_backward(gates, cell, new_cell, grad_output, grad_gates, grad_cell, clip)
        return
    i, g, f, o = gates.chunk(4, dim=-1)
    grad_i, grad_g, grad_f, grad_o = grad_gates.chunk(4, dim=-1)
    tanh_c = new_cell.tanh()
    grad_cell.addcmul_(grad_output * o, 1 - tanh_c * tanh_c)
    if clip is not None:
        grad_cell.mul_(new_cell.abs() < clip)
    grad_i.copy_(grad_cell * g * i * (1 - i))
    grad_g.copy_(grad_cell * i * (1 - g * g))
    grad_f.copy_(grad_cell * cell * f * (1 - f))
    grad_o.copy_(grad_output * tanh_c * o * (1 - o))
    grad_cell.mul_(f)


def _projected_gradient(
    grad_h: Tensor, grad_output: Tensor | None, h: Tensor, grad_projected: Tensor, clip: float | None
) -> None:
    """See `lstm_kernels.projected_gradient`."""
    if h.is_cuda and h.dtype != torch.float64 and fast.has_triton():
        from qkv.nn.kernels.lstm_kernels import projected_gradient

        projected_gradient(grad_h, grad_output, h, grad_projected, clip)
        return
    if grad_output is None:
        grad_projected.copy_(grad_h)
    else:
        torch.add(grad_h, grad_output, out=grad_projected)
    if clip is not None:
        grad_projected.mul_(h.abs() < clip)


def _clip(x: Float[Tensor, "*shape"], limit: float | None) -> Float[Tensor, "*shape"]:
    return x if limit is None else x.clamp(-limit, limit)
