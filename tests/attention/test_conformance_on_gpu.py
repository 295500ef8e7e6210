"""The conformance matrix on a CUDA device: all backends, in float32 and bfloat16."""

import pytest
import torch

from qkv.attention import Padding, attend
from tests.attention.terms import (
    ALIGNS,
    DOT_PRODUCTS,
    HIDDEN_LAYERS,
    MASKS,
    SCORES,
    SOFTMAXES,
    SUPPORTED,
    Sizes,
    supported_cases,
)  # fmt: skip
from tests.attention.test_conformance import BASE, check, check_support

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
DISCONTINUOUS = ("hard", "hard, straight through", "local-p", "sparsemax")  # rounding may change a choice
ALIGNED = Sizes(batch=2, heads=2, kv_heads=1, queries=24, keys=40, dim=16, value_dim=16)


@pytest.mark.parametrize("backend", SUPPORTED)
def test_backends_support_exactly_the_cases_of_the_table(backend):
    check_support(backend, device="cuda")


@DTYPES
@pytest.mark.parametrize("align", SOFTMAXES)
@pytest.mark.parametrize("score", DOT_PRODUCTS)
def test_sdpa_matches_the_float64_reference_for_all_combinations(score, align, dtype):
    for case in supported_cases("sdpa", score, align):
        for sizes in (BASE, ALIGNED):
            check(sizes, case, "sdpa", dtype, "cuda")


@DTYPES
@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("score", SCORES)
def test_reference_matches_float64_on_the_cpu(score, align, dtype):
    if dtype == torch.bfloat16 and align in DISCONTINUOUS:
        pytest.skip("rounding may change a discrete choice")
    for case in supported_cases("reference", score, align)[::13]:
        check(BASE, case, "reference", dtype, "cuda")


@DTYPES
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", HIDDEN_LAYERS)
def test_fused_additive_kernels_match_the_float64_reference(score, mask, dtype):
    for align in SOFTMAXES:
        for sizes in (BASE, ALIGNED):
            check(sizes, (score, align, "none", mask), "triton", dtype, "cuda")


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
