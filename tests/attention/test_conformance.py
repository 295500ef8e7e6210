"""Every combination of score, alignment, position and mask that a backend must support, against float64.

Outputs and gradients (of queries, keys, values and all parameters) are compared with the float64 reference, whose terms
are tested against loops and closed forms elsewhere. `terms.SUPPORTED` lists the combinations that each backend must
support; all others must raise with a reason.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.attention import attend
from qkv.attention.backends import BACKENDS
from qkv.attention.operator import build_request
from qkv.errors import Unsupported
from tests.attention.terms import (
    ALIGNS,
    CASES,
    CPU_INFERENCE_ONLY,
    DOT_PRODUCTS,
    HIDDEN_LAYERS,
    MASKS,
    POSITIONS,
    SCORES,
    SOFTMAXES,
    SUPPORTED,
    Case,
    Make,
    Sizes,
    build_terms,
    supported_cases,
)  # fmt: skip

ROUNDING = {torch.float32: 256, torch.bfloat16: 8}  # in units of the dtype's precision, for sums of a few dozen terms
BASE = Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=5, dim=6, value_dim=3)
ALL_BACKENDS = pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=pytest.mark.compiled if name == "flex" else ()) for name in SUPPORTED]
)


def inputs(make: Make) -> list[Tensor]:
    sizes = make.sizes
    return [
        make.tensor(sizes.batch, sizes.heads, sizes.queries, sizes.dim, seed=7).requires_grad_(),
        make.tensor(sizes.batch, sizes.kv_heads, sizes.keys, sizes.dim, seed=8).requires_grad_(),
        make.tensor(sizes.batch, sizes.kv_heads, sizes.keys, sizes.value_dim, seed=9).requires_grad_(),
    ]


def weights_of(terms: dict[str, object]) -> list[Tensor]:
    modules = [getattr(term, "term", term) for term in terms.values()]
    return [weight for module in modules if isinstance(module, nn.Module) for weight in module.parameters()]


def output_and_gradients(make: Make, case: Case, backend: str) -> tuple[Tensor, list[Tensor]]:
    tensors, kwargs = inputs(make), build_terms(make, case)
    output = attend(*tensors, backend=backend, **kwargs).output
    inputs_and_weights = tensors + weights_of(kwargs)
    # Distinct coefficients, so that errors cannot cancel.
    weight = torch.linspace(-1, 1, output.numel(), dtype=make.dtype, device=make.device).view_as(output)
    grads = torch.autograd.grad((output * weight).sum(), inputs_and_weights, allow_unused=True, materialize_grads=True)
    return output.detach(), list(grads)


def check(sizes: Sizes, case: Case, backend: str, low: torch.dtype, device: str = "cpu") -> None:
    truth, expected_grads = output_and_gradients(Make(sizes, low, torch.float64), case, "reference")
    actual, grads = output_and_gradients(Make(sizes, low, low, device), case, backend)
    tolerance = ROUNDING[low] * torch.finfo(low).eps
    pairs = zip([actual, *grads], [truth, *expected_grads], strict=True)
    for number, (a, b) in enumerate(pairs):
        scale = max(1.0, b.abs().max().item())
        error = (a.cpu().double() - b).abs().max().item()
        what = f"gradient {number}" if number else "output"
        assert error <= tolerance * scale, f"{case} on {backend}, {sizes}: {what} is off by {error} of {scale}"


def check_inference(sizes: Sizes, case: Case, backend: str) -> None:
    with torch.no_grad():
        exact, low = Make(sizes, torch.float32, torch.float64), Make(sizes, torch.float32, torch.float32)
        truth = attend(*inputs(exact), backend="reference", **build_terms(exact, case)).output
        actual = attend(*inputs(low), backend=backend, **build_terms(low, case)).output
    tolerance = ROUNDING[torch.float32] * torch.finfo(torch.float32).eps
    torch.testing.assert_close(actual.double(), truth, rtol=tolerance, atol=tolerance)


def reason_not_to_support(
    backend: str, terms: dict[str, object], *, device: str = "cpu", grad: bool = True
) -> str | None:
    tensors = inputs(Make(BASE, torch.float32, torch.float32, device))
    with torch.set_grad_enabled(grad):
        return BACKENDS[backend].supports(build_request(*tensors, **terms))


def check_support(backend: str, *, device: str = "cpu", grad: bool = True) -> None:
    """Check that the backend supports the cases of `SUPPORTED` and no others."""
    make = Make(BASE, torch.float32, torch.float32, device)
    kinds = {"score": SCORES, "align": ALIGNS, "position": POSITIONS, "mask": MASKS}
    built = [{name: build(make) for name, build in kind.items()} for kind in kinds.values()]
    actual = []
    for case in CASES:
        terms = {kind: terms[name] for kind, terms, name in zip(kinds, built, case, strict=True)}
        if reason_not_to_support(backend, terms, device=device, grad=grad) is None:
            actual.append(case)
    assert actual == supported_cases(backend)


def test_every_backend_has_a_row_in_the_support_table():
    assert set(SUPPORTED) == set(BACKENDS)


@ALL_BACKENDS
def test_backends_support_exactly_the_cases_of_the_table(backend):
    if backend == "triton":
        pytest.importorskip("triton")
    check_support(backend, grad=backend not in CPU_INFERENCE_ONLY)


@pytest.mark.compiled
def test_flex_supports_no_case_with_gradients_on_the_cpu():
    make = Make(BASE, torch.float32, torch.float32)
    for case in supported_cases("flex")[::50]:
        assert "CPU" in reason_not_to_support("flex", build_terms(make, case))


@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("score", SCORES)
def test_float32_reference_matches_float64(score, align):
    first = list(SCORES).index(score) + list(ALIGNS).index(align)
    for case in supported_cases("reference", score, align)[first % 11 :: 11]:
        check(BASE, case, "reference", torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("score", SCORES)
def test_float32_reference_matches_float64_for_all_combinations(score, align):
    for case in supported_cases("reference", score, align):
        check(BASE, case, "reference", torch.float32)


@pytest.mark.parametrize("align", SOFTMAXES)
@pytest.mark.parametrize("score", DOT_PRODUCTS)
def test_sdpa_matches_the_float64_reference_for_all_combinations(score, align):
    for case in supported_cases("sdpa", score, align):
        check(BASE, case, "sdpa", torch.float32)


@pytest.mark.parametrize("score", SCORES)
def test_gather_matches_the_float64_reference_for_all_combinations(score):
    for case in supported_cases("gather", score):
        check(BASE, case, "gather", torch.float32)


@pytest.mark.parametrize("score", DOT_PRODUCTS)
@pytest.mark.compiled
def test_flex_inference_matches_the_float64_reference(score):
    for case in supported_cases("flex", score)[list(SCORES).index(score) :: 9]:
        check_inference(BASE, case, "flex")


SHAPES = st.builds(
    lambda batch, kv_heads, groups, queries, keys, half_dim, value_dim: Sizes(
        batch, kv_heads * groups, kv_heads, queries, keys, 2 * half_dim, value_dim
    ),
    batch=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    groups=st.sampled_from([1, 1, 2]),
    queries=st.sampled_from([1, 1, 2, 5, 8]),
    keys=st.sampled_from([1, 2, 5, 8, 17]),
    half_dim=st.sampled_from([1, 2, 4, 9]),
    value_dim=st.sampled_from([1, 4, 7]),
)


def check_any_shape(backend: str, data: st.DataObject, sizes: Sizes) -> None:
    case = data.draw(st.sampled_from(supported_cases(backend)))
    if backend in CPU_INFERENCE_ONLY:
        check_inference(sizes, case, backend)
    else:
        check(sizes, case, backend, torch.float32)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "gather", pytest.param("flex", marks=pytest.mark.compiled)])
@settings(max_examples=40, deadline=None)
@given(data=st.data(), sizes=SHAPES)
def test_supported_cases_match_the_float64_reference_for_any_shape(backend, data, sizes):
    check_any_shape(backend, data, sizes)


@settings(max_examples=8, deadline=None)  # Triton's interpreter is slow
@given(data=st.data(), sizes=SHAPES)
def test_fused_additive_kernel_matches_the_float64_reference_for_any_shape(data, sizes):
    pytest.importorskip("triton")
    check_any_shape("triton", data, sizes)


@pytest.mark.parametrize("backend", ["sdpa", "flex", "triton"])
@settings(max_examples=100, deadline=None)
@given(data=st.data(), sizes=SHAPES)
def test_unsupported_cases_are_rejected_with_the_offending_term(backend, data, sizes):
    supported = set(supported_cases(backend))
    case = data.draw(st.sampled_from([case for case in CASES if case not in supported]))
    make = Make(sizes, torch.float32, torch.float32)
    terms = build_terms(make, case)
    with pytest.raises(Unsupported) as error, torch.no_grad():
        attend(*inputs(make), backend=backend, **terms)
    offending = {
        type(term).__name__
        for factors in SUPPORTED[backend]
        for term, name, supported in zip(terms.values(), case, factors, strict=True)
        if name not in supported
    }
    assert error.value.backend == backend
    assert any(name in error.value.reason for name in offending)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", HIDDEN_LAYERS)
def test_fused_additive_kernel_matches_the_float64_reference(score, mask):
    pytest.importorskip("triton")
    align = SOFTMAXES[(list(MASKS).index(mask) + list(SCORES).index(score)) % 4]  # all of them are tested on GPUs
    check(BASE, (score, align, "none", mask), "triton", torch.float32)


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "dense"])
@pytest.mark.parametrize(("backend", "score"), [("reference", "dot"), ("sdpa", "scaled dot"), ("triton", "additive")])
def test_thousands_of_keys_do_not_lose_precision(backend, score, mask):
    if backend == "triton":
        pytest.importorskip("triton")
    # Triton's interpreter is slow: three blocks of 64 keys and one more; 4,097 are in test_conformance_on_gpu.
    keys = 193 if backend == "triton" else 4097
    sizes = Sizes(batch=2, heads=1, kv_heads=1, queries=3, keys=keys, dim=4, value_dim=2)
    check(sizes, (score, "softmax", "none", mask), backend, torch.float32)
