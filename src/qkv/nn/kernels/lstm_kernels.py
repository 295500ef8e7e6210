"""Triton kernels of one step of an LSTM with projection, forward and backward; `projected_lstm` launches them.

`cell_forward` and `cell_backward` compute the gates and c from U h, and its gradient. In half precision, `step_forward`
and `step_backward` include the products with U and, in the backward pass, V:

    step_forward         gates and c from h, x and U                  then h = V (o tanh(c)) by a library
    projected_gradient   dp = dh, where |h| is below the clip: the sum of dy and of the parts of U^T dgates
    step_backward        dgates and dc from V^T dp, and the part of U^T dgates of each tile of hidden units

Their tensors are [direction, step, row, feature].
"""

# ruff: noqa: N803 (upper-case arguments are compile-time constants, following the Triton convention)

from dataclasses import dataclass
from typing import no_type_check

import torch
import triton
import triton.language as tl

from qkv.types import Float, Tensor

BLOCK = 512
NO_CLIP = 3.4e38

INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of a step: rows of the batch, hidden units, and features of h per iteration of the products."""

    rows: int
    units: int
    features: int
    warps: int
    stages: int = 3


FORWARD_TILES = Tiles(rows=64, units=64, features=64, warps=8)
BACKWARD_TILES = Tiles(rows=64, units=64, features=64, warps=8)


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


# ------------------------------------------------------------------------------------- steps that include the products


@triton.jit
@no_type_check
def _product(a, b, total):
    """total + a b, accumulated in float32; the interpreter does not support bfloat16 operands."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc=total)
    else:
        return tl.dot(a, b, acc=total)


