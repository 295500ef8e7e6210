"""Triton kernels of one LSTM step, forward and backward; `projected_lstm` launches them."""

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
def _forward(gates, x, bias, cell, new_cell, output, hidden, batch, clip, BLOCK: tl.constexpr):
    """c' = clip(f c + i g) and m = o tanh(c') of one row; i, g, f and o replace U h in `gates`."""
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < hidden
    gates += row * 4 * hidden + unit
    x += row * 4 * hidden + unit
    bias += (row // batch) * 4 * hidden + unit
    i = tl.sigmoid(_gate(gates, x, bias, 0, inside))
    g = _tanh(_gate(gates, x, bias, hidden, inside))
    f = tl.sigmoid(_gate(gates, x, bias, 2 * hidden, inside))
    o = tl.sigmoid(_gate(gates, x, bias, 3 * hidden, inside))
    c = f * tl.load(cell + row * hidden + unit, mask=inside) + i * g
    c = tl.minimum(tl.maximum(c, -clip), clip)
    kind = gates.dtype.element_ty
    tl.store(gates, i.to(kind), mask=inside)
    tl.store(gates + hidden, g.to(kind), mask=inside)
    tl.store(gates + 2 * hidden, f.to(kind), mask=inside)
    tl.store(gates + 3 * hidden, o.to(kind), mask=inside)
    tl.store(new_cell + row * hidden + unit, c, mask=inside)
    tl.store(output + row * hidden + unit, (o * _tanh(c)).to(output.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _backward(gates, cell, new_cell, grad_output, grad_cell, hidden, clip, BLOCK: tl.constexpr):
    """Gradients of `_forward`: those of the gates before their activation replace the gates, that of c replaces c'."""
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < hidden
    gates += row * 4 * hidden + unit
    i = tl.load(gates, mask=inside).to(tl.float32)
    g = tl.load(gates + hidden, mask=inside).to(tl.float32)
    f = tl.load(gates + 2 * hidden, mask=inside).to(tl.float32)
    o = tl.load(gates + 3 * hidden, mask=inside).to(tl.float32)
    index = row * hidden + unit
    c, c_before = tl.load(new_cell + index, mask=inside), tl.load(cell + index, mask=inside)
    grad_m = tl.load(grad_output + index, mask=inside).to(tl.float32)
    tanh_c = _tanh(c)
    grad_c = tl.load(grad_cell + index, mask=inside) + grad_m * o * (1.0 - tanh_c * tanh_c)
    grad_c = tl.where(tl.abs(c) < clip, grad_c, 0.0)
    kind = gates.dtype.element_ty
    tl.store(gates, (grad_c * g * i * (1.0 - i)).to(kind), mask=inside)
    tl.store(gates + hidden, (grad_c * i * (1.0 - g * g)).to(kind), mask=inside)
    tl.store(gates + 2 * hidden, (grad_c * c_before * f * (1.0 - f)).to(kind), mask=inside)
    tl.store(gates + 3 * hidden, (grad_m * tanh_c * o * (1.0 - o)).to(kind), mask=inside)
    tl.store(grad_cell + index, grad_c * f, mask=inside)


def cell_forward(
    gates: Float[Tensor, "directions batch gates"],
    x: Float[Tensor, "directions batch gates"],
    bias: Float[Tensor, "directions gates"],
    cell: Float[Tensor, "directions batch hidden"],
    new_cell: Float[Tensor, "directions batch hidden"],
    output: Float[Tensor, "directions batch hidden"],
    clip: float | None,
) -> None:
    """Write c' to `new_cell` and o tanh(c') to `output`, and overwrite the gates U h with their activations."""
    directions, batch, hidden = cell.shape
    with torch.cuda.device_of(gates):
        _forward[(directions * batch, triton.cdiv(hidden, BLOCK))](
            gates, x, bias, cell, new_cell, output, hidden, batch, clip or NO_CLIP, BLOCK=BLOCK
        )


def cell_backward(
    gates: Float[Tensor, "directions batch gates"],
    cell: Float[Tensor, "directions batch hidden"],
    new_cell: Float[Tensor, "directions batch hidden"],
    grad_output: Float[Tensor, "directions batch hidden"],
    grad_cell: Float[Tensor, "directions batch hidden"],
    clip: float | None,
) -> None:
    """Overwrite the activations of the gates with their gradients, and the gradient of c' with that of c."""
    directions, batch, hidden = cell.shape
    with torch.cuda.device_of(gates):
        _backward[(directions * batch, triton.cdiv(hidden, BLOCK))](
            gates, cell, new_cell, grad_output, grad_cell, hidden, clip or NO_CLIP, BLOCK=BLOCK
        )
