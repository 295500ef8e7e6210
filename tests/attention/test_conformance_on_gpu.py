"""The conformance matrix on a CUDA device: all supporting backends, in float32 and bfloat16."""

from itertools import product

import pytest
import torch

from qkv.attention import Padding, attend
from tests.attention.terms import ALIGNS, MASKS, POSITIONS, SCORES, Sizes
from tests.attention.test_conformance import BASE, check, is_supported

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
DOT_PRODUCTS = ("dot", "scaled dot", "bilinear", "low-rank bilinear", "cosine")
SOFTMAXES = ("softmax", "softmax, temperature 0.7", "uniform", "local-m")
DISCONTINUOUS = ("hard", "hard, straight through", "local-p", "sparsemax")  # rounding may change a choice
ALIGNED = Sizes(batch=2, heads=2, kv_heads=1, queries=24, keys=40, dim=16, value_dim=16)


def check_if_supported(sizes, case, backend, dtype):
    if is_supported(sizes, case, backend, device="cuda"):
        check(sizes, case, backend, dtype, "cuda")


@DTYPES
@pytest.mark.parametrize("align", SOFTMAXES)
@pytest.mark.parametrize("score", DOT_PRODUCTS)
def test_sdpa_matches_the_float64_reference_for_all_combinations(score, align, dtype):
    for sizes, position, mask in product((BASE, ALIGNED), POSITIONS, MASKS):
        check_if_supported(sizes, (score, align, position, mask), "sdpa", dtype)


@DTYPES
@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("score", SCORES)
def test_reference_matches_float64_on_the_cpu(score, align, dtype):
    if dtype == torch.bfloat16 and align in DISCONTINUOUS:
        pytest.skip("rounding may change a discrete choice")
    for number, (position, mask) in enumerate(product(POSITIONS, MASKS)):
        if number % 13 == 0:
            check_if_supported(BASE, (score, align, position, mask), "reference", dtype)


@DTYPES
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", ["additive", "additive by head", "concat"])
def test_fused_additive_kernels_match_the_float64_reference(score, mask, dtype):
    for sizes, align in product((BASE, ALIGNED), SOFTMAXES):
        case = (score, align, "none", mask)
        assert is_supported(sizes, case, "triton", device="cuda")
        check(sizes, case, "triton", dtype, "cuda")


@DTYPES
@pytest.mark.parametrize(
    "case",
    [
        ("scaled dot", "softmax", "alibi", "causal"),
        ("dot", "softmax, temperature 0.7", "none", "causal and padding"),
        ("bilinear", "uniform", "none", "padding"),
        ("cosine", "softmax", "rotary", "window"),
        ("low-rank bilinear", "local-m", "none", "dense"),
        ("scaled dot", "local-p", "none", "padding"),
        ("scaled dot", "softmax", "shaw, keys only", "documents"),
        ("scaled dot", "softmax", "tree, keys only", "prefix"),
        ("scaled dot", "softmax", "none", "not causal"),
    ],
    ids=", ".join,
)
def test_flex_matches_the_float64_reference(case, dtype):
    if dtype == torch.bfloat16 and case[1] in DISCONTINUOUS:
        pytest.skip("rounding may change a discrete choice")
    assert is_supported(ALIGNED, case, "flex", device="cuda")
    check(ALIGNED, case, "flex", dtype, "cuda")


@DTYPES
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "dense"])
@pytest.mark.parametrize(
    ("backend", "score"),
    [("reference", "dot"), ("sdpa", "scaled dot"), ("flex", "scaled dot"), ("triton", "additive")],
)
def test_thousands_of_keys_do_not_lose_precision(backend, score, mask, dtype):
    sizes = Sizes(batch=2, heads=1, kv_heads=1, queries=3, keys=4097, dim=16, value_dim=16)
    check(sizes, (score, "softmax", "none", mask), backend, dtype, "cuda")


@pytest.mark.parametrize("backend", ["auto", "sdpa", "flex", "reference"])
@pytest.mark.parametrize("length", [64, 2048])  # without and with cuDNN's kernel
def test_fully_masked_queries_have_zero_output_and_gradient(backend, length):
    torch.manual_seed(0)
    leaves = [torch.randn(8, 8, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    lengths = torch.full((8,), length, device="cuda")
    lengths[0] = 0
    output = attend(*leaves, mask=Padding(lengths), backend=backend).output
    grads = torch.autograd.grad(output.float().sum(), leaves)
    assert output[0].eq(0).all()
    assert output[1:].ne(0).any()
    for grad in grads:
        assert grad[0].eq(0).all()
        assert grad.isfinite().all()