@triton.jit(do_not_specialize=["t"])
@no_type_check
def _step_forward(
    x, bias, u, states, gates, cells, outputs, t, length, batch, hidden, features, cell_clip, projection_clip,
    ROWS: tl.constexpr, UNITS: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gates, c and o tanh(c) of step t; all h but the first are clipped here, since they are stored unclipped."""
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    direction = tl.program_id(2).to(tl.int64)
    in_row, in_unit = row < batch, unit < hidden
    inside = in_row[:, None] & in_unit[None, :]
    step = (direction * length + t) * batch + row[:, None]  # of tensors with one entry per step
    state = (direction * (length + 1) + t) * batch + row[:, None]  # of tensors that begin with the initial state
    bias += direction * 4 * hidden + unit
    u += direction * features * 4 * hidden
    x += step * 4 * hidden + unit[None, :]

    i = tl.load(x, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(x + hidden, mask=inside, other=0.0).to(tl.float32)
    f = tl.load(x + 2 * hidden, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(x + 3 * hidden, mask=inside, other=0.0).to(tl.float32)
    clip = tl.where(t > 0, projection_clip, 3.4e38)
    for first in tl.range(0, features, FEATURES, num_stages=STAGES):
        d = first + tl.arange(0, FEATURES)
        in_feature = d < features
        h = tl.load(states + state * features + d[None, :], mask=in_row[:, None] & in_feature[None, :], other=0.0)
        h = tl.minimum(tl.maximum(h.to(tl.float32), -clip), clip).to(u.dtype.element_ty)
        u_at = u + d[:, None] * 4 * hidden + unit[None, :]
        in_u = in_feature[:, None] & in_unit[None, :]
        i = _product(h, tl.load(u_at, mask=in_u, other=0.0), i)
        g = _product(h, tl.load(u_at + hidden, mask=in_u, other=0.0), g)
        f = _product(h, tl.load(u_at + 2 * hidden, mask=in_u, other=0.0), f)
        o = _product(h, tl.load(u_at + 3 * hidden, mask=in_u, other=0.0), o)

    i = tl.sigmoid(i + tl.load(bias, mask=in_unit, other=0.0).to(tl.float32)[None, :])
    g = _tanh(g + tl.load(bias + hidden, mask=in_unit, other=0.0).to(tl.float32)[None, :])
    f = tl.sigmoid(f + tl.load(bias + 2 * hidden, mask=in_unit, other=0.0).to(tl.float32)[None, :])
    o = tl.sigmoid(o + tl.load(bias + 3 * hidden, mask=in_unit, other=0.0).to(tl.float32)[None, :])
    new_cells = cells + (state + batch) * hidden + unit[None, :]
    c = f * tl.load(cells + state * hidden + unit[None, :], mask=inside, other=0.0) + i * g
    c = tl.minimum(tl.maximum(c, -cell_clip), cell_clip)
    kind = gates.dtype.element_ty
    gates += step * 4 * hidden + unit[None, :]
    tl.store(gates, i.to(kind), mask=inside)
    tl.store(gates + hidden, g.to(kind), mask=inside)
    tl.store(gates + 2 * hidden, f.to(kind), mask=inside)
    tl.store(gates + 3 * hidden, o.to(kind), mask=inside)
    tl.store(new_cells, c, mask=inside)
    tl.store(outputs + step * hidden + unit[None, :], (o * _tanh(c)).to(kind), mask=inside)


@triton.jit(do_not_specialize=["t"])
@no_type_check
def _projected_gradient(
    grad_states,
    parts,
    states,
    grad_projected,
    t,
    length,
    batch,
    features,
    clip,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of V (o tanh(c)) of step t, zero where h is clipped, from those of h as output and as input."""
    direction = tl.program_id(1).to(tl.int64)
    size = batch * features
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    step = (direction * length + t) * size + index
    total = tl.zeros([BLOCK], tl.float32)
    if grad_states is not None:
        total += tl.load(grad_states + step, mask=inside, other=0.0).to(tl.float32)
    if t + 1 < length:
        for part in tl.static_range(PARTS):
            total += tl.load(parts + (part * tl.num_programs(1) + direction) * size + index, mask=inside, other=0.0)
    h = tl.load(states + (direction * (length + 1) + t + 1) * size + index, mask=inside, other=0.0).to(tl.float32)
    total = tl.where(tl.abs(h) < clip, total, 0.0)
    tl.store(grad_projected + step, total.to(grad_projected.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["t"])
@no_type_check
def _step_backward(
    grad_projected, grad_cells, u, v, gates, cells, grad_gates, grad_cell, grad_bias, parts,
    t, length, batch, hidden, features, clip,
    ROWS: tl.constexpr, UNITS: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of the gates of step t before their activation and of c, and this tile's part of U^T dgates.

    Adds the gradient of the bias to that of the following steps.
    """
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    direction = tl.program_id(2).to(tl.int64)
    in_row, in_unit = row < batch, unit < hidden
    inside = in_row[:, None] & in_unit[None, :]
    step = (direction * length + t) * batch + row[:, None]
    state = (direction * (length + 1) + t) * batch + row[:, None]
    u += direction * features * 4 * hidden
    v += direction * hidden * features

    grad_m = tl.zeros([ROWS, UNITS], tl.float32)
    for first in tl.range(0, features, FEATURES, num_stages=STAGES):
        d = first + tl.arange(0, FEATURES)
        in_feature = d < features
        p = tl.load(
            grad_projected + step * features + d[None, :], mask=in_row[:, None] & in_feature[None, :], other=0.0
        )
        v_t = tl.load(v + unit[None, :] * features + d[:, None], mask=in_feature[:, None] & in_unit[None, :], other=0.0)
        grad_m = _product(p, v_t, grad_m)

    gates += step * 4 * hidden + unit[None, :]
    i = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gates + hidden, mask=inside, other=0.0).to(tl.float32)
    f = tl.load(gates + 2 * hidden, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(gates + 3 * hidden, mask=inside, other=0.0).to(tl.float32)
    c_before = tl.load(cells + state * hidden + unit[None, :], mask=inside, other=0.0)
    c = tl.load(cells + (state + batch) * hidden + unit[None, :], mask=inside, other=0.0)
    grad_cell += (direction * batch + row[:, None]) * hidden + unit[None, :]
    grad_c = tl.load(grad_cell, mask=inside, other=0.0)
    if grad_cells is not None:
        grad_c += tl.load(grad_cells + step * hidden + unit[None, :], mask=inside, other=0.0)
    grad_i, grad_g, grad_f, grad_o, grad_c = _gate_gradients(i, g, f, o, c, c_before, grad_m, grad_c, clip)
    tl.store(grad_cell, grad_c, mask=inside)

    kind = gates.dtype.element_ty
    grad_bias += (tl.program_id(1) * tl.num_programs(2) + direction) * 4 * hidden + unit
    _add(grad_bias, tl.sum(grad_i, axis=0), in_unit)
    _add(grad_bias + hidden, tl.sum(grad_g, axis=0), in_unit)
    _add(grad_bias + 2 * hidden, tl.sum(grad_f, axis=0), in_unit)
    _add(grad_bias + 3 * hidden, tl.sum(grad_o, axis=0), in_unit)
    grad_i, grad_g, grad_f, grad_o = grad_i.to(kind), grad_g.to(kind), grad_f.to(kind), grad_o.to(kind)
    grad_gates += step * 4 * hidden + unit[None, :]
    tl.store(grad_gates, grad_i, mask=inside)
    tl.store(grad_gates + hidden, grad_g, mask=inside)
    tl.store(grad_gates + 2 * hidden, grad_f, mask=inside)
    tl.store(grad_gates + 3 * hidden, grad_o, mask=inside)

    parts += ((tl.program_id(0) * tl.num_programs(2) + direction) * batch + row[:, None]) * features
    for first in tl.range(0, features, FEATURES, num_stages=STAGES):
        d = first + tl.arange(0, FEATURES)
        in_feature = d < features
        u_at = u + d[None, :] * 4 * hidden + unit[:, None]
        in_u = in_unit[:, None] & in_feature[None, :]
        total = tl.zeros([ROWS, FEATURES], tl.float32)
        total = _product(grad_i, tl.load(u_at, mask=in_u, other=0.0), total)
        total = _product(grad_g, tl.load(u_at + hidden, mask=in_u, other=0.0), total)
        total = _product(grad_f, tl.load(u_at + 2 * hidden, mask=in_u, other=0.0), total)
        total = _product(grad_o, tl.load(u_at + 3 * hidden, mask=in_u, other=0.0), total)
        tl.store(parts + d[None, :], total, mask=in_row[:, None] & in_feature[None, :])


@triton.jit
@no_type_check
def _add(at, x, inside):
    tl.store(at, tl.load(at, mask=inside, other=0.0) + x, mask=inside)


def step_forward(
    x: Float[Tensor, "directions length batch gates"],
    bias: Float[Tensor, "directions gates"],
    u: Float[Tensor, "directions dim gates"],
    states: Float[Tensor, "directions states batch dim"],
    gates: Float[Tensor, "directions length batch gates"],
    cells: Float[Tensor, "directions states batch hidden"],
    outputs: Float[Tensor, "directions length batch hidden"],
    t: int,
    cell_clip: float | None,
    projection_clip: float | None,
) -> None:
    """Write the activations of the gates, c and o tanh(c) of step t; h is clipped when it is read."""
    directions, length, batch, hidden = outputs.shape
    tiles = FORWARD_TILES
    with torch.cuda.device_of(x):
        _step_forward[(triton.cdiv(hidden, tiles.units), triton.cdiv(batch, tiles.rows), directions)](
            x, bias, u, states, gates, cells, outputs, t, length, batch, hidden, states.shape[-1],
            cell_clip or NO_CLIP, projection_clip or NO_CLIP,
            ROWS=tiles.rows, UNITS=tiles.units, FEATURES=tiles.features, STAGES=tiles.stages, num_warps=tiles.warps,
        )  # fmt: skip


def new_parts(
    states: Float[Tensor, "directions states batch dim"], cells: Float[Tensor, "directions states batch hidden"]
) -> tuple[Float[Tensor, "parts directions batch dim"], Float[Tensor, "tiles directions gates"]]:
    """Return zeros for the parts of U^T dgates and for the gradient of the bias."""
    directions, _, batch, dim = states.shape
    hidden = cells.shape[-1]
    parts = cells.new_zeros(triton.cdiv(hidden, BACKWARD_TILES.units), directions, batch, dim)
    return parts, cells.new_zeros(triton.cdiv(batch, BACKWARD_TILES.rows), directions, 4 * hidden)


def step_backward(
    grad_states: Float[Tensor, "directions length batch dim"] | None,
    grad_cells: Float[Tensor, "directions length batch hidden"] | None,
    u: Float[Tensor, "directions dim gates"],
    v: Float[Tensor, "directions hidden dim"],
    states: Float[Tensor, "directions states batch dim"],
    gates: Float[Tensor, "directions length batch gates"],
    cells: Float[Tensor, "directions states batch hidden"],
    grad_projected: Float[Tensor, "directions length batch dim"],
    grad_gates: Float[Tensor, "directions length batch gates"],
    grad_cell: Float[Tensor, "directions batch hidden"],
    grad_bias: Float[Tensor, "tiles directions gates"],
    parts: Float[Tensor, "parts directions batch dim"],
    t: int,
    cell_clip: float | None,
    projection_clip: float | None,
) -> None:
    """Write the gradients of V (o tanh(c)) and of the gates of step t, and the parts of that of the previous h.

    Overwrite the gradient of c with that of the previous c, and add to that of the bias.
    """
    directions, length, batch, dim = grad_projected.shape
    hidden, tiles = v.shape[1], BACKWARD_TILES
    with torch.cuda.device_of(u):
        _projected_gradient[(triton.cdiv(batch * dim, BLOCK), directions)](
            grad_states, parts, states, grad_projected, t, length, batch, dim, projection_clip or NO_CLIP,
            PARTS=len(parts), BLOCK=BLOCK,
        )  # fmt: skip
        _step_backward[(triton.cdiv(hidden, tiles.units), triton.cdiv(batch, tiles.rows), directions)](
            grad_projected, grad_cells, u, v, gates, cells, grad_gates, grad_cell, grad_bias, parts,
            t, length, batch, hidden, dim, cell_clip or NO_CLIP,
            ROWS=tiles.rows, UNITS=tiles.units, FEATURES=tiles.features, STAGES=tiles.stages, num_warps=tiles.warps,
        )  # fmt: skip
