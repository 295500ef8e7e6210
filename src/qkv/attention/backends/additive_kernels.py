"""Triton kernels of additive attention without a [query, key, hidden] tensor; `additive` launches them.

    S[q, k] = sum_d v[d] tanh(Q[d, q] + K[d, k])        P = softmax of S over the unmasked keys        O = P V

The tanh evaluations dominate the cost: the special-function unit has at most a quarter of the throughput of additions
and multiplications. So tanh is decomposed. With

    A[d, q] = exp(2 Q[d, q])      B[d, k] = exp(2 K[d, k])      r = 1 / (1 + A B)

tanh(Q + K) = 1 - 2 r: the exponentials are computed once per position, which leaves one reciprocal per query, key and
hidden unit, and two hidden units share one, since 1/x = y / (x y) and 1/y = x / (x y). In these terms

    S = sum_d v (1 - 2 r)                   dv = sum_qk dS (1 - 2 r)
    dQ = v sum_k dS 4 r (1 - r)             dK = v sum_q dS 4 r (1 - r)

where dS = P (dO V^T - rowsum(dO O)). Its rows sum to zero only if O is not rounded, so the 1 in dv is kept.
Scaling avoids overflow: A and B are scaled by 2^-15 each, and 1 + A B becomes m = min(1, 2^-30 + A B), so that products
of two m are normal numbers. The minimum loses nothing: where it applies, tanh is 1 to the last bit. Queries and keys
are clamped to +-MAX_MAGNITUDE.

The cost of loads depends on which elements of a tile a thread holds. With four by four elements, eight loads serve
sixteen products; `_four_by_four` forces that layout.

In scratch memory, positions and hidden units are padded to whole tiles, so that loads need no mask and are aligned for
all sizes; padding is always written, with finite values. The exponentials of an item (one head of one batch row) form
one matrix: those of its queries, followed by those of its keys.
"""

# ruff: noqa: N803 (upper-case arguments are compile-time constants, following the Triton convention)
# `no_type_check` keeps run-time type checkers from wrapping the functions that Triton compiles.

from typing import no_type_check

import triton
import triton.language as tl

MAX_MAGNITUDE = 38.0  # clamp of queries and keys: exp(2 x) 2^-15 is a normal float32 up to here

VARYING = ["first_item", "queries", "item_queries", "keys"]  # integer arguments that do not trigger specialization

INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
FLOOR: tl.constexpr = tl.constexpr(2.0**-30)
HALF_SHIFT: tl.constexpr = tl.constexpr(15.0)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
CLAMP: tl.constexpr = tl.constexpr(MAX_MAGNITUDE)


# ------------------------------------------------------------------------------------------------ device functions


@triton.jit
@no_type_check
def _scaled_sum(a, b):
    """min(1, 2^-30 + a b), i.e. 2^-30 (1 + exp(2 (q + k))): one saturating fma (0f30800000 is 2^-30)."""
    if INTERPRETED:
        return tl.minimum(a * b + FLOOR, 1.0)
    else:
        return tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, $2, 0f30800000;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
@no_type_check
def _exponential(x):
    """exp(2 x) 2^-15, with x clamped."""
    return tl.exp2(tl.minimum(tl.maximum(x, -CLAMP), CLAMP) * (2 * LOG2_E) - HALF_SHIFT)


@triton.jit
@no_type_check
def _reciprocal(x):
    """1 / x, accurate to one or two ulps for normal x."""
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
@no_type_check
def _tanh(x, APPROXIMATE: tl.constexpr):
    """tanh: approximate to 11 bits, which is enough for half precision, or accurate."""
    if APPROXIMATE and not INTERPRETED:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))


