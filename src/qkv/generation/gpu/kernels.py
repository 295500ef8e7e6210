"""Triton kernels of one decoding step of a Transformer stack; `gpu_stack` launches them.

A step has few operations and many dependent launches, so its time is that of reading the weights plus the latencies.
Every layer has five launches: qkv, attention, out, up and down (eight with cross-attention). Layer normalization needs
none: with g and s the gain and the shift of the norm, mu and sigma the moments of x,

    W (g (x - mu) / sigma + s) + b  =  (W (g x) - mu W g) / sigma + (W s + b)

so the moments are needed only after the product, and W g and W s + b are computed in advance. The residual stream x is
float32. Two kernels multiply matrices:

    vector_linear   few rows: every warp reduces whole outputs; reads x and computes its moments on the way
    matrix_linear   more rows: tensor cores; the kernel that updates x also writes g x for its reader, in the type of
                    the weights, and the sums of x and x^2 over each of its tiles, which the reader adds up

Both end with `_finish`: scale of int8 weights, norm, bias, activation, and one of three outputs:

    plain      out = y                                   queries of cross-attention, feed-forward network, logits
    residual   x = y + x, or y + norm(x) in post-norm    output projections
    qkv        queries to a buffer, keys and values to the cache

Programmatic dependent launch (PDL): a kernel may start while its predecessor runs, loads what does not depend on it,
such as weights, and waits for its end. It lets its successor start after that wait, so that all launches before the
predecessor have ended when a kernel starts, and their results may be read before the wait.
"""

# ruff: noqa: N803, N806 (upper-case names are compile-time constants, following the Triton convention)
# ruff: noqa: RUF005, SIM108, SIM114 (Triton compiles neither unpacking nor conditions that mix both kinds of values)
# `no_type_check` keeps run-time type checkers from wrapping the functions that Triton compiles.

from typing import no_type_check

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


# ------------------------------------------------------------------------------------------------ device functions


@triton.jit
@no_type_check
def _wait(PDL: tl.constexpr):
    """Wait for the end of the previous kernel, then let the next one start."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
@no_type_check
def _prefetch(pointers):
    """Fetch the cache lines of these addresses into the L2 cache."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [pointers.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
@no_type_check
def _position(positions_ptr, row, capacity):
    """Position of the new token of a row; positions beyond the cache overwrite its last token."""
    return tl.minimum(tl.load(positions_ptr + row), capacity - 1)


@triton.jit
@no_type_check
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
@no_type_check
def _activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # 0.5 (1 + tanh(z)) = sigmoid(2 z)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "tanh":
        x = _tanh(x)
    return x


@triton.jit
@no_type_check
def _moments(total, squares, eps, DIM: tl.constexpr):
    """Mean and reciprocal standard deviation from the sums of x and x^2."""
    mean = total / DIM
    return mean, 1.0 / tl.sqrt(tl.maximum(squares / DIM - mean * mean, 0.0) + eps)


@triton.jit
@no_type_check
def _optional(pointer, at, inside):
    """Load floats, or return zero if there is no tensor."""
    if pointer is not None:
        return tl.load(pointer + at, mask=inside, other=0.0)
    else:
        return 0.0


