"""Additive attention on GPUs, forward and backward: launches the kernels of `additive_kernels`.

Scores are so expensive to compute that storing intermediate results is cheap. They go through a scratch buffer of
bounded size, which holds a few items (an item is one head of one batch row) or, if one item is too large, some of its
queries.

    forward         exponentials  ->  weights of each tile  ->  context, which combines the tiles
    backward        exponentials  ->  score_gradients: P and dS  ->  dV = P^T dO
                    exponentials, transposed  ->  position_gradients: dQ, dK and partial sums of dv
    small problems  one_query for each query is the whole forward pass; the backward pass is one_query_weights and
                    one_query_gradients for a single query, and one_tile_weights and one_tile_gradients if the queries
                    and keys of an item fit into one tile, to save kernel launches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
import triton
from torch.autograd.function import once_differentiable

from qkv.attention.backends import additive_kernels as kernels
from qkv.types import Bool, Float, Int, Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

SCRATCH_SHARE = 0.47  # of the size of inputs and outputs in bytes
SCRATCH_FLOOR = 32 * 2**20  # below this size, saving memory is not worth more launches
ONE_QUERY_MAX_TANHS = 2**27  # number of tanh evaluations up to which the forward pass runs one query at a time
MAX_ITEMS = 65_535  # per launch
MIN_PROGRAMS = 1 if kernels.INTERPRETED else 512  # programs needed to occupy a large GPU


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of all kernels: powers of two, with position tiles of at most `block`."""

    block: int = 64  # positions are padded to a multiple of this
    score_query: int = 32
    score_key: int = 64
    score_step: int = 8  # hidden units unrolled
    gradient_position: int = 32
    gradient_hidden: int = 64
    gradient_step: int = 4  # positions unrolled
    context_query: int = 64
    context_value_bytes: int = 256
    score_gradient_value_bytes: int = 128
    one_query_key: int = 64
    one_query_hidden: int = 64
    one_query_value: int = 512
    one_tile_query: int = 64
    one_tile_key: int = 128
    one_tile_value_bytes: int = 128
    one_tile_hidden: int = 128


TILES = Tiles()


def additive_attention(
    query: Float[Tensor, "batch heads hidden query"],
    key: Float[Tensor, "batch heads hidden key"],
    vector: Float[Tensor, "heads_or_1 hidden"],
    value: Float[Tensor, "batch heads key value_dim"],
    lengths: Int[Tensor, "batch"] | None = None,
    allowed: Bool[Tensor, "#batch #heads #query #key"] | None = None,
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query"]]:
    """Attention with the score v . tanh(q + k), over the keys below the row's length and allowed by the mask.

    Returns the output and the log-sum-exp of the scores, which has no gradient; zeros and -inf for fully masked rows.
    Any strides are supported.
    """
    # The custom operator, which torch.compile needs, takes the host several times as long as the autograd function.
    attention = _attention if torch.compiler.is_compiling() else _Attention.apply
    output, lse = attention(query, key, vector, value, lengths, allowed)  # type: ignore[no-untyped-call]
    return output, lse.detach()


# ----------------------------------------------------------------------------------------------- sizes and chunks


def _tile(tile: int, size: int) -> int:
    """Limit the tile to the size, but at least 16, the minimum of `tl.dot`."""
    return min(tile, max(16, triton.next_power_of_2(size)))


def _round_up(size: int, multiple: int) -> int:
    return triton.cdiv(size, multiple) * multiple


def _spans(total: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, total)) for first in range(0, total, step))


def _warps(rows: int, columns: int) -> int:
    """Number of warps for twice as many threads as rows or columns, see `_four_by_four`."""
    return max(rows, columns) // 16


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@final
@dataclass(frozen=True)
class _Chunk:
    """The items and queries processed by one round of launches."""

    items: slice
    queries: slice
    queries_padded: int

    @property
    def item_count(self) -> int:
        return self.items.stop - self.items.start

    @property
    def query_count(self) -> int:
        return self.queries.stop - self.queries.start


