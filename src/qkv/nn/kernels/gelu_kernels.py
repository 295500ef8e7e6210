"""Triton kernels of GELU; the backward also sums the gradient over the rows. `fast` launches them.

    gelu(x) = x Phi(x),   gelu'(x) = Phi(x) + x phi(x)

Phi, the distribution function of N(0, 1), is computed from its density phi with formula 7.1.26 of Abramowitz and Stegun
(1964), which is exact to 1.5e-7 and needs one exponential and one division; `erf` needs twice as many instructions.
"""

# ruff: noqa: N803 (upper-case arguments are compile-time constants, following the Triton convention)

from dataclasses import dataclass
from typing import no_type_check

import torch
import triton
import triton.language as tl

from qkv.types import Float, Tensor


@dataclass(frozen=True)
class Tiles:
    """Tile sizes, chosen by measurement on an H200."""

    elements: int = 2048  # of the forward pass
    rows: int = 16  # of the backward pass, in one step
    columns: int = 128
    row_blocks: int = 128  # each yields one partial sum per column


TILES = Tiles()


@triton.jit
@no_type_check
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
@no_type_check
def _distribution(x):
    """Phi(x) and exp(-x^2 / 2)."""
    t = 1.0 / (1.0 + 0.2316418883 * tl.abs(x))  # 0.3275911 / sqrt(2)
    exponential = tl.exp(-0.5 * x * x)
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.710706870 + t * (-0.726576013 + t * 0.530702716))))
    tail = tail * exponential  # Phi(-|x|)
    return tl.where(x < 0.0, tail, 1.0 - tail), exponential


@triton.jit
@no_type_check
def _forward(x, output, size, TANH: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    value = tl.load(x + index, mask=inside, other=0.0).to(tl.float32)
    if TANH:
        y = value * _sigmoid(1.5957691216 * (value + 0.044715 * value * value * value))  # 2 sqrt(2 / pi)
    else:
        phi, _ = _distribution(value)
        y = value * phi
    tl.store(output + index, y.to(output.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _backward(
    x, grad_output, grad_x, partial_sums, rows, columns, rows_per_program,
    TANH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """gelu'(x) grad_output of some rows and columns, and its sum over these rows."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0) * rows_per_program
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(0, rows_per_program, ROWS):
        offset = step + tl.arange(0, ROWS)
        row = (first + offset).to(tl.int64)
        inside = ((offset < rows_per_program) & (row < rows))[:, None] & (column < columns)[None, :]
        index = row[:, None] * columns + column[None, :]
        value = tl.load(x + index, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_output + index, mask=inside, other=0.0).to(tl.float32)
        if TANH:
            s = _sigmoid(1.5957691216 * (value + 0.044715 * value * value * value))
            slope = s + value * s * (1.0 - s) * 1.5957691216 * (1.0 + 0.134145 * value * value)
        else:
            phi, exponential = _distribution(value)
            slope = phi + value * exponential * 0.3989422804  # 1 / sqrt(2 pi)
        grad = grad * slope
        tl.store(grad_x + index, grad.to(grad_x.dtype.element_ty), mask=inside)
        total += grad
    at = partial_sums + tl.program_id(0) * columns + column
    tl.store(at, tl.sum(total, axis=0), mask=column < columns)


def _gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    x = x.contiguous()
    output = torch.empty_like(x)
    if x.numel():
        with torch.cuda.device_of(x):
            _forward[(triton.cdiv(x.numel(), TILES.elements),)](
                x, output, x.numel(), TANH=tanh, BLOCK=TILES.elements, num_warps=4
            )
    return output


def _gelu_backward(grad_output: Tensor, x: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    x, grad_output = x.contiguous(), grad_output.contiguous()
    grad_x = torch.empty_like(x)
    columns = x.shape[-1]
    rows = x.numel() // columns
    rows_per_program = max(TILES.rows, triton.cdiv(rows, TILES.row_blocks))
    blocks = triton.cdiv(rows, rows_per_program)
    partial_sums = torch.empty(blocks, columns, dtype=torch.float32, device=x.device)
    if x.numel():
        with torch.cuda.device_of(x):
            _backward[(blocks, triton.cdiv(columns, TILES.columns))](
                x, grad_output, grad_x, partial_sums, rows, columns, rows_per_program,
                TANH=tanh, ROWS=TILES.rows, COLUMNS=TILES.columns, num_warps=4,
            )  # fmt: skip
    return grad_x, partial_sums.sum(dim=0)


_gelu_op = torch.library.custom_op("qkv::gelu", _gelu, mutates_args=())
_gelu_backward_op = torch.library.custom_op("qkv::gelu_backward", _gelu_backward, mutates_args=())


@_gelu_op.register_fake
def _(x, bias, tanh):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape)


@_gelu_backward_op.register_fake
def _(grad_output, x, tanh):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape), x.new_empty(x.shape[-1], dtype=torch.float32)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, bias, ctx.tanh = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(x)


def _differentiate(ctx, grad_output):  # type: ignore[no-untyped-def]
    grad_x, grad_bias = _gelu_backward_op(grad_output, *ctx.saved_tensors, ctx.tanh)
    return grad_x, grad_bias.to(ctx.bias_dtype), None


_gelu_op.register_autograd(_differentiate, setup_context=_save)


def gelu_of_linear(
    x: Float[Tensor, "*batch features"], bias: Float[Tensor, "features"], *, tanh: bool
) -> Float[Tensor, "*batch features"]:
    """GELU of x = W y + b, where b was detached; the gradient of b is that of x, summed over the rows."""
    return _gelu_op(x, bias, tanh)