@triton.jit
@no_type_check
def _four_by_four(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return x in the layout of a matrix product, with four by four elements per thread, by adding a zero product.

    Both sizes have to be below the number of threads; otherwise vectors along them are distributed over the threads and
    exchanged through shared memory in every step.
    """
    rows, columns = tl.zeros([ROWS, 16], tl.float32), tl.zeros([16, COLUMNS], tl.float32)
    return tl.dot(rows, columns, acc=x, input_precision="ieee")


@triton.jit
@no_type_check
def _product(a, b):
    """Matrix product accumulated in float32; the interpreter does not support bfloat16 operands."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
@no_type_check
def _length(lengths_ptr, item, heads, keys):
    """Number of keys of the batch row of an item."""
    length = keys
    if lengths_ptr is not None:
        length = tl.minimum(tl.load(lengths_ptr + item // heads).to(tl.int32), keys)
    return length


@triton.jit
@no_type_check
def _scores(
    units_ptr, vector_ptr, vector_stride,
    lengths_ptr, allowed_ptr, allowed_batch_stride, allowed_head_stride, allowed_query_stride, allowed_key_stride,
    local, item, heads, q, k, queries, queries_padded, keys, keys_padded, hidden, hidden_padded,
    STEP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute a tile of scores, and which of its cells are visible (neither masked nor padding)."""
    visible = (q < queries)[:, None] & (k < _length(lengths_ptr, item, heads, keys))[None, :]
    if allowed_ptr is not None:
        row = allowed_ptr + (item // heads) * allowed_batch_stride + (item % heads) * allowed_head_stride
        at = row + q[:, None].to(tl.int64) * allowed_query_stride + k[None, :] * allowed_key_stride
        visible &= tl.load(at, mask=visible, other=0) != 0

    # sum_d v and sum_d v / m, two hidden units at a time; v = 0 in padding.
    width = queries_padded + keys_padded
    vector_ptr += (item % heads) * vector_stride
    units_ptr += local * hidden_padded * width
    total = 0.0
    sums = _four_by_four(tl.zeros([QUERIES, KEYS], tl.float32), QUERIES, KEYS)
    if tl.max(visible.to(tl.int32)) > 0:  # skip fully masked tiles
        for first in range(0, hidden, STEP):
            for pair in tl.static_range(0, STEP, 2):
                d = first + pair
                v = tl.load(vector_ptr + d, mask=d < hidden, other=0.0).to(tl.float32)
                w = tl.load(vector_ptr + d + 1, mask=d + 1 < hidden, other=0.0).to(tl.float32)
                total += v + w
                a = tl.load(units_ptr + pair * width + q)
                c = tl.load(units_ptr + (pair + 1) * width + q)
                b = tl.load(units_ptr + pair * width + queries_padded + k)
                e = tl.load(units_ptr + (pair + 1) * width + queries_padded + k)
                m = _scaled_sum(a[:, None], b[None, :])
                n = _scaled_sum(c[:, None], e[None, :])
                sums += (v * n + w * m) * _reciprocal(m * n)
            units_ptr += STEP * width
    return total - 2 * FLOOR * sums, visible


@triton.jit
@no_type_check
def _gradient_sums(own, other_ptr, d_scores_ptr, count, other_stride, d_scores_stride,
                   LEVEL: tl.constexpr, STEP: tl.constexpr, POSITIONS: tl.constexpr, HIDDEN: tl.constexpr):  # fmt: skip
    """Sum dS r (1 - r) of a tile over the other positions and, if LEVEL is set, dS r.

    Each thread keeps its own sums, so that nothing is exchanged inside the loop. The positions of the tile are
    contiguous in dS; the hidden units are contiguous in the exponentials, unlike in `_scores`.
    """
    at_hidden, at_position = tl.arange(0, HIDDEN), tl.arange(0, POSITIONS)
    own = _four_by_four(own, POSITIONS, HIDDEN)
    slope = _four_by_four(tl.zeros([POSITIONS, HIDDEN], tl.float32), POSITIONS, HIDDEN)
    level = slope
    for _first in range(0, count, STEP):
        for pair in tl.static_range(0, STEP, 2):
            m = _scaled_sum(own, tl.load(other_ptr + pair * other_stride + at_hidden)[None, :])
            n = _scaled_sum(own, tl.load(other_ptr + (pair + 1) * other_stride + at_hidden)[None, :])
            g = tl.load(d_scores_ptr + pair * d_scores_stride + at_position).to(tl.float32)[:, None]
            h = tl.load(d_scores_ptr + (pair + 1) * d_scores_stride + at_position).to(tl.float32)[:, None]
            shared = _reciprocal(m * n) * FLOOR
            r, s = n * shared, m * shared
            slope += g * (r - r * r)
            slope += h * (s - s * s)
            if LEVEL:
                level += g * r
                level += h * s
        other_ptr += STEP * other_stride
        d_scores_ptr += STEP * d_scores_stride
    return slope, level


@triton.jit
@no_type_check
def _store_gradient(grad, grad_ptr, batch_stride, head_stride, hidden_stride, position_stride,
                    item, heads, p, positions, d, hidden, ACCUMULATE: tl.constexpr):  # fmt: skip
    at = grad_ptr + (item // heads) * batch_stride + (item % heads) * head_stride
    at = at + p[:, None] * position_stride + d[None, :] * hidden_stride
    inside = (p < positions)[:, None] & (d < hidden)[None, :]
    if ACCUMULATE:
        grad += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, grad.to(grad_ptr.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _one_query_scores(query_ptr, query_stride, key_ptr, key_hidden_stride, key_position_stride, vector_ptr, k, length,
                   hidden, APPROXIMATE: tl.constexpr, KEYS: tl.constexpr, HIDDEN: tl.constexpr):  # fmt: skip
    """Scores of one query and a tile of keys, computed directly from the formula."""
    products = tl.zeros([KEYS, HIDDEN], tl.float32)
    for first in range(0, hidden, HIDDEN):
        d = first + tl.arange(0, HIDDEN)
        inside = d < hidden
        v = tl.load(vector_ptr + d, mask=inside, other=0.0).to(tl.float32)
        query = tl.load(query_ptr + d * query_stride, mask=inside, other=0.0).to(tl.float32)
        key_at = key_ptr + k[:, None] * key_position_stride + d[None, :] * key_hidden_stride
        key = tl.load(key_at, mask=(k < length)[:, None] & inside[None, :], other=0.0).to(tl.float32)
        products += v[None, :] * _tanh(query[None, :] + key, APPROXIMATE)
    return tl.sum(products, axis=1)


# --------------------------------------------------------------------------------------------------- many queries


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def exponentials(
    query_ptr, query_batch_stride, query_head_stride, query_hidden_stride, query_position_stride,
    key_ptr, key_batch_stride, key_head_stride, key_hidden_stride, key_position_stride,
    units_ptr, units_item_stride, units_hidden_stride, units_position_stride,
    first_item, heads, queries, queries_padded, keys, keys_padded, hidden, hidden_padded,
    HIDDEN: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """exp(2 x) 2^-15 of a tile of queries and keys, in float32, in the layout given by the strides."""
    local = tl.program_id(2).to(tl.int64)
    item = first_item + local
    p = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    d = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
    k = p - queries_padded
    query_ptr += (item // heads) * query_batch_stride + (item % heads) * query_head_stride
    key_ptr += (item // heads) * key_batch_stride + (item % heads) * key_head_stride
    query_at = query_ptr + d[:, None] * query_hidden_stride + p[None, :] * query_position_stride
    key_at = key_ptr + d[:, None] * key_hidden_stride + k[None, :] * key_position_stride
    inside = (d < hidden)[:, None]
    x = tl.load(query_at, mask=inside & (p < queries)[None, :], other=0.0).to(tl.float32)
    x += tl.load(key_at, mask=inside & ((k >= 0) & (k < keys))[None, :], other=0.0).to(tl.float32)
    at = units_ptr + local * units_item_stride + d[:, None] * units_hidden_stride + p[None, :] * units_position_stride
    written = (d < hidden_padded)[:, None] & (k < keys_padded)[None, :]
    tl.store(at, _exponential(x), mask=written)


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def weights(
    units_ptr, vector_ptr, vector_stride,
    lengths_ptr, allowed_ptr, allowed_batch_stride, allowed_head_stride, allowed_query_stride, allowed_key_stride,
    weights_ptr, top_ptr, total_ptr,
    first_item, heads, queries, queries_padded, keys, keys_padded, hidden, hidden_padded,
    STEP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """exp(S - top) of a tile, where top is the row maximum within this tile; also stores top and the row sums."""
    local = tl.program_id(2).to(tl.int64)
    q = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    k = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    scores, visible = _scores(
        units_ptr, vector_ptr, vector_stride,
        lengths_ptr, allowed_ptr, allowed_batch_stride, allowed_head_stride, allowed_query_stride, allowed_key_stride,
        local, first_item + local, heads, q, k, queries, queries_padded, keys, keys_padded, hidden, hidden_padded,
        STEP, QUERIES, KEYS,
    )  # fmt: skip
    scores = tl.where(visible, scores, float("-inf"))
    top = tl.max(scores, axis=1)
    base = tl.where(top == float("-inf"), 0.0, top)  # avoid -inf - -inf = NaN in fully masked rows
    result = tl.exp2((scores - base[:, None]) * LOG2_E)
    at = (local * queries_padded + q[:, None]) * keys_padded + k[None, :]
    tl.store(weights_ptr + at, result.to(weights_ptr.dtype.element_ty))
    row = (local * tl.num_programs(0) + tl.program_id(0)) * queries_padded + q
    tl.store(top_ptr + row, top)
    tl.store(total_ptr + row, tl.sum(result, axis=1))


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def context(
    weights_ptr, top_ptr, total_ptr, lengths_ptr,
    value_ptr, value_batch_stride, value_head_stride, value_position_stride, value_stride,
    out_ptr, lse_ptr, item_queries,
    first_item, heads, queries, queries_padded, keys, keys_padded, value_dim,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """A tile of the output, rescaling the weights of each tile to the whole row; also stores the log-sum-exp."""
    local = tl.program_id(2).to(tl.int64)
    item = first_item + local
    q = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    feature = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    length = _length(lengths_ptr, item, heads, keys)
    row = local * (keys_padded // KEYS) * queries_padded + q
    in_query, in_feature = q < queries, feature < value_dim

    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    for tile in range(tl.cdiv(length, KEYS)):
        at = row + tile * queries_padded
        tile_top = tl.load(top_ptr + at, mask=in_query, other=float("-inf"))
        new_top = tl.maximum(top, tile_top)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        tile_total = tl.load(total_ptr + at, mask=in_query, other=0.0)
        total = total * tl.exp2((top - base) * LOG2_E) + tile_total * tl.exp2((tile_top - base) * LOG2_E)
        top = new_top
    has_keys = total > 0
    base = tl.where(has_keys, top + tl.log(tl.where(has_keys, total, 1.0)), 0.0)
    if tl.program_id(1) == 0:
        lse = tl.where(has_keys, base, float("-inf"))
        tl.store(lse_ptr + item * item_queries + q, lse, mask=in_query)

    weights_at = weights_ptr + (local * queries_padded + q[:, None]) * keys_padded
    value_ptr += (item // heads) * value_batch_stride + (item % heads) * value_head_stride
    output = tl.zeros([QUERIES, VALUES], tl.float32)
    for first in range(0, length, KEYS):
        k = first + tl.arange(0, KEYS)
        rows = tl.load(weights_at + k[None, :], mask=in_query[:, None], other=0.0)
        value_at = value_ptr + k[:, None].to(tl.int64) * value_position_stride + feature[None, :] * value_stride
        value = tl.load(value_at, mask=(k < length)[:, None] & in_feature[None, :], other=0.0)
        tile_top = tl.load(top_ptr + row + (first // KEYS) * queries_padded, mask=in_query, other=float("-inf"))
        output += _product(rows, value) * tl.exp2((tile_top - base) * LOG2_E)[:, None]
    out_at = out_ptr + (item * item_queries + q[:, None]) * value_dim + feature[None, :]
    tl.store(out_at, output.to(out_ptr.dtype.element_ty), mask=in_query[:, None] & in_feature[None, :])


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def score_gradients(
    units_ptr, vector_ptr, vector_stride,
    lengths_ptr, allowed_ptr, allowed_batch_stride, allowed_head_stride, allowed_query_stride, allowed_key_stride,
    value_ptr, value_batch_stride, value_head_stride, value_position_stride, value_stride,
    d_out_ptr, d_out_item_stride, d_out_query_stride, d_out_stride,
    out_ptr, lse_ptr, item_queries, weights_ptr, d_scores_ptr, transposed_ptr, row_sums_ptr,
    first_item, heads, queries, queries_padded, keys, keys_padded, hidden, hidden_padded, value_dim,
    STEP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """P = exp(S - lse) of a tile, and dS = P (dO V^T - rowsum(dO O)), plain, transposed, and its row sums.

    All of them are zero in padding.
    """
    local = tl.program_id(2).to(tl.int64)
    item = first_item + local
    q = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    k = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    scores, visible = _scores(
        units_ptr, vector_ptr, vector_stride,
        lengths_ptr, allowed_ptr, allowed_batch_stride, allowed_head_stride, allowed_query_stride, allowed_key_stride,
        local, item, heads, q, k, queries, queries_padded, keys, keys_padded, hidden, hidden_padded,
        STEP, QUERIES, KEYS,
    )  # fmt: skip
    lse = tl.load(lse_ptr + item * item_queries + q, mask=q < queries, other=0.0)
    result = tl.where(visible, tl.exp2((scores - lse[:, None]) * LOG2_E), 0.0)

    value_ptr += (item // heads) * value_batch_stride + (item % heads) * value_head_stride
    d_out_ptr += item * d_out_item_stride
    out_ptr += item * item_queries * value_dim
    d_weights = tl.zeros([QUERIES, KEYS], tl.float32)
    mean = tl.zeros([QUERIES], tl.float32)
    for first in range(0, value_dim, VALUES):
        feature = first + tl.arange(0, VALUES)
        in_rows = (q < queries)[:, None] & (feature < value_dim)[None, :]
        d_out_at = d_out_ptr + q[:, None] * d_out_query_stride + feature[None, :] * d_out_stride
        d_out = tl.load(d_out_at, mask=in_rows, other=0.0)
        out = tl.load(out_ptr + q[:, None] * value_dim + feature[None, :], mask=in_rows, other=0.0)
        value_at = value_ptr + k[None, :].to(tl.int64) * value_position_stride + feature[:, None] * value_stride
        value = tl.load(value_at, mask=(feature < value_dim)[:, None] & (k < keys)[None, :], other=0.0)
        d_weights += _product(d_out, value)
        mean += tl.sum(d_out.to(tl.float32) * out.to(tl.float32), axis=1)

    at = (local * queries_padded + q[:, None]) * keys_padded + k[None, :]
    tl.store(weights_ptr + at, result.to(weights_ptr.dtype.element_ty))
    d_scores = (result * (d_weights - mean[:, None])).to(d_scores_ptr.dtype.element_ty)
    tl.store(d_scores_ptr + at, d_scores)
    transposed_at = transposed_ptr + (local * keys_padded + k[None, :]) * queries_padded + q[:, None]
    tl.store(transposed_at, d_scores)
    row_sums_ptr += (local * tl.num_programs(0) + tl.program_id(0)) * queries_padded
    tl.store(row_sums_ptr + q, tl.sum(d_scores.to(tl.float32), axis=1))


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def position_gradients(
    units_ptr, d_scores_ptr, transposed_ptr, row_sums_ptr, key_tiles, vector_ptr, vector_stride, lengths_ptr,
    d_query_ptr, d_query_batch_stride, d_query_head_stride, d_query_hidden_stride, d_query_position_stride,
    d_key_ptr, d_key_batch_stride, d_key_head_stride, d_key_hidden_stride, d_key_position_stride,
    d_vector_ptr, d_vector_item_stride,
    first_item, heads, queries, queries_padded, keys, keys_padded, hidden, hidden_padded,
    ACCUMULATE: tl.constexpr, STEP: tl.constexpr, POSITIONS: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """Gradient of a tile of queries and its contribution to dv, or gradient of a tile of keys."""
    local = tl.program_id(2).to(tl.int64)
    item = first_item + local
    tile = tl.program_id(1)
    query_tiles = queries_padded // POSITIONS
    d = tl.program_id(0) * HIDDEN + tl.arange(0, HIDDEN)
    length = _length(lengths_ptr, item, heads, keys)
    units_ptr += local * (queries_padded + keys_padded) * hidden_padded
    own_at = (tile * POSITIONS + tl.arange(0, POSITIONS))[:, None] * hidden_padded + d[None, :]
    own = tl.load(units_ptr + own_at)
    v = tl.load(vector_ptr + (item % heads) * vector_stride + d, mask=d < hidden, other=0.0).to(tl.float32)
    units_ptr += tl.program_id(0) * HIDDEN
    if tile < query_tiles:
        p = tile * POSITIONS + tl.arange(0, POSITIONS)
        slope, level = _gradient_sums(
            own, units_ptr + queries_padded * hidden_padded,
            transposed_ptr + local * keys_padded * queries_padded + tile * POSITIONS,
            length, hidden_padded, queries_padded, True, STEP, POSITIONS, HIDDEN,
        )  # fmt: skip
        _store_gradient(
            4 * slope * v[None, :], d_query_ptr, d_query_batch_stride, d_query_head_stride, d_query_hidden_stride,
            d_query_position_stride, item, heads, p, queries, d, hidden, False,
        )  # fmt: skip
        rows = tl.zeros([POSITIONS], tl.float32)
        for key_tile in range(key_tiles):
            rows += tl.load(row_sums_ptr + (local * key_tiles + key_tile) * queries_padded + p)
        part = tl.sum(rows, axis=0) - 2 * tl.sum(level, axis=0)  # padding has dS = 0
        tl.store(d_vector_ptr + item * d_vector_item_stride + tile * hidden + d, part, mask=d < hidden)
    else:
        first = (tile - query_tiles) * POSITIONS
        slope, level = _gradient_sums(
            own, units_ptr, d_scores_ptr + local * queries_padded * keys_padded + first,
            tl.where(first < length, queries, 0),  # keys beyond the length have zero gradient
            hidden_padded, keys_padded, False, STEP, POSITIONS, HIDDEN,
        )  # fmt: skip
        _store_gradient(
            4 * slope * v[None, :], d_key_ptr, d_key_batch_stride, d_key_head_stride, d_key_hidden_stride,
            d_key_position_stride, item, heads, first + tl.arange(0, POSITIONS), keys, d, hidden, ACCUMULATE,
        )  # fmt: skip


# --------------------------------------------------------------------------------------------- one query at a time


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def one_query(
    query_ptr, query_batch_stride, query_head_stride, query_hidden_stride, query_position_stride,
    key_ptr, key_batch_stride, key_head_stride, key_hidden_stride, key_position_stride,
    vector_ptr, vector_stride, value_ptr, value_batch_stride, value_head_stride, value_position_stride, value_stride,
    lengths_ptr, allowed_ptr, allowed_batch_stride, allowed_head_stride, allowed_query_stride, allowed_key_stride,
    out_ptr, lse_ptr, scores_ptr, heads, queries, keys, hidden, value_dim,
    APPROXIMATE: tl.constexpr, KEYS: tl.constexpr, HIDDEN: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Output of one query for a slice of the value features, with an online softmax over the keys.

    Also stores the scores of the keys below the length, -inf where masked, if `scores_ptr` is given.
    """
    row = tl.program_id(0).to(tl.int64)
    item, q = row // queries, row % queries
    batch, head = item // heads, item % heads
    length = _length(lengths_ptr, item, heads, keys)
    query_ptr += batch * query_batch_stride + head * query_head_stride + q * query_position_stride
    key_ptr += batch * key_batch_stride + head * key_head_stride
    value_ptr += batch * value_batch_stride + head * value_head_stride
    feature = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    in_feature = feature < value_dim

    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([VALUES], tl.float32)
    for first in range(0, length, KEYS):
        k = first + tl.arange(0, KEYS)
        scores = _one_query_scores(query_ptr, query_hidden_stride, key_ptr, key_hidden_stride, key_position_stride,
                                vector_ptr + head * vector_stride, k, length, hidden,
                                APPROXIMATE, KEYS, HIDDEN)  # fmt: skip
        visible = k < length
        if allowed_ptr is not None:
            allowed_at = allowed_ptr + batch * allowed_batch_stride + head * allowed_head_stride
            allowed_at = allowed_at + q * allowed_query_stride + k * allowed_key_stride
            visible &= tl.load(allowed_at, mask=visible, other=0) != 0
        scores = tl.where(visible, scores, float("-inf"))
        if scores_ptr is not None:
            tl.store(scores_ptr + row * keys + k, scores, mask=k < length)

        new_top = tl.maximum(top, tl.max(scores, axis=0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)  # avoid -inf - -inf = NaN if all keys so far are masked
        weight = tl.exp(scores - base)
        decay = tl.exp(top - base)
        value_at = value_ptr + k[:, None].to(tl.int64) * value_position_stride + feature[None, :] * value_stride
        value = tl.load(value_at, mask=(k < length)[:, None] & in_feature[None, :], other=0.0).to(tl.float32)
        sums = sums * decay + tl.sum(weight[:, None] * value, axis=0)
        total = total * decay + tl.sum(weight, axis=0)
        top = new_top

    has_keys = total > 0
    total = tl.where(has_keys, total, 1.0)
    output = sums / total
    tl.store(out_ptr + row * value_dim + feature, output.to(out_ptr.dtype.element_ty), mask=in_feature)
    tl.store(lse_ptr + row + tl.arange(0, 1), tl.where(has_keys, top + tl.log(total), float("-inf")))


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def one_query_weights(
    query_ptr, query_batch_stride, query_head_stride, query_hidden_stride,
    key_ptr, key_batch_stride, key_head_stride, key_hidden_stride, key_position_stride,
    vector_ptr, vector_stride, value_ptr, value_batch_stride, value_head_stride, value_position_stride, value_stride,
    lengths_ptr, allowed_ptr, allowed_batch_stride, allowed_head_stride, allowed_key_stride,
    d_out_ptr, d_out_item_stride, d_out_stride, lse_ptr, d_value_ptr, weights_ptr, d_weights_ptr,
    heads, keys, hidden, value_dim,
    APPROXIMATE: tl.constexpr, KEYS: tl.constexpr, HIDDEN: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """P, dP = dO V^T and dV = P^T dO for the single query of an item and a tile of keys."""
    item = tl.program_id(0).to(tl.int64)
    batch, head = item // heads, item % heads
    k = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    length = _length(lengths_ptr, item, heads, keys)
    scores = _one_query_scores(query_ptr + batch * query_batch_stride + head * query_head_stride, query_hidden_stride,
                            key_ptr + batch * key_batch_stride + head * key_head_stride, key_hidden_stride,
                            key_position_stride, vector_ptr + head * vector_stride, k, length, hidden,
                            APPROXIMATE, KEYS, HIDDEN)  # fmt: skip
    visible = k < length
    if allowed_ptr is not None:
        allowed_at = allowed_ptr + batch * allowed_batch_stride + head * allowed_head_stride + k * allowed_key_stride
        visible &= tl.load(allowed_at, mask=visible, other=0) != 0
    weight = tl.where(visible, tl.exp(scores - tl.load(lse_ptr + item)), 0.0)

    value_ptr += batch * value_batch_stride + head * value_head_stride
    d_weight = tl.zeros([KEYS], tl.float32)
    for first in range(0, value_dim, VALUES):
        feature = first + tl.arange(0, VALUES)
        inside = (k < keys)[:, None] & (feature < value_dim)[None, :]
        d_out_at = d_out_ptr + item * d_out_item_stride + feature * d_out_stride
        d_out = tl.load(d_out_at, mask=feature < value_dim, other=0.0).to(tl.float32)
        value_at = value_ptr + k[:, None].to(tl.int64) * value_position_stride + feature[None, :] * value_stride
        d_weight += tl.sum(tl.load(value_at, mask=inside, other=0.0).to(tl.float32) * d_out[None, :], axis=1)
        d_value = (weight[:, None] * d_out[None, :]).to(d_value_ptr.dtype.element_ty)
        tl.store(d_value_ptr + (item * keys + k[:, None]) * value_dim + feature[None, :], d_value, mask=inside)
    tl.store(weights_ptr + item * keys + k, weight, mask=k < keys)
    tl.store(d_weights_ptr + item * keys + k, d_weight, mask=k < keys)


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def one_query_gradients(
    query_ptr, query_batch_stride, query_head_stride, query_hidden_stride,
    key_ptr, key_batch_stride, key_head_stride, key_hidden_stride, key_position_stride, vector_ptr, vector_stride,
    weights_ptr, d_weights_ptr, d_query_ptr, d_query_batch_stride, d_query_head_stride, d_query_hidden_stride,
    d_key_ptr, d_key_batch_stride, d_key_head_stride, d_key_hidden_stride, d_key_position_stride, d_vector_ptr,
    heads, keys, hidden,
    KEYS: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """dQ, dK and the contribution to dv from dS = P (dP - sum P dP), for a single query and a tile of hidden units."""
    item = tl.program_id(0).to(tl.int64)
    batch, head = item // heads, item % heads
    d = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
    in_hidden = d < hidden
    query_at = query_ptr + batch * query_batch_stride + head * query_head_stride + d * query_hidden_stride
    query = tl.load(query_at, mask=in_hidden, other=0.0).to(tl.float32)
    v = tl.load(vector_ptr + head * vector_stride + d, mask=in_hidden, other=0.0).to(tl.float32)
    key_ptr += batch * key_batch_stride + head * key_head_stride
    d_key_ptr += batch * d_key_batch_stride + head * d_key_head_stride
    weights_ptr += item * keys
    d_weights_ptr += item * keys

    products = tl.zeros([KEYS], tl.float32)
    for first in range(0, keys, KEYS):
        k = first + tl.arange(0, KEYS)
        weight = tl.load(weights_ptr + k, mask=k < keys, other=0.0)
        products += weight * tl.load(d_weights_ptr + k, mask=k < keys, other=0.0)
    mean = tl.sum(products, axis=0)

    slope = tl.zeros([KEYS, HIDDEN], tl.float32)
    level = tl.zeros([KEYS, HIDDEN], tl.float32)
    for first in range(0, keys, KEYS):
        k = first + tl.arange(0, KEYS)
        inside = (k < keys)[:, None] & in_hidden[None, :]
        weight = tl.load(weights_ptr + k, mask=k < keys, other=0.0)
        d_score = weight * (tl.load(d_weights_ptr + k, mask=k < keys, other=0.0) - mean)
        key_at = key_ptr + k[:, None] * key_position_stride + d[None, :] * key_hidden_stride
        t = _tanh(query[None, :] + tl.load(key_at, mask=inside, other=0.0).to(tl.float32), False)
        d_key = d_score[:, None] * (1 - t * t)
        slope += d_key
        level += d_score[:, None] * t
        d_key_at = d_key_ptr + k[:, None] * d_key_position_stride + d[None, :] * d_key_hidden_stride
        tl.store(d_key_at, (d_key * v[None, :]).to(d_key_ptr.dtype.element_ty), mask=inside)
    d_query_at = d_query_ptr + batch * d_query_batch_stride + head * d_query_head_stride + d * d_query_hidden_stride
    tl.store(d_query_at, (tl.sum(slope, axis=0) * v).to(d_query_ptr.dtype.element_ty), mask=in_hidden)
    tl.store(d_vector_ptr + item * hidden + d, tl.sum(level, axis=0), mask=in_hidden)


# ------------------------------------------------------------------------ all queries and keys of an item in one tile


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def one_tile_weights(
    scores_ptr, lse_ptr, lengths_ptr,
    value_ptr, value_batch_stride, value_head_stride, value_position_stride, value_stride,
    d_out_ptr, d_out_item_stride, d_out_query_stride, d_out_stride, d_value_ptr, d_scores_ptr,
    heads, queries, keys, value_dim,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """dV = P^T dO of a tile of value features, or dS = P (dP - sum_k P dP), where P = exp(S - lse), dP = dO V^T.

    dS is stored as [item, key, query], with the queries padded to the tile by zeros.
    """
    item = tl.program_id(0).to(tl.int64)
    q, k = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    visible = (q < queries)[:, None] & (k < _length(lengths_ptr, item, heads, keys))[None, :]
    scores_at = scores_ptr + (item * queries + q[:, None]) * keys + k[None, :]
    scores = tl.load(scores_at, mask=visible, other=float("-inf"))
    lse = tl.load(lse_ptr + item * queries + q, mask=q < queries, other=0.0)
    lse = tl.where(lse == float("-inf"), 0.0, lse)  # avoid -inf - -inf = NaN in fully masked rows
    weights = tl.exp2((scores - lse[:, None]) * LOG2_E)
    d_out_ptr += item * d_out_item_stride
    kind = d_value_ptr.dtype.element_ty
    if tl.program_id(1) == 0:
        value_ptr += (item // heads) * value_batch_stride + (item % heads) * value_head_stride
        d_weights = tl.zeros([QUERIES, KEYS], tl.float32)
        for first in range(0, value_dim, VALUES):
            feature = first + tl.arange(0, VALUES)
            in_feature = feature < value_dim
            d_out_at = d_out_ptr + q[:, None] * d_out_query_stride + feature[None, :] * d_out_stride
            d_out = tl.load(d_out_at, mask=(q < queries)[:, None] & in_feature[None, :], other=0.0)
            value_at = value_ptr + k[None, :] * value_position_stride + feature[:, None] * value_stride
            value = tl.load(value_at, mask=in_feature[:, None] & (k < keys)[None, :], other=0.0)
            d_weights += _product(d_out, value)
        mean = tl.sum(weights * d_weights, axis=1)
        d_scores_at = d_scores_ptr + (item * keys + k[None, :]) * QUERIES + q[:, None]
        tl.store(d_scores_at, weights * (d_weights - mean[:, None]), mask=(k < keys)[None, :])
    else:
        feature = (tl.program_id(1) - 1) * VALUES + tl.arange(0, VALUES)
        in_feature = feature < value_dim
        d_out_at = d_out_ptr + q[:, None] * d_out_query_stride + feature[None, :] * d_out_stride
        d_out = tl.load(d_out_at, mask=(q < queries)[:, None] & in_feature[None, :], other=0.0)
        d_value = _product(tl.trans(weights.to(kind)), d_out)
        d_value_at = d_value_ptr + (item * keys + k[:, None]) * value_dim + feature[None, :]
        tl.store(d_value_at, d_value.to(kind), mask=(k < keys)[:, None] & in_feature[None, :])


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def one_tile_gradients(
    query_ptr, query_batch_stride, query_head_stride, query_hidden_stride, query_position_stride,
    key_ptr, key_batch_stride, key_head_stride, key_hidden_stride, key_position_stride,
    vector_ptr, vector_stride, d_scores_ptr,
    d_query_ptr, d_query_batch_stride, d_query_head_stride, d_query_hidden_stride, d_query_position_stride,
    d_key_ptr, d_key_batch_stride, d_key_head_stride, d_key_hidden_stride, d_key_position_stride,
    d_vector_ptr, heads, queries, keys, hidden,
    QUERIES: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """dQ, dK and the contribution to dv of one item, for a tile of hidden units.

    With as many threads as hidden units, a thread holds one hidden unit of all queries, so that neither the sum over
    the keys nor that over the queries exchanges anything, and each tanh is computed once. The hint that the hidden
    units are not aligned keeps Triton from giving several of them to a thread. The rows of dS sum to zero.
    """
    item = tl.program_id(0).to(tl.int64)
    batch, head = item // heads, item % heads
    q = tl.arange(0, QUERIES)
    d = tl.multiple_of(tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN), 1)
    in_hidden = d < hidden
    inside = (q < queries)[:, None] & in_hidden[None, :]
    query_ptr += batch * query_batch_stride + head * query_head_stride
    query_at = query_ptr + q[:, None] * query_position_stride + d[None, :] * query_hidden_stride
    key_ptr += batch * key_batch_stride + head * key_head_stride + d * key_hidden_stride
    d_key_ptr += batch * d_key_batch_stride + head * d_key_head_stride + d * d_key_hidden_stride
    d_scores_ptr += item * keys * QUERIES
    v = tl.load(vector_ptr + head * vector_stride + d, mask=in_hidden, other=0.0).to(tl.float32)

    a = _exponential(tl.load(query_at, mask=inside, other=0.0).to(tl.float32))
    slope = tl.zeros([QUERIES, HIDDEN], tl.float32)
    level = tl.zeros([HIDDEN], tl.float32)
    for _k in range(keys):
        b = _exponential(tl.load(key_ptr, mask=in_hidden, other=0.0).to(tl.float32))
        g = tl.load(d_scores_ptr + q)[:, None]
        r = _reciprocal(_scaled_sum(a, b[None, :])) * FLOOR
        part = g * r
        change = part - part * r
        slope += change
        level += tl.sum(part, axis=0)
        d_key = 4 * v * tl.sum(change, axis=0)
        tl.store(d_key_ptr, d_key.to(d_key_ptr.dtype.element_ty), mask=in_hidden)
        key_ptr += key_position_stride
        d_key_ptr += d_key_position_stride
        d_scores_ptr += QUERIES
    d_query_ptr += batch * d_query_batch_stride + head * d_query_head_stride
    d_query_at = d_query_ptr + q[:, None] * d_query_position_stride + d[None, :] * d_query_hidden_stride
    tl.store(d_query_at, (4 * slope * v[None, :]).to(d_query_ptr.dtype.element_ty), mask=inside)
    tl.store(d_vector_ptr + item * hidden + d, -2 * level, mask=in_hidden)