@final
class _Problem:
    """Inputs and sizes of one call, and the kernel arguments for its chunks."""

    def __init__(
        self, query: Tensor, key: Tensor, vector: Tensor, value: Tensor, lengths: Tensor | None, allowed: Tensor | None
    ) -> None:
        self.batch, self.heads, self.hidden, self.queries = query.shape
        self.keys, self.value_dim = value.shape[-2:]
        self.items = self.batch * self.heads
        self.query, self.key, self.value, self.lengths = query, key, value, lengths
        self.vector = vector.contiguous().expand(self.heads, -1)
        if allowed is not None:
            allowed = allowed.expand(self.batch, self.heads, self.queries, self.keys)
        self.allowed = allowed
        # Scratch memory is padded to whole blocks, which are multiples of the tiles of all kernels.
        self.query_block, self.key_block = _tile(TILES.block, self.queries), _tile(TILES.block, self.keys)
        self.hidden_tile = _tile(TILES.gradient_hidden, self.hidden)
        self.keys_padded = _round_up(self.keys, self.key_block)
        self.hidden_padded = _round_up(self.hidden, max(TILES.score_step, self.hidden_tile))

    def chunks(self, in_and_out: int, pair_bytes: int) -> list[_Chunk]:
        """Split the problem into chunks that fit into scratch memory, the largest first.

        A chunk is several items, or blocks of queries of one item. Each query-key pair takes `pair_bytes` bytes in
        addition to the exponentials.
        """

        def item_bytes(queries: int) -> int:
            padded = _round_up(queries, self.query_block)
            return 4 * (padded + self.keys_padded) * self.hidden_padded + pair_bytes * padded * self.keys_padded

        budget = max(int(in_and_out * SCRATCH_SHARE), SCRATCH_FLOOR)
        items, queries = min(budget // item_bytes(self.queries), MAX_ITEMS), self.queries
        if items > 0:
            items = triton.cdiv(self.items, triton.cdiv(self.items, items))  # balanced over the rounds
        else:
            items, blocks = 1, triton.cdiv(queries, self.query_block)
            while blocks > 1 and item_bytes(blocks * self.query_block) > budget:
                blocks = triton.cdiv(blocks, 2)
            queries = min(blocks * self.query_block, queries)
        return [
            _Chunk(item_span, query_span, _round_up(query_span.stop - query_span.start, self.query_block))
            for item_span in _spans(self.items, items)
            for query_span in _spans(self.queries, queries)
        ]

    def scratch(self, chunk: _Chunk) -> Float[Tensor, "_"]:
        """Allocate memory for the exponentials, in either layout."""
        size = chunk.item_count * (chunk.queries_padded + self.keys_padded) * self.hidden_padded
        return torch.empty(size, dtype=torch.float32, device=self.query.device)

    def pairs(self, chunk: _Chunk) -> Float[Tensor, "_"]:
        """Allocate one element per query-key pair, in the dtype of the values."""
        return self.value.new_empty(chunk.item_count * chunk.queries_padded * self.keys_padded)

    def sizes(self, chunk: _Chunk) -> tuple[int, ...]:
        """Size arguments shared by all kernels."""
        return (
            chunk.items.start, self.heads, chunk.query_count, chunk.queries_padded, self.keys, self.keys_padded,
            self.hidden, self.hidden_padded,
        )  # fmt: skip

    def exponentials(self, chunk: _Chunk, units: Tensor, *, hidden_last: bool) -> None:
        """Write the exponentials of queries and keys as [item, hidden, position] or [item, position, hidden]."""
        width = chunk.queries_padded + self.keys_padded
        query = self.query[..., chunk.queries]
        position_tile, hidden_tile = 64, _tile(32, self.hidden)
        grid = (triton.cdiv(width, position_tile), triton.cdiv(self.hidden_padded, hidden_tile), chunk.item_count)
        kernels.exponentials[grid](
            query, *query.stride(), self.key, *self.key.stride(),
            units, width * self.hidden_padded, *((1, self.hidden_padded) if hidden_last else (width, 1)),
            *self.sizes(chunk), HIDDEN=hidden_tile, POSITIONS=position_tile,
        )  # fmt: skip

    def score_tiles(self, chunk: _Chunk) -> tuple[int, int]:
        """Return the largest tiles that still occupy the whole GPU."""
        query, key = min(TILES.score_query, self.query_block), min(TILES.score_key, self.key_block)
        pairs = chunk.item_count * chunk.queries_padded * self.keys_padded
        while query * key > 256 and pairs < MIN_PROGRAMS * query * key:
            query, key = (query // 2, key) if query >= key else (query, key // 2)
        return query, key

    def score_arguments(self, chunk: _Chunk, units: Tensor) -> tuple[object, ...]:
        """Kernel arguments of the scores."""
        allowed = None if self.allowed is None else self.allowed[:, :, chunk.queries]
        strides = (0, 0, 0, 0) if allowed is None else allowed.stride()
        return units, self.vector, self.vector.stride(0), self.lengths, allowed, *strides

    @property
    def by_query(self) -> bool:
        """Whether the forward pass runs one query at a time."""
        return self.queries == 1 or self.items * self.queries * self.keys * self.hidden <= ONE_QUERY_MAX_TANHS

    @property
    def in_one_tile(self) -> bool:
        """Whether the backward pass has all queries and keys of an item in one tile; it needs the scores."""
        fits = 1 < self.queries <= TILES.one_tile_query and 0 < self.keys <= TILES.one_tile_key
        return fits and self.items <= MAX_ITEMS and self.by_query

    def one_query_arguments(self) -> tuple[object, ...]:
        query, key, value = self.query.stride(), self.key.stride(), self.value.stride()
        return self.query, *query, self.key, *key, self.vector, self.vector.stride(0), self.value, *value

    def one_query_tiles(self) -> dict[str, int]:
        return {
            "KEYS": _tile(TILES.one_query_key, self.keys),
            "HIDDEN": _tile(TILES.one_query_hidden, self.hidden),
        }


# -------------------------------------------------------------------------------------------------------- forward


def _run_forward(
    query: Tensor, key: Tensor, vector: Tensor, value: Tensor, lengths: Tensor | None, allowed: Tensor | None
) -> tuple[Tensor, Tensor]:
    return _attend(_Problem(query, key, vector, value, lengths, allowed))


def _attend(problem: _Problem, scores: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp, and write the scores if the forward pass runs one query at a time."""
    shape = (problem.batch, problem.heads, problem.queries)
    output = problem.value.new_empty((*shape, problem.value_dim))
    lse = problem.value.new_empty(shape, dtype=torch.float32)
    if problem.keys == 0:
        return output.zero_(), lse.fill_(float("-inf"))
    with torch.cuda.device_of(problem.query):
        if problem.by_query:
            _forward_by_query(problem, output, lse, scores)
        else:
            _forward(problem, output, lse)
    return output, lse


def _forward_by_query(problem: _Problem, output: Tensor, lse: Tensor, scores: Tensor | None) -> None:
    allowed, value_tile = problem.allowed, _tile(TILES.one_query_value, problem.value_dim)
    kernels.one_query[(problem.items * problem.queries, triton.cdiv(problem.value_dim, value_tile))](
        *problem.one_query_arguments(),
        problem.lengths, allowed, *((0, 0, 0, 0) if allowed is None else allowed.stride()),
        output, lse, scores, problem.heads, problem.queries, problem.keys, problem.hidden, problem.value_dim,
        APPROXIMATE=problem.query.dtype != torch.float32, VALUES=value_tile, **problem.one_query_tiles(), num_warps=8,
    )  # fmt: skip


def _forward(problem: _Problem, output: Tensor, lse: Tensor) -> None:
    value = problem.value
    outputs, lses = output.flatten(0, 1), lse.flatten(0, 1)
    in_and_out = _bytes(problem.query, problem.key, value, output)
    chunks = problem.chunks(in_and_out, pair_bytes=value.element_size() + 1)
    query_tile, key_tile = problem.score_tiles(chunks[0])
    context_query = min(TILES.context_query, problem.query_block)
    value_tile = _tile(TILES.context_value_bytes // value.element_size(), problem.value_dim)
    units, weights = problem.scratch(chunks[0]), problem.pairs(chunks[0])
    tops = torch.empty(weights.numel() // key_tile, dtype=torch.float32, device=value.device)
    totals = torch.empty_like(tops)
    for chunk in chunks:
        items, padded = chunk.item_count, chunk.queries_padded
        problem.exponentials(chunk, units, hidden_last=False)
        kernels.weights[(problem.keys_padded // key_tile, padded // query_tile, items)](
            *problem.score_arguments(chunk, units), weights, tops, totals, *problem.sizes(chunk),
            STEP=TILES.score_step, QUERIES=query_tile, KEYS=key_tile, num_warps=_warps(query_tile, key_tile),
        )  # fmt: skip
        kernels.context[(padded // context_query, triton.cdiv(problem.value_dim, value_tile), items)](
            weights, tops, totals, problem.lengths, value, *value.stride(),
            outputs[:, chunk.queries], lses[:, chunk.queries], problem.queries,
            *problem.sizes(chunk)[:6], problem.value_dim,
            QUERIES=context_query, KEYS=key_tile, VALUES=value_tile, num_warps=4,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- backward


def _run_backward(
    d_output: Tensor, output: Tensor, lse: Tensor, query: Tensor, key: Tensor, vector: Tensor, value: Tensor,
    lengths: Tensor | None, allowed: Tensor | None, scores: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    problem = _Problem(query, key, vector, value, lengths, allowed)
    d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), value.new_empty(value.shape)
    if problem.queries == 0 or problem.keys == 0:
        return d_query.zero_(), d_key.zero_(), torch.zeros_like(vector), d_value.zero_()
    d_outputs = d_output.flatten(0, 1)
    with torch.cuda.device_of(query):
        if problem.queries == 1:
            partial_sums = _backward_one_query(problem, d_outputs, lse, d_query, d_key, d_value)
        elif scores is not None:
            partial_sums = _backward_one_tile(problem, d_outputs, lse, scores, d_query, d_key, d_value)
        else:
            partial_sums = _backward(problem, d_outputs, output, lse, d_query, d_key, d_value)
    by_head = partial_sums.view(problem.batch, problem.heads, -1, problem.hidden)
    d_vector = by_head.sum((0, 1, 2) if vector.shape[0] == 1 else (0, 2)).view(vector.shape)
    return d_query, d_key, d_vector.to(vector.dtype), d_value


def _backward_one_query(
    problem: _Problem, d_outputs: Tensor, lse: Tensor, d_query: Tensor, d_key: Tensor, d_value: Tensor
) -> Float[Tensor, "items hidden"]:
    """Write the gradients of query, key and value for one query per item; return partial sums of the vector's."""
    query, key, vector, value, allowed = problem.query, problem.key, problem.vector, problem.value, problem.allowed
    weights = torch.empty((2, problem.items, problem.keys), dtype=torch.float32, device=query.device)
    partial_sums = torch.empty((problem.items, problem.hidden), dtype=torch.float32, device=query.device)
    inputs = (query, *query.stride()[:3], key, *key.stride(), vector, vector.stride(0))
    tiles = problem.one_query_tiles()
    kernels.one_query_weights[(problem.items, triton.cdiv(problem.keys, tiles["KEYS"]))](
        *inputs, value, *value.stride(),
        problem.lengths, allowed, *((0, 0, 0) if allowed is None else (*allowed.stride()[:2], allowed.stride(3))),
        d_outputs, d_outputs.stride(0), d_outputs.stride(2), lse, d_value, weights[0], weights[1],
        problem.heads, problem.keys, problem.hidden, problem.value_dim,
        APPROXIMATE=query.dtype != torch.float32, VALUES=_tile(256, problem.value_dim), **tiles, num_warps=8,
    )  # fmt: skip
    kernels.one_query_gradients[(problem.items, triton.cdiv(problem.hidden, tiles["HIDDEN"]))](
        *inputs, weights[0], weights[1], d_query, *d_query.stride()[:3], d_key, *d_key.stride(), partial_sums,
        problem.heads, problem.keys, problem.hidden, **tiles, num_warps=4,
    )  # fmt: skip
    return partial_sums


def _backward_one_tile(
    problem: _Problem, d_outputs: Tensor, lse: Tensor, scores: Tensor, d_query: Tensor, d_key: Tensor, d_value: Tensor
) -> Float[Tensor, "items hidden"]:
    """Write the gradients of query, key and value from the scores; return partial sums of the vector's."""
    query, key, vector, value = problem.query, problem.key, problem.vector, problem.value
    items, query_tile = problem.items, _tile(TILES.one_tile_query, problem.queries)
    value_tile = _tile(TILES.one_tile_value_bytes // value.element_size(), problem.value_dim)
    hidden_tile = TILES.one_tile_hidden
    d_scores = scores.new_empty((items, problem.keys, query_tile))
    partial_sums = scores.new_empty((items, problem.hidden))
    kernels.one_tile_weights[(items, 1 + triton.cdiv(problem.value_dim, value_tile))](
        scores, lse, problem.lengths, value, *value.stride(), d_outputs, *d_outputs.stride(), d_value, d_scores,
        problem.heads, problem.queries, problem.keys, problem.value_dim,
        QUERIES=query_tile, KEYS=_tile(TILES.one_tile_key, problem.keys), VALUES=value_tile,
        num_warps=2 * value.element_size(),
    )  # fmt: skip
    kernels.one_tile_gradients[(items, triton.cdiv(problem.hidden, hidden_tile))](
        query, *query.stride(), key, *key.stride(), vector, vector.stride(0), d_scores,
        d_query, *d_query.stride(), d_key, *d_key.stride(), partial_sums,
        problem.heads, problem.queries, problem.keys, problem.hidden,
        QUERIES=query_tile, HIDDEN=hidden_tile, num_warps=hidden_tile // 32,
    )  # fmt: skip
    return partial_sums


def _backward(
    problem: _Problem, d_outputs: Tensor, output: Tensor, lse: Tensor, d_query: Tensor, d_key: Tensor, d_value: Tensor
) -> Float[Tensor, "items tiles hidden"]:
    """Write the gradients of query, key and value; return partial sums of the vector's per item and tile."""
    key, vector, value = problem.key, problem.vector, problem.value
    outputs, d_values, lses = output.flatten(0, 1), d_value.flatten(0, 1), lse.flatten(0, 1)
    position_tile = min(TILES.gradient_position, problem.query_block, problem.key_block)
    tiles = _round_up(problem.queries, problem.query_block) // position_tile
    partial_sums = torch.empty((problem.items, tiles, problem.hidden), dtype=torch.float32, device=value.device)

    in_and_out = 2 * _bytes(problem.query, key, value, output)
    chunks = problem.chunks(in_and_out, pair_bytes=3 * value.element_size())
    query_tile, key_tile = problem.score_tiles(chunks[0])
    value_tile = _tile(TILES.score_gradient_value_bytes // value.element_size(), problem.value_dim)
    units = problem.scratch(chunks[0])
    weights, d_scores, transposed = (problem.pairs(chunks[0]) for _ in range(3))
    row_sums = torch.empty(weights.numel() // key_tile, dtype=torch.float32, device=value.device)
    split = chunks[0].query_count < problem.queries
    if split:  # accumulate the gradients of keys and values over the chunks of an item in float32
        key_sum = torch.empty_like(key[:1, :1], dtype=torch.float32)
        value_sum = torch.empty_like(d_values[:1], dtype=torch.float32)
    for chunk in chunks:
        items, queries, padded = chunk.items, chunk.queries, chunk.queries_padded
        problem.exponentials(chunk, units, hidden_last=False)
        kernels.score_gradients[(problem.keys_padded // key_tile, padded // query_tile, chunk.item_count)](
            *problem.score_arguments(chunk, units), value, *value.stride(),
            d_outputs[:, queries], *d_outputs.stride(), outputs[:, queries], lses[:, queries], problem.queries,
            weights, d_scores, transposed, row_sums, *problem.sizes(chunk), problem.value_dim,
            STEP=TILES.score_step, QUERIES=query_tile, KEYS=key_tile,
            VALUES=value_tile, num_warps=_warps(query_tile, key_tile),
        )  # fmt: skip
        used = chunk.item_count * padded * problem.keys_padded
        by_key = weights[:used].view(-1, padded, problem.keys_padded)[:, : chunk.query_count, : problem.keys].mT
        if split:
            if queries.start == 0:
                key_sum.zero_()
                value_sum.zero_()
            value_sum += by_key @ d_outputs[items, queries]
        else:
            torch.bmm(by_key, d_outputs[items], out=d_values[items])
        problem.exponentials(chunk, units, hidden_last=True)
        chunk_d_key = key_sum.expand_as(key) if split else d_key
        chunk_d_query = d_query[..., queries]
        grid = (
            problem.hidden_padded // problem.hidden_tile,
            (padded + problem.keys_padded) // position_tile,
            chunk.item_count,
        )
        kernels.position_gradients[grid](
            units, d_scores, transposed, row_sums, problem.keys_padded // key_tile,
            vector, vector.stride(0), problem.lengths,
            chunk_d_query, *chunk_d_query.stride(), chunk_d_key, *chunk_d_key.stride(),
            partial_sums[:, queries.start // position_tile :], partial_sums.stride(0), *problem.sizes(chunk),
            ACCUMULATE=split, STEP=TILES.gradient_step, POSITIONS=position_tile, HIDDEN=problem.hidden_tile,
            num_warps=_warps(position_tile, problem.hidden_tile),
        )  # fmt: skip
        if split and queries.stop == problem.queries:
            d_key[items.start // problem.heads, items.start % problem.heads] = key_sum[0, 0]
            d_values[items] = value_sum
    return partial_sums


# --------------------------------------------------------------------------------------------------------- autograd

_attention = torch.library.custom_op("qkv::additive_attention", _run_forward, mutates_args=())
_attention_backward = torch.library.custom_op("qkv::additive_attention_backward", _run_backward, mutates_args=())


@_attention.register_fake
def _(query, key, vector, value, lengths, allowed):  # type: ignore[no-untyped-def]
    batch, heads, _, queries = query.shape
    output = value.new_empty((batch, heads, queries, value.shape[-1]))
    return output, value.new_empty((batch, heads, queries), dtype=torch.float32)


@_attention_backward.register_fake
def _(d_output, output, lse, query, key, vector, value, lengths, allowed, scores=None):  # type: ignore[no-untyped-def]
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(vector), value.new_empty(value.shape)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.set_materialize_grads(False)  # the log-sum-exp has no gradient
    ctx.save_for_backward(*output, *inputs)


def _differentiate(ctx, d_output, _d_lse):  # type: ignore[no-untyped-def]
    return *_attention_backward(d_output, *ctx.saved_tensors), None, None


_attention.register_autograd(_differentiate, setup_context=_save)


class _Attention(torch.autograd.Function):
    """`_attention` without the overhead of a custom operator."""

    @staticmethod
    def forward(ctx, *inputs):  # type: ignore[no-untyped-def]
        problem, scores = _Problem(*inputs), None
        if problem.in_one_tile and any(ctx.needs_input_grad):
            shape = (problem.items, problem.queries, problem.keys)
            scores = problem.value.new_empty(shape, dtype=torch.float32)
        output = _attend(problem, scores)
        ctx.set_materialize_grads(False)  # the log-sum-exp has no gradient
        ctx.save_for_backward(*output, *inputs, scores)
        ctx.mark_non_differentiable(output[1])
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output, _d_lse):  # type: ignore[no-untyped-def]
        return *_run_backward(d_output, *ctx.saved_tensors), None, None
