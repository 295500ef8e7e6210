"""Triton kernels of one step of an LSTM with projection, forward and backward; `projected_lstm` launches them."""

# ruff: noqa: N803 (upper-case arguments are compile-time constants, following the Triton convention)

from typing import no_type_check

import torch
import triton
import triton.language as tl

from qkv.types import Float, Tensor

BLOCK = 512
NO_CLIP = 3.4e38


@triton.jit
@no_type_check
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
@no_type_check
def _gate(gates, x, bias, offset, inside):
    sum_of_inputs = tl.load(gates + offset, mask=inside).to(tl.float32) + tl.load(x + offset, mask=inside).to(
        tl.float32
    )
    return sum_of_inputs + tl.load(bias + offset, mask=inside).to(tl.float32)


@triton.jit
@no_type_check
def _forward(
    gates, x, bias, cell, new_cell, output, gates_stride, cell_stride, output_stride, hidden, batch, clip,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """c' = clip(f c + i g) and m = o tanh(c') of one row; i, g, f and o replace U h in `gates`."""
    direction, row = tl.program_id(0).to(tl.int64) // batch, tl.program_id(0) % batch
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < hidden
    gates += direction * gates_stride + row * 4 * hidden + unit
    x += direction * gates_stride + row * 4 * hidden + unit
    bias += direction * 4 * hidden + unit
    index = direction * cell_stride + row * hidden + unit
    i = tl.sigmoid(_gate(gates, x, bias, 0, inside))
    g = _tanh(_gate(gates, x, bias, hidden, inside))
    f = tl.sigmoid(_gate(gates, x, bias, 2 * hidden, inside))
    o = tl.sigmoid(_gate(gates, x, bias, 3 * hidden, inside))
    c = f * tl.load(cell + index, mask=inside) + i * g
    c = tl.minimum(tl.maximum(c, -clip), clip)
    kind = gates.dtype.element_ty
    tl.store(gates, i.to(kind), mask=inside)
    tl.store(gates + hidden, g.to(kind), mask=inside)
    tl.store(gates + 2 * hidden, f.to(kind), mask=inside)
    tl.store(gates + 3 * hidden, o.to(kind), mask=inside)
    tl.store(new_cell + index, c, mask=inside)
    output += direction * output_stride + row * hidden + unit
    tl.store(output, (o * _tanh(c)).to(output.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _gate_gradients(i, g, f, o, c, c_before, grad_m, grad_c, clip):
    """Gradients of i, g, f and o before their activation, and of the previous c, from those of o tanh(c) and of c."""
    tanh_c = _tanh(c)
    grad_c += grad_m * o * (1.0 - tanh_c * tanh_c)
    grad_c = tl.where(tl.abs(c) < clip, grad_c, 0.0)
    grad_i = grad_c * g * i * (1.0 - i)
    grad_g = grad_c * i * (1.0 - g * g)
    grad_f = grad_c * c_before * f * (1.0 - f)
    grad_o = grad_m * tanh_c * o * (1.0 - o)
    return grad_i, grad_g, grad_f, grad_o, grad_c * f


@triton.jit
@no_type_check
def _backward(
    gates, cell, new_cell, grad_output, grad_gates, grad_cell, gates_stride, cell_stride, hidden, batch, clip,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of `_forward`: of the gates before their activation, and of c, which replaces that of c'."""
    direction, row = tl.program_id(0).to(tl.int64) // batch, tl.program_id(0) % batch
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < hidden
    gates += direction * gates_stride + row * 4 * hidden + unit
    grad_gates += direction * gates_stride + row * 4 * hidden + unit
    cell += direction * cell_stride + row * hidden + unit
    new_cell += direction * cell_stride + row * hidden + unit
    index = (direction * batch + row) * hidden + unit
    i = tl.load(gates, mask=inside).to(tl.float32)
    g = tl.load(gates + hidden, mask=inside).to(tl.float32)
    f = tl.load(gates + 2 * hidden, mask=inside).to(tl.float32)
    o = tl.load(gates + 3 * hidden, mask=inside).to(tl.float32)
    c, c_before = tl.load(new_cell, mask=inside), tl.load(cell, mask=inside)
    grad_m = tl.load(grad_output + index, mask=inside).to(tl.float32)
    grad_c = tl.load(grad_cell + index, mask=inside)
    grad_i, grad_g, grad_f, grad_o, grad_c = _gate_gradients(i, g, f, o, c, c_before, grad_m, grad_c, clip)
    kind = gates.dtype.element_ty
    tl.store(grad_gates, grad_i.to(kind), mask=inside)
    tl.store(grad_gates + hidden, grad_g.to(kind), mask=inside)
    tl.store(grad_gates + 2 * hidden, grad_f.to(kind), mask=inside)
    tl.store(grad_gates + 3 * hidden, grad_o.to(kind), mask=inside)
    tl.store(grad_cell + index, grad_c, mask=inside)


def cell_forward(
    gates: Float[Tensor, "directions batch gates"],
    x: Float[Tensor, "directions batch gates"],
    bias: Float[Tensor, "directions gates"],
    cell: Float[Tensor, "directions batch hidden"],
    new_cell: Float[Tensor, "directions batch hidden"],
    output: Float[Tensor, "directions batch hidden"],
    clip: float | None,
) -> None:
    """Write c' to `new_cell` and o tanh(c') to `output`, and overwrite the gates U h with their activations.

    The directions may have any stride, the same for x as for the gates and for c' as for c.
    """
    directions, batch, hidden = cell.shape
    with torch.cuda.device_of(gates):
        _forward[(directions * batch, triton.cdiv(hidden, BLOCK))](
            gates, x, bias, cell, new_cell, output, gates.stride(0), cell.stride(0), output.stride(0), hidden, batch,
            clip or NO_CLIP, BLOCK=BLOCK,
        )  # fmt: skip


def cell_backward(
    gates: Float[Tensor, "directions batch gates"],
    cell: Float[Tensor, "directions batch hidden"],
    new_cell: Float[Tensor, "directions batch hidden"],
    grad_output: Float[Tensor, "directions batch hidden"],
    grad_gates: Float[Tensor, "directions batch gates"],
    grad_cell: Float[Tensor, "directions batch hidden"],
    clip: float | None,
) -> None:
    """Write the gradients of the gates before their activation, and overwrite the gradient of c' with that of c."""
    directions, batch, hidden = cell.shape
    with torch.cuda.device_of(gates):
        _backward[(directions * batch, triton.cdiv(hidden, BLOCK))](
            gates, cell, new_cell, grad_output, grad_gates, grad_cell, gates.stride(0), cell.stride(0), hidden, batch,
            clip or NO_CLIP, BLOCK=BLOCK,
        )  # fmt: skip


@triton.jit
@no_type_check
def _projected_gradient(
    grad_h, grad_output, h, grad_projected, output_stride, h_stride, projected_stride, size, clip, BLOCK: tl.constexpr
):
    direction = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    total = tl.load(grad_h + direction * size + index, mask=inside, other=0.0).to(tl.float32)
    if grad_output is not None:
        total += tl.load(grad_output + direction * output_stride + index, mask=inside, other=0.0).to(tl.float32)
    unclipped = tl.abs(tl.load(h + direction * h_stride + index, mask=inside, other=0.0).to(tl.float32)) < clip
    at = grad_projected + direction * projected_stride + index
    tl.store(at, tl.where(unclipped, total, 0.0).to(grad_projected.dtype.element_ty), mask=inside)


def projected_gradient(
    grad_h: Float[Tensor, "directions batch dim"],
    grad_output: Float[Tensor, "directions batch dim"] | None,
    h: Float[Tensor, "directions batch dim"],
    grad_projected: Float[Tensor, "directions batch dim"],
    clip: float | None,
) -> None:
    """Write the gradient of V (o tanh(c)), zero where h is clipped, from those of h as input and as output.

    The directions may have any stride, except those of `grad_h`.
    """
    directions, batch, dim = h.shape
    output_stride = 0 if grad_output is None else grad_output.stride(0)
    with torch.cuda.device_of(h):
        _projected_gradient[(triton.cdiv(batch * dim, BLOCK), directions)](
            grad_h, grad_output, h, grad_projected, output_stride, h.stride(0), grad_projected.stride(0), batch * dim,
            clip or NO_CLIP, BLOCK=BLOCK,
        )  # fmt: skip
