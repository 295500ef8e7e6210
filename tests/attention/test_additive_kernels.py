"""Triton kernels of additive attention against the plain formula in float64.

Without a GPU they run in Triton's slow interpreter, so the sizes are small; on a GPU, the same cases run compiled.
"""

from unittest import mock

import pytest
import torch

pytest.importorskip("triton")

from qkv.attention.backends import additive
from qkv.attention.backends.additive import Tiles, additive_attention
from qkv.attention.backends.additive_kernels import MAX_MAGNITUDE

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SETTINGS = [
    pytest.param("cpu", torch.float32, id="cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has GPU")),
    pytest.param("cuda", torch.float32, id="cuda-float32", marks=needs_gpu),
    pytest.param("cuda", torch.bfloat16, id="cuda-bfloat16", marks=needs_gpu),
]
ROUNDING = {torch.float32: 256, torch.bfloat16: 4, torch.float16: 4}
TOLERANCE = {dtype: times * torch.finfo(dtype).eps for dtype, times in ROUNDING.items()}


def reference(query, key, vector, value, lengths=None, allowed=None):
    """The formula with all intermediate tensors."""
    hidden = torch.tanh(query.unsqueeze(-1) + key.unsqueeze(-2))  # b h d q k
    scores = (hidden * vector[..., None, None]).sum(dim=2)
    visible = torch.ones_like(scores, dtype=torch.bool)
    if lengths is not None:
        visible &= (torch.arange(key.shape[-1]) < lengths[:, None])[:, None, None]
    if allowed is not None:
        visible = visible & allowed
    lse = scores.masked_fill(~visible, -torch.inf).logsumexp(-1)
    weights = torch.softmax(scores.masked_fill(~visible, -1e300), dim=-1).masked_fill(~visible, 0.0)
    return weights @ value, lse