@triton.jit
@no_type_check
def _constants(
    n, scale_ptr, column_ptr, bias_ptr, residual_gain_ptr, residual_shift_ptr, next_gain_ptr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Load what `_finish` needs for the outputs `n` and what is known before a step."""
    inside = n < OUTPUTS
    return (
        _optional(scale_ptr, n, inside), _optional(column_ptr, n, inside), _optional(bias_ptr, n, inside),
        _optional(residual_gain_ptr, n, inside), _optional(residual_shift_ptr, n, inside),
        _optional(next_gain_ptr, n, inside),
    )  # fmt: skip


@triton.jit
@no_type_check
def _residual(x_ptr, m, n, rows, OUTPUTS: tl.constexpr, MODE: tl.constexpr):
    """Load the residual stream, in the residual mode."""
    if MODE == "residual":
        return tl.load(x_ptr + m * OUTPUTS + n, mask=(m < rows) & (n < OUTPUTS), other=0.0)
    else:
        return 0.0


@triton.jit
@no_type_check
def _positions(positions_ptr, m, rows, capacity):
    """Positions of the new tokens, where they are needed."""
    if positions_ptr is not None:
        return tl.minimum(tl.load(positions_ptr + m, mask=m < rows, other=0), capacity - 1)
    else:
        return 0


@triton.jit
@no_type_check
def _finish(
    y, m, n, rows, mean, deviation, constants, residual, position, scale_ptr, column_ptr, bias_ptr, out_ptr, x_ptr,
    moments_ptr, moments_stride, residual_gain_ptr, h_ptr, next_gain_ptr, key_ptr, value_ptr, capacity,
    OUTPUTS: tl.constexpr, MODE: tl.constexpr, ACTIVATION: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Turn products into outputs and store them; return the new residual stream, zero outside, in the residual mode.

    `m` and `n`, rows and outputs, broadcast to the shape of `y`; so do `mean` and `deviation`, the reciprocal.
    """
    inside = (m < rows) & (n < OUTPUTS)
    if scale_ptr is not None:
        y *= constants[0]
    if column_ptr is not None:
        y = (y - mean * constants[1]) * deviation
    if bias_ptr is not None:
        y += constants[2]
    y = _activate(y, ACTIVATION)
    if MODE == "plain":
        tl.store(out_ptr + m.to(tl.int64) * OUTPUTS + n, y.to(out_ptr.dtype.element_ty), mask=inside)
    elif MODE == "residual":
        if residual_gain_ptr is not None:
            residual_mean = tl.load(moments_ptr + m)
            residual_deviation = tl.load(moments_ptr + moments_stride + m)
            residual = (residual - residual_mean) * residual_deviation * constants[3] + constants[4]
        y = tl.where(inside, y + residual, 0.0)
        tl.store(x_ptr + m * OUTPUTS + n, y, mask=inside)
        if h_ptr is not None:
            h = y
            if next_gain_ptr is not None:
                h *= constants[5]
            tl.store(h_ptr + m * OUTPUTS + n, h.to(h_ptr.dtype.element_ty), mask=inside)
    else:
        DIM: tl.constexpr = HEADS * HEAD_DIM
        tl.store(out_ptr + m * DIM + n, y, mask=inside & (n < DIM))
        feature = n % DIM
        cached_at = (m * HEADS + feature // HEAD_DIM).to(tl.int64) * capacity + position
        cached_at = cached_at * HEAD_DIM + feature % HEAD_DIM
        cached = y.to(key_ptr.dtype.element_ty)
        tl.store(key_ptr + cached_at, cached, mask=inside & (n >= DIM) & (n < 2 * DIM))
        tl.store(value_ptr + cached_at, cached, mask=inside & (n >= 2 * DIM))
    return y


@triton.jit
@no_type_check
def _product(a, b, acc):
    """acc + a b in float32, with b in the type of a; the interpreter does not support bfloat16 operands."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc=acc)
    else:
        return tl.dot(a, b.to(a.dtype), acc=acc, input_precision="ieee")


@triton.jit
@no_type_check
def _part_sums(sums_ptr, first, m, rows_padded, parts, PARTS: tl.constexpr):
    """Sums of x and x^2 over parts of each row, which the kernel that wrote x left."""
    part = first + tl.arange(0, PARTS)
    at = sums_ptr + part[:, None] * 2 * rows_padded + m[None, :]
    inside = (part < parts)[:, None]
    return tl.load(at, mask=inside, other=0.0), tl.load(at + rows_padded, mask=inside, other=0.0)


# --------------------------------------------------------------------------------------------------------- embedding


@triton.jit(do_not_specialize=["capacity", "num_positions"])
@no_type_check
def embed(
    ids_ptr, positions_ptr, table_ptr, weight_ptr, scale_ptr, encoding_ptr, gain_ptr, x_ptr, h_ptr, sums_ptr,
    rows_padded, capacity, num_positions, embed_scale,
    DIM: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Start the residual stream of a row, and let the table point to its own cache at the new position."""
    _wait(PDL)
    row = tl.program_id(0)
    position = _position(positions_ptr, row, capacity)
    tl.store(table_ptr + row * capacity + position, row)
    token = tl.load(ids_ptr + row).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < DIM
    x = tl.load(weight_ptr + token * DIM + d, mask=inside, other=0.0).to(tl.float32)
    if scale_ptr is not None:
        x *= tl.load(scale_ptr + token)
    x *= embed_scale
    if encoding_ptr is not None:
        x += tl.load(encoding_ptr + tl.minimum(position, num_positions - 1) * DIM + d, mask=inside, other=0.0)
    tl.store(x_ptr + row * DIM + d, x, mask=inside)
    if h_ptr is not None:
        h = x
        if gain_ptr is not None:
            h *= tl.load(gain_ptr + d, mask=inside, other=0.0)
        tl.store(h_ptr + row * DIM + d, h.to(h_ptr.dtype.element_ty), mask=inside)
        tl.store(sums_ptr + row, tl.sum(x, axis=0))
        tl.store(sums_ptr + rows_padded + row, tl.sum(x * x, axis=0))


# ----------------------------------------------------------------------------------------------------------- linears


@triton.jit
@no_type_check
def _weight_tile(weight_ptr, n, k, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, MASKED: tl.constexpr):
    """Weights of the outputs `n` and the inputs `k`."""
    at = weight_ptr + tl.minimum(n, OUTPUTS - 1).to(tl.int64)[:, None] * INPUTS + k[None, :]
    if MASKED:
        return tl.load(at, mask=(k < INPUTS)[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
@no_type_check
def _input_row(pointer, k, INPUTS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """The inputs `k` of a row, repeated for each output of a tile."""
    at = tl.broadcast_to(pointer + k[None, :], [TILE, CHUNK])
    return tl.load(at, mask=tl.broadcast_to((k < INPUTS)[None, :], [TILE, CHUNK]), other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _preload(
    weight_ptr, gain_ptr, first, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Load the first chunks of weights and gains, which do not depend on the previous kernel."""
    weights = ()
    gains = ()
    for c in tl.static_range(CHUNKS):
        k = c * CHUNK + tl.arange(0, CHUNK)
        for t in tl.static_range(TILES):
            n = first + t * TILE + tl.arange(0, TILE)
            weights = weights + (_weight_tile(weight_ptr, n, k, OUTPUTS, INPUTS, (c + 1) * CHUNK > INPUTS),)
        if NORM:
            gains = gains + (_input_row(gain_ptr, k, INPUTS, TILE, CHUNK),)
    return weights, gains


@triton.jit
@no_type_check
def _accumulate(
    source_ptr, weight_ptr, gain_ptr, weights, gains, first, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Products of all rows and tiles, and sums of x and x^2, one column per lane: the caller adds up the columns."""
    sums = ()
    totals = ()
    squares = ()
    for _ in tl.static_range(ROWS * TILES):
        sums = sums + (tl.zeros([TILE, CHUNK], tl.float32),)
    for _ in tl.static_range(ROWS):
        totals = totals + (tl.zeros([TILE, CHUNK], tl.float32),)
        squares = squares + (tl.zeros([TILE, CHUNK], tl.float32),)
    for c in tl.static_range((INPUTS + CHUNK - 1) // CHUNK):
        k = c * CHUNK + tl.arange(0, CHUNK)
        tiles = ()
        for t in tl.static_range(TILES):
            if c < CHUNKS:
                tiles = tiles + (weights[c * TILES + t].to(tl.float32),)
            else:
                n = first + t * TILE + tl.arange(0, TILE)
                tiles = tiles + (_weight_tile(weight_ptr, n, k, OUTPUTS, INPUTS, True).to(tl.float32),)
        new_sums = ()
        new_totals = ()
        new_squares = ()
        for row in tl.static_range(ROWS):
            x = _input_row(source_ptr + row * INPUTS, k, INPUTS, TILE, CHUNK)
            if NORM:
                new_totals = new_totals + (totals[row] + x,)
                new_squares = new_squares + (squares[row] + x * x,)
                if c < CHUNKS:
                    x *= gains[c]
                else:
                    x *= _input_row(gain_ptr, k, INPUTS, TILE, CHUNK)
            for t in tl.static_range(TILES):
                new_sums = new_sums + (sums[row * TILES + t] + tiles[t] * x,)
        sums = new_sums
        if NORM:
            totals = new_totals
            squares = new_squares
    return sums, totals, squares


@triton.jit(do_not_specialize=["capacity"])
@no_type_check
def vector_linear(
    source_ptr, weight_ptr, gain_ptr, eps, scale_ptr, column_ptr, bias_ptr, out_ptr, x_ptr, moments_ptr, rows_padded,
    residual_gain_ptr, residual_shift_ptr, h_ptr, next_gain_ptr, sums_ptr, key_ptr, value_ptr, positions_ptr, capacity,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, STORE_MOMENTS: tl.constexpr, MODE: tl.constexpr,
    ACTIVATION: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`TILES` tiles of `TILE` outputs for up to four rows; the weights of the first `CHUNKS` chunks are preloaded."""
    NORM: tl.constexpr = column_ptr is not None
    first = tl.program_id(0) * TILES * TILE
    lane = tl.arange(0, TILE)
    constants = ()
    for t in tl.static_range(TILES):
        constants = constants + (
            _constants(
                first + t * TILE + lane, scale_ptr, column_ptr, bias_ptr, residual_gain_ptr, residual_shift_ptr,
                next_gain_ptr, OUTPUTS,
            ),
        )  # fmt: skip
    positions = ()
    for row in tl.static_range(ROWS):
        positions = positions + (_positions(positions_ptr, row + tl.zeros([TILE], tl.int32), ROWS, capacity),)
    weights, gains = _preload(weight_ptr, gain_ptr, first, OUTPUTS, INPUTS, TILE, TILES, CHUNK, CHUNKS, NORM)
    _wait(PDL)

    residuals = ()
    for row in tl.static_range(ROWS):
        for t in tl.static_range(TILES):
            n = first + t * TILE + lane
            residuals = residuals + (_residual(x_ptr, row + tl.zeros([TILE], tl.int32), n, ROWS, OUTPUTS, MODE),)
    sums, totals, squares = _accumulate(
        source_ptr, weight_ptr, gain_ptr, weights, gains, first, ROWS, OUTPUTS, INPUTS, TILE, TILES, CHUNK, CHUNKS, NORM
    )
    for row in tl.static_range(ROWS):
        mean = tl.zeros([TILE], tl.float32)
        deviation = mean
        if NORM:
            mean, deviation = _moments(tl.sum(totals[row], axis=1), tl.sum(squares[row], axis=1), eps, INPUTS)
            if STORE_MOMENTS:
                at = moments_ptr + row + tl.zeros([TILE], tl.int32)
                mine = (first + lane) == 0
                tl.store(at, mean, mask=mine)
                tl.store(at + rows_padded, deviation, mask=mine)
        total = 0.0
        square = 0.0
        for t in tl.static_range(TILES):
            m = row + tl.zeros([TILE], tl.int32)
            y = _finish(
                tl.sum(sums[row * TILES + t], axis=1), m, first + t * TILE + lane, ROWS, mean, deviation, constants[t],
                residuals[row * TILES + t], positions[row], scale_ptr, column_ptr, bias_ptr, out_ptr, x_ptr,
                moments_ptr, rows_padded, residual_gain_ptr, h_ptr, next_gain_ptr, key_ptr, value_ptr, capacity,
                OUTPUTS, MODE, ACTIVATION, HEADS, HEAD_DIM,
            )  # fmt: skip
            if MODE == "residual" and h_ptr is not None:
                total += tl.sum(y, axis=0)
                square += tl.sum(y * y, axis=0)
        if MODE == "residual" and h_ptr is not None:
            at = sums_ptr + tl.program_id(0) * 2 * rows_padded + row
            tl.store(at, total)
            tl.store(at + rows_padded, square)


@triton.jit
@no_type_check
def _prefetch_weights(weight_at, begin, SHARE: tl.constexpr, INPUTS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Fetch the weights of a program into the L2 cache."""
    LINE: tl.constexpr = 128 // (weight_at.dtype.element_ty.primitive_bitwidth // 8)
    LINES: tl.constexpr = BLOCK_K // LINE
    if LINES > 0:
        for ahead in range(begin, begin + SHARE, BLOCK_K):
            _prefetch(weight_at + tl.minimum(ahead + tl.arange(0, LINES) * LINE, INPUTS - 1)[:, None])


@triton.jit
@no_type_check
def _multiply(
    source_ptr, weight_at, m, acc, begin, SHARE: tl.constexpr, INPUTS: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """acc + the product of rows and weights over a share of the inputs."""
    for first in range(begin, begin + SHARE, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        source_at = source_ptr + m[:, None] * INPUTS + k[None, :]
        if INPUTS % (SPLIT * BLOCK_K) == 0:
            a = tl.load(source_at)
            b = tl.load(weight_at + k[:, None])
        else:
            a = tl.load(source_at, mask=(k < INPUTS)[None, :], other=0.0)
            b = tl.load(weight_at + k[:, None], mask=(k < INPUTS)[:, None], other=0.0)
        acc = _product(a, b, acc)
    return acc


@triton.jit
@no_type_check
def _add_splits(acc, m, n, partial_ptr, counters_ptr, rows_padded, OUTPUTS: tl.constexpr, SPLIT: tl.constexpr):
    """Store the products of one program; the last of the programs of a tile returns their sum, in a fixed order."""
    partial_at = partial_ptr + m[:, None] * OUTPUTS + tl.minimum(n, OUTPUTS - 1)[None, :]
    stride = rows_padded * OUTPUTS
    tl.store(partial_at + tl.program_id(2) * stride, acc, mask=(n < OUTPUTS)[None, :])
    counter = counters_ptr + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLIT - 1
    if last:
        tl.store(counter, 0)
        acc = tl.zeros_like(acc)
        for split in tl.static_range(SPLIT):
            acc += tl.load(partial_at + split * stride, cache_modifier=".cg")
    return acc, last


@triton.jit
@no_type_check
def _add_parts(totals, squares, sums_ptr, m, rows_padded, parts, PARTS: tl.constexpr):
    """Sums of x and x^2 of each row, given those of the first parts."""
    total = tl.sum(totals, axis=0)
    square = tl.sum(squares, axis=0)
    for others in range(PARTS, parts, PARTS):
        totals, squares = _part_sums(sums_ptr, others, m, rows_padded, parts, PARTS)
        total += tl.sum(totals, axis=0)
        square += tl.sum(squares, axis=0)
    return total, square


@triton.jit(do_not_specialize=["rows", "parts", "capacity"])
@no_type_check
def matrix_linear(
    source_ptr, product_ptr, weight_ptr, eps, scale_ptr, column_ptr, bias_ptr, out_ptr, x_ptr, moments_ptr, rows,
    rows_padded, residual_gain_ptr, residual_shift_ptr, h_ptr, next_gain_ptr, sums_ptr, key_ptr, value_ptr,
    positions_ptr, capacity, partial_ptr, counters_ptr, parts,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr, PARTS: tl.constexpr, STORE_MOMENTS: tl.constexpr, MODE: tl.constexpr,
    ACTIVATION: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PREFETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of rows and outputs; with `product_ptr`, the product exists already and only `_finish` is left.

    With `SPLIT` > 1, programs share the inputs of a tile, and the last one adds up the sums of all in a fixed order.
    """
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (m < rows)[:, None] & (n < OUTPUTS)[None, :]
    SHARE: tl.constexpr = ((INPUTS + SPLIT - 1) // SPLIT + BLOCK_K - 1) // BLOCK_K * BLOCK_K
    begin = tl.program_id(2) * SHARE
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    constants = _constants(
        n[None, :], scale_ptr, column_ptr, bias_ptr, residual_gain_ptr, residual_shift_ptr, next_gain_ptr, OUTPUTS
    )
    position = _positions(positions_ptr, m[:, None], rows, capacity)
    if product_ptr is not None:
        _wait(PDL)
    else:
        weight_at = weight_ptr + tl.minimum(n, OUTPUTS - 1).to(tl.int64)[None, :] * INPUTS
        if PREFETCH:
            _prefetch_weights(weight_at, begin, SHARE, INPUTS, BLOCK_K)
        _wait(PDL)
    residual = _residual(x_ptr, m[:, None], n[None, :], rows, OUTPUTS, MODE)
    if column_ptr is not None:
        totals, squares = _part_sums(sums_ptr, 0, m, rows_padded, parts, PARTS)
    if product_ptr is not None:
        acc = tl.load(product_ptr + m[:, None] * OUTPUTS + n[None, :], mask=inside, other=0.0).to(tl.float32)
    else:
        acc = _multiply(source_ptr, weight_at, m, acc, begin, SHARE, INPUTS, SPLIT, BLOCK_K)

    last = True
    if SPLIT > 1:
        acc, last = _add_splits(acc, m, n, partial_ptr, counters_ptr, rows_padded, OUTPUTS, SPLIT)
    if last:
        mean = tl.zeros([BLOCK_M, 1], tl.float32)
        deviation = mean
        if column_ptr is not None:
            total, square = _add_parts(totals, squares, sums_ptr, m, rows_padded, parts, PARTS)
            mean, deviation = _moments(total, square, eps, INPUTS)
            if STORE_MOMENTS and tl.program_id(0) == 0:
                tl.store(moments_ptr + m, mean)
                tl.store(moments_ptr + rows_padded + m, deviation)
            mean = mean[:, None]
            deviation = deviation[:, None]
        y = _finish(
            acc, m[:, None], n[None, :], rows, mean, deviation, constants, residual, position, scale_ptr, column_ptr,
            bias_ptr, out_ptr, x_ptr, moments_ptr, rows_padded, residual_gain_ptr, h_ptr, next_gain_ptr, key_ptr,
            value_ptr, capacity, OUTPUTS, MODE, ACTIVATION, HEADS, HEAD_DIM,
        )  # fmt: skip
        if MODE == "residual" and h_ptr is not None:
            at = sums_ptr + tl.program_id(0) * 2 * rows_padded + m
            tl.store(at, tl.sum(y, axis=1))
            tl.store(at + rows_padded, tl.sum(y * y, axis=1))


# --------------------------------------------------------------------------------------------------------- attention


@triton.jit
@no_type_check
def _cached(
    key_ptr, value_ptr, rows_ptr, row, head, source, t, end, capacity, CROSS: tl.constexpr, HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Keys and values of the tokens `t` before `end`, of a source or of the rows in the table."""
    if CROSS:
        owner = source
    else:
        owner = tl.load(rows_ptr + row * capacity + t, mask=t < end, other=0)
    base = (owner * HEADS + head).to(tl.int64) * capacity
    at = ((base + t) * HEAD_DIM)[:, None] + tl.arange(0, HEAD_DIM)[None, :]
    old = (t < end)[:, None]
    return tl.load(key_ptr + at, mask=old, other=0.0), tl.load(value_ptr + at, mask=old, other=0.0)


@triton.jit
@no_type_check
def _scores(key, query, inside):
    return tl.where(inside, tl.sum(key.to(tl.float32) * query[None, :], axis=1), float("-inf"))


@triton.jit
@no_type_check
def _online_softmax(top, total, sums, key, value, query, inside):
    """Add one tile of tokens to the largest scores, denominators and weighted sums of the slots."""
    score = _scores(key, query, inside)
    new_top = tl.maximum(top, score)  # finite: the first tile is full if there is a second
    decay = tl.exp(top - new_top)
    weight = tl.exp(score - new_top)
    return new_top, total * decay + weight, sums * decay[:, None] + weight[:, None] * value.to(tl.float32)


@triton.jit
@no_type_check
def _combine_slots(top, total, sums, new_score, new_value, CROSS: tl.constexpr):
    """Largest score, denominator and weighted sum of all slots and, in self-attention, of the new token."""
    highest = tl.max(top, axis=0)
    if not CROSS:
        highest = tl.maximum(highest, new_score)
    slot_weight = tl.exp(top - highest)
    denominator = tl.sum(total * slot_weight, axis=0)
    result = tl.sum(sums * slot_weight[:, None], axis=0)
    if not CROSS:
        new_weight = tl.exp(new_score - highest)
        denominator += new_weight
        result += new_weight * new_value
    return highest, denominator, result


@triton.jit
@no_type_check
def _store_attention(
    result, highest, denominator, head, split, active, out_ptr, partial_ptr, counters_ptr, HEAD_DIM: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Store the output of a head; if `active` programs share it, the last one adds up the results of all."""
    d = tl.arange(0, HEAD_DIM)
    out_at = out_ptr + head * HEAD_DIM + d
    if SPLIT == 1:
        tl.store(out_at, (result / denominator).to(out_ptr.dtype.element_ty))
    elif active == 1:
        tl.store(out_at, (result / denominator).to(out_ptr.dtype.element_ty))
    else:
        WIDTH: tl.constexpr = HEAD_DIM + 2
        partial_ptr += head * SPLIT * WIDTH
        tl.store(partial_ptr + split * WIDTH + d, result)
        tl.store(partial_ptr + split * WIDTH + HEAD_DIM, highest)
        tl.store(partial_ptr + split * WIDTH + HEAD_DIM + 1, denominator)
        tl.debug_barrier()
        if tl.atomic_add(counters_ptr + head, 1, sem="acq_rel") == active - 1:
            tl.store(counters_ptr + head, 0)
            top_all = tl.full([1], float("-inf"), tl.float32)
            total_all = tl.zeros([1], tl.float32)
            result_all = tl.zeros([HEAD_DIM], tl.float32)
            for other in range(active):
                partial_at = partial_ptr + other * WIDTH
                one = tl.arange(0, 1)
                part_top = tl.load(partial_at + HEAD_DIM + one, cache_modifier=".cg")
                part_total = tl.load(partial_at + HEAD_DIM + 1 + one, cache_modifier=".cg")
                part = tl.load(partial_at + d, cache_modifier=".cg")
                new_top_all = tl.maximum(top_all, part_top)
                keep = tl.exp(top_all - new_top_all)
                add = tl.exp(part_top - new_top_all)
                result_all = result_all * keep + part * add
                total_all = total_all * keep + part_total * add
                top_all = new_top_all
            tl.store(out_at, (result_all / total_all).to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["capacity"])
@no_type_check
def attend(
    query_ptr, key_ptr, value_ptr, rows_ptr, lengths_ptr, out_ptr, partial_ptr, counters_ptr, capacity, scale,
    CROSS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS: tl.constexpr, SHARE: tl.constexpr,
    SPLIT: tl.constexpr, SHARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of one row over its cached tokens, or over a share of them.

    In self-attention, `rows_ptr` is the table and `lengths_ptr` has the positions of the new tokens; in
    cross-attention, they are the source of each row and the lengths of the sources. Every slot of a tile of tokens has
    its own online softmax, so that threads exchange nothing but dot products until the end. With `SHARED`, a row also
    attends to tokens that other rows cache in this step, so it must wait before it loads anything.
    """
    if SHARED:
        _wait(PDL)
    head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    d = tl.arange(0, HEAD_DIM)
    slot = tl.arange(0, TOKENS)
    if CROSS:
        source = tl.load(rows_ptr + row)
        length = tl.minimum(tl.load(lengths_ptr + source), capacity)
        position = length
    else:
        source = row
        position = _position(lengths_ptr, row, capacity)  # tokens before it are older than this step
        length = position + 1
    begin = split * SHARE
    if begin < length:
        end = tl.minimum(begin + SHARE, position)
        t = begin + slot
        key, value = _cached(key_ptr, value_ptr, rows_ptr, row, head, source, t, end, capacity, CROSS, HEADS, HEAD_DIM)
        _wait(PDL)
        query = tl.load(query_ptr + (row * HEADS + head) * HEAD_DIM + d) * scale
        new_value = query
        if not CROSS:
            new_at = ((row * HEADS + head).to(tl.int64) * capacity + position) * HEAD_DIM + d
            new_key = tl.load(key_ptr + new_at).to(tl.float32)
            new_value = tl.load(value_ptr + new_at).to(tl.float32)

        top = _scores(key, query, t < end)
        weight = tl.where(t < end, 1.0, 0.0)
        total = weight
        sums = weight[:, None] * value.to(tl.float32)
        for first in range(begin + TOKENS, end, TOKENS):
            t = first + slot
            key, value = _cached(
                key_ptr, value_ptr, rows_ptr, row, head, source, t, end, capacity, CROSS, HEADS, HEAD_DIM
            )
            top, total, sums = _online_softmax(top, total, sums, key, value, query, t < end)

        new_score = float("-inf")
        if not CROSS:
            mine = (position >= begin) & (position < begin + SHARE)  # the new token
            new_score = tl.where(mine, tl.sum(new_key * query, axis=0), float("-inf"))
        highest, denominator, result = _combine_slots(top, total, sums, new_score, new_value, CROSS)
        _store_attention(
            result, highest, denominator, row * HEADS + head, split, (length + SHARE - 1) // SHARE, out_ptr,
            partial_ptr, counters_ptr, HEAD_DIM, SPLIT,
        )  # fmt: skip
    else:
        _wait(PDL)


# --------------------------------------------------------------------------------------------------- greedy selection


@triton.jit
@no_type_check
def select_parts(
    logits_ptr, blocked_ptr, plan_ptr, plan_stride, steps_ptr, tops_ptr, indices_ptr, highest_ptr, totals_ptr,
    END: tl.constexpr, NOT_END: tl.constexpr, VOCAB: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Largest allowed logit of a part of the vocabulary, its lowest index, the largest of all, and sum exp(logit)."""
    _wait(PDL)
    part = tl.program_id(0)
    row = tl.program_id(1)
    v = part * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row.to(tl.int64) * VOCAB + v, mask=v < VOCAB, other=float("-inf"))
    allowed = v < VOCAB
    if blocked_ptr is not None:
        allowed = allowed & (tl.load(blocked_ptr + v, mask=v < VOCAB, other=1) == 0)
    constraint = tl.load(plan_ptr + row * plan_stride + tl.load(steps_ptr + row))
    allowed = allowed & ((constraint != NOT_END) | (v != END))
    candidates = tl.where(allowed, logits, float("-inf"))
    top = tl.max(candidates, axis=0)
    at = row * PARTS + part
    tl.store(tops_ptr + at, top)
    tl.store(indices_ptr + at, tl.min(tl.where((candidates == top) & allowed, v, VOCAB), axis=0))
    highest = tl.max(logits, axis=0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(highest_ptr + at, highest)
    tl.store(totals_ptr + at, tl.sum(tl.exp(logits - base), axis=0))


@triton.jit
@no_type_check
def select(
    tops_ptr, indices_ptr, highest_ptr, totals_ptr, logits_ptr, plan_ptr, plan_stride, steps_ptr, limits_ptr,
    active_ptr, token_ptr, sum_ptr,
    END: tl.constexpr, VOCAB: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Select the token of a row, the forced one or the one with the largest logit, and advance the row by it."""
    _wait(PDL)
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    inside = part < PARTS
    at = row * PARTS + part
    tops = tl.load(tops_ptr + at, mask=inside, other=float("-inf"))
    indices = tl.load(indices_ptr + at, mask=inside, other=VOCAB)
    highest = tl.load(highest_ptr + at, mask=inside, other=float("-inf"))
    totals = tl.load(totals_ptr + at, mask=inside, other=0.0)
    value = tl.max(tops, axis=0)
    token = tl.minimum(tl.min(tl.where(tops == value, indices, VOCAB), axis=0), VOCAB - 1)
    base = tl.max(highest, axis=0)
    normalizer = base + tl.log(tl.sum(totals * tl.exp(highest - base), axis=0))
    step = tl.load(steps_ptr + row)
    plan_at = plan_ptr + row * plan_stride + step
    forced = tl.load(plan_at)
    if forced >= 0:
        token = forced
        value = tl.load(logits_ptr + row.to(tl.int64) * VOCAB + forced)
    tl.store(plan_at, token)
    tl.store(token_ptr + row, token)
    if tl.load(active_ptr + row) != 0:
        tl.store(sum_ptr + row, tl.load(sum_ptr + row) + (value - normalizer).to(tl.float64))
        tl.store(steps_ptr + row, step + 1)
        going = (step + 1 < tl.load(limits_ptr + row)) & (token != END)
        tl.store(active_ptr + row, going.to(tl.int8))


# -------------------------------------------------------------------------------------------------------- beam search


@triton.jit
@no_type_check
def log_sum_exp(logits_ptr, out_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """log sum exp(logit) of a row."""
    _wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -1e38, tl.float32)  # finite, so that differences of -inf do not occur
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, VOCAB, BLOCK):
        v = first + slot
        logits = tl.load(logits_ptr + row * VOCAB + v, mask=v < VOCAB, other=float("-inf"))
        new_top = tl.maximum(top, logits)
        total = total * tl.exp(top - new_top) + tl.exp(logits - new_top)
        top = new_top
    highest = tl.max(top, axis=0)
    tl.store(out_ptr + row, highest + tl.log(tl.sum(total * tl.exp(top - highest), axis=0)))


@triton.jit
@no_type_check
def top_k_parts(
    values_ptr, tops_ptr, indices_ptr, VOCAB: tl.constexpr, PARTS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The K largest values of a part of a row and their indices."""
    _wait(PDL)
    part = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    slot = tl.arange(0, BLOCK)
    v = part * BLOCK + slot
    values = tl.load(values_ptr + row * VOCAB + v, mask=v < VOCAB, other=float("-inf"))
    at = (row * PARTS + part) * K
    for number in range(K):
        top, index = tl.max(values, axis=0, return_indices=True)
        tl.store(tops_ptr + at + number, top)
        tl.store(indices_ptr + at + number, tl.minimum(part * BLOCK + index, VOCAB - 1).to(tl.int64))
        values = tl.where(slot == index, float("-inf"), values)