def inputs(batch=1, heads=1, vectors=1, queries=3, keys=5, hidden=8, values=4, scale=1.0):
    """Query, key, vector and value in float64, with values representable in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    shapes = [
        (batch, heads, hidden, queries),
        (batch, heads, hidden, keys),
        (vectors, hidden),
        (batch, heads, keys, values),
    ]
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    scales = (scale, scale, 2.0 * hidden**-0.5, 1.0)
    return [(x * s).bfloat16().double().requires_grad_() for x, s in zip(tensors, scales, strict=True)]


def assert_same(exact, device, dtype, lengths=None, allowed=None, prepare=lambda x: x):
    """Compare output, log-sum-exp and gradients; `prepare` may change the layout of the inputs, not their content."""
    leaves = [x.detach().to(device, dtype).requires_grad_() for x in exact]
    masks = [None if mask is None else mask.to(device) for mask in (lengths, allowed)]
    truth, truth_lse = reference(*exact, lengths, allowed)
    weight = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1)).bfloat16().double()
    truth.backward(weight)
    tolerance = TOLERANCE[dtype]
    for max_tanhs in (0, 2**60):  # tiled (if there is more than one query), and one query at a time
        with mock.patch.object(additive, "ONE_QUERY_MAX_TANHS", max_tanhs):
            actual, actual_lse = additive_attention(*(prepare(x) for x in leaves), *masks)
        assert actual.dtype == dtype
        assert actual_lse.dtype == torch.float32
        torch.testing.assert_close(actual.cpu().double(), truth, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(actual_lse.cpu().double(), truth_lse, rtol=tolerance, atol=tolerance)
        for leaf in leaves:
            leaf.grad = None
        actual.backward(weight.to(device, dtype))
        for name, one, other in zip(("query", "key", "vector", "value"), leaves, exact, strict=True):
            size = max(other.grad.abs().max().item(), 1e-3)
            error = (one.grad.cpu().double() - other.grad).abs().max().item()
            assert error <= tolerance * size, f"the gradient of the {name} is off by {error / size:.1e} of its size"
    return leaves


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"queries": 1}, id="one query"),
        pytest.param({"queries": 1, "heads": 2, "vectors": 2, "keys": 40, "hidden": 70}, id="one query, many tiles"),
        pytest.param({"keys": 1}, id="one key"),
        pytest.param({"queries": 1, "keys": 1}, id="one query and one key"),
        pytest.param({"batch": 2, "heads": 3, "vectors": 1}, id="heads with one vector"),
        pytest.param({"batch": 2, "heads": 3, "vectors": 3}, id="heads with a vector each"),
        pytest.param({"hidden": 5, "values": 3}, id="hidden 5"),
        pytest.param({"hidden": 17, "values": 20}, id="hidden 17"),
        pytest.param({"queries": 1, "heads": 2, "vectors": 2, "values": 600}, id="one query, many values"),
        pytest.param({"queries": 2, "keys": 257, "values": 7}, id="257 keys"),
        pytest.param({"scale": 8.0}, id="saturated"),
    ],
)
def test_output_lse_and_gradients_match_the_formula(sizes, device, dtype):
    assert_same(inputs(**sizes), device, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("queries", [1, 3])
def test_half_precision_is_accurate(queries, dtype):
    assert_same(inputs(queries=queries), "cuda" if torch.cuda.is_available() else "cpu", dtype)


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
def test_several_tiles_in_every_dimension(device, dtype, monkeypatch):
    tiles = Tiles(
        score_query=16, score_key=32, gradient_position=16, gradient_hidden=16,
        context_query=16, context_value_bytes=64, score_gradient_value_bytes=64, one_query_value=16,
        one_tile_value_bytes=64, one_tile_hidden=32,
    )  # fmt: skip
    monkeypatch.setattr(additive, "TILES", tiles)
    monkeypatch.setattr(additive, "MIN_PROGRAMS", 1)
    lengths = torch.tensor([43, 33])  # in the middle of a tile, and one past the end of another
    assert_same(inputs(batch=2, queries=18, keys=43, hidden=34, values=19), device, dtype, lengths)


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
@pytest.mark.parametrize(("queries", "keys", "one_tile"), [(64, 128, True), (65, 2, False), (2, 129, False)])
def test_small_problems_take_one_tile_in_the_backward_pass(queries, keys, one_tile, device, dtype, monkeypatch):
    monkeypatch.setattr(additive, "_backward" if one_tile else "_backward_one_tile", None)
    exact = inputs(queries=queries, keys=keys, hidden=2)
    leaves = [x.detach().to(device, dtype).requires_grad_() for x in exact]
    reference(*exact)[0].sum().backward()
    additive_attention(*leaves)[0].sum().backward()
    for one, other in zip(leaves, exact, strict=True):
        atol = TOLERANCE[dtype] * max(other.grad.abs().max().item(), 1e-3)
        torch.testing.assert_close(one.grad.cpu().double(), other.grad, rtol=0, atol=atol)


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
@pytest.mark.parametrize("queries", [1, 2])
def test_queries_attend_to_all_of_4097_keys(queries, device, dtype, monkeypatch):
    monkeypatch.setattr(additive, "ONE_QUERY_MAX_TANHS", 0)
    exact = [x.detach() for x in inputs(queries=queries, keys=4097)]
    truth, truth_lse = reference(*exact)
    actual, actual_lse = additive_attention(*(x.to(device, dtype) for x in exact))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual.cpu().double(), truth, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(actual_lse.cpu().double(), truth_lse, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
@pytest.mark.parametrize("queries", [1, 3])
def test_keys_at_or_beyond_the_length_are_masked(queries, device, dtype):
    lengths = torch.tensor([0, 1, 18, 33])
    leaves = assert_same(inputs(batch=4, heads=2, queries=queries, keys=33), device, dtype, lengths)
    for leaf, axis in zip((leaves[1], leaves[3]), (-1, -2), strict=True):
        assert leaf.grad.movedim(axis, -1)[2, ..., 18:].eq(0).all()


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
@pytest.mark.parametrize(
    "shape", [(2, 2, 5, 20), (1, 2, 5, 20), (2, 1, 5, 20), (2, 2, 1, 20), (2, 2, 5, 1), (1, 1, 1, 1)]
)
def test_a_dense_mask_broadcasts_in_every_dimension(shape, device, dtype):
    allowed = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    allowed[0, 0, 0, 0] = True
    assert_same(inputs(batch=2, heads=2, queries=5, keys=20), device, dtype, allowed=allowed)


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
@pytest.mark.parametrize("queries", [1, 4])
def test_fully_masked_rows_have_zero_output_and_gradient(queries, device, dtype):
    allowed = torch.ones(2, 1, queries, 6, dtype=torch.bool)
    allowed[0, 0, -1] = False
    lengths = torch.tensor([6, 4])
    leaves = assert_same(inputs(batch=2, queries=queries, keys=6), device, dtype, lengths, allowed)
    assert leaves[0].grad[0, 0, :, -1].eq(0).all()
    with torch.no_grad():
        output, lse = additive_attention(*leaves, lengths.to(device), allowed.to(device))
    assert output[0, 0, -1].eq(0).all()
    assert lse[0, 0, -1] == -torch.inf


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
@pytest.mark.parametrize("queries", [1, 5])
def test_any_strides_are_supported(queries, device, dtype):
    def strided(x):
        return torch.stack([x.mT, torch.full_like(x.mT, torch.nan)], dim=-1)[..., 0].mT

    exact = inputs(batch=2, heads=2, vectors=2, queries=queries, keys=20, hidden=17)
    allowed = (torch.rand(2, 2, 20, queries, generator=torch.Generator().manual_seed(0)) < 0.7).mT
    assert_same(exact, device, dtype, allowed=allowed, prepare=strided)


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
@pytest.mark.parametrize("queries", [1, 19])
def test_uninitialized_memory_does_not_leak_into_results(queries, device, dtype, monkeypatch):
    def poison(make):
        def poisoned(*args, **kwargs):
            tensor = make(*args, **kwargs)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return poisoned

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))
    lengths = torch.tensor([0, 11])
    allowed = torch.rand(1, 2, queries, 21, generator=torch.Generator().manual_seed(0)) < 0.6
    exact = inputs(batch=2, heads=2, queries=queries, keys=21, hidden=17, values=3)
    assert_same(exact, device, dtype, lengths, allowed)


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
def test_chunks_give_the_same_results(device, dtype, monkeypatch):
    monkeypatch.setattr(additive, "SCRATCH_FLOOR", 0)
    monkeypatch.setattr(additive, "SCRATCH_SHARE", 0.0)  # one item at a time, and one block of its queries
    monkeypatch.setattr(additive, "TILES", Tiles(block=16))
    lengths = torch.tensor([9, 5])
    assert_same(inputs(batch=2, heads=2, vectors=2, queries=20, keys=9), device, dtype, lengths)


@pytest.mark.filterwarnings("ignore:overflow encountered")  # in the interpreter, before a minimum
@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
def test_huge_activations_stay_finite(device, dtype, monkeypatch):
    exact = inputs(scale=MAX_MAGNITUDE)
    for x in exact[:2]:
        x.detach().clamp_(min=-MAX_MAGNITUDE, max=MAX_MAGNITUDE)
    assert_same(exact, device, dtype)
    monkeypatch.setattr(additive, "ONE_QUERY_MAX_TANHS", 0)
    huge = [(x.detach() * s).to(device, dtype) for x, s in zip(exact, (1e30, 1.0, 1.0, 1.0), strict=True)]
    assert additive_attention(*huge)[0].isfinite().all()


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
def test_without_keys_the_output_is_zero(device, dtype):
    leaves = [x.detach().to(device, dtype).requires_grad_() for x in inputs(keys=0)]
    output, lse = additive_attention(*leaves)
    output.sum().backward()
    assert output.eq(0).all()
    assert lse.eq(-torch.inf).all()
    assert leaves[0].grad.eq(0).all()


@pytest.mark.parametrize(("device", "dtype"), SETTINGS)
def test_opcheck(device, dtype):
    leaves = [x.detach().to(device, dtype).requires_grad_() for x in inputs(batch=2, heads=2, vectors=2)]
    lengths = torch.tensor([2, 5], device=device)
    torch.library.opcheck(
        torch.ops.qkv.additive_attention.default,
        (*leaves, lengths, None),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiles_as_one_graph_and_runs_in_a_cuda_graph(dtype):
    leaves = [x.detach().to("cuda", dtype).requires_grad_() for x in inputs(batch=2, queries=70, keys=130, hidden=64)]

    def step(*tensors):
        return torch.autograd.grad(additive_attention(*tensors)[0].sum(), tensors)

    eager = step(*leaves)
    compiled = torch.autograd.grad(
        torch.compile(lambda *x: additive_attention(*x)[0].sum(), fullgraph=True)(*leaves), leaves
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(*leaves)
    graph.replay()
    for expected, from_compile, from_graph in zip(eager, compiled, captured, strict=True):
        torch.testing.assert_close(from_compile, expected, rtol=0, atol=0)
        torch.testing.assert_close(from_graph, expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(8, 1024, 1024), (64, 64, 64), (64, 1, 64)])
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_peak_memory_is_at_most_1_5_times_inputs_and_outputs(shape):
    batch, queries, keys = shape

    def new(*sizes):
        return torch.randn(sizes, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    leaves = [new(batch, 1, 512, queries), new(batch, 1, 512, keys), new(1, 512), new(batch, 1, keys, 512)]
    weight = torch.randn(batch, 1, queries, 512, device="cuda", dtype=torch.bfloat16)
    torch.autograd.grad(
        additive_attention(*leaves)[0], leaves, weight
    )  # libraries allocate their workspace on first use
    input_bytes = sum(x.nbytes for x in leaves)
    for backward in (False, True):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.set_grad_enabled(backward):
            output, lse = additive_attention(*leaves)
        if backward:
            torch.autograd.grad(output, leaves, weight)
        output_bytes = output.nbytes + lse.nbytes + (input_bytes if backward else 0)
        extra = torch.cuda.max_memory_allocated() - before - output_bytes
        assert extra <= 0.5 * (input_bytes + output_bytes + (weight.nbytes if backward else 0))
        del output, lse
