"""Every score, alignment, position and mask, on every backend that supports them, against float64.

Outputs and gradients (of queries, keys, values and all parameters) are compared with the float64 reference, whose terms
are tested against loops and closed forms elsewhere. Unsupported requests must raise with a reason.
"""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.attention import attend
from qkv.attention.backends import BACKENDS
from qkv.attention.operator import build_request
from qkv.errors import Unsupported
from tests.attention.terms import ALIGNS, MASKS, POSITIONS, SCORES, Make, Sizes

ROUNDING = {torch.float32: 256, torch.bfloat16: 8}  # in units of the dtype's precision, for sums of a few dozen terms

Case = tuple[str, str, str, str]  # score, alignment, position, mask

REASONS = (
    "is not a dot product", "is not a softmax", "adds to the output", "adds a bias to the scores",
    "is not additive", "no backward pass on the CPU", "needs the number of unmasked keys",
)  # fmt: skip


def inputs(make: Make) -> list[Tensor]:
    sizes = make.sizes
    return [
        make.tensor(sizes.batch, sizes.heads, sizes.queries, sizes.dim, seed=7).requires_grad_(),
        make.tensor(sizes.batch, sizes.kv_heads, sizes.keys, sizes.dim, seed=8).requires_grad_(),
        make.tensor(sizes.batch, sizes.kv_heads, sizes.keys, sizes.value_dim, seed=9).requires_grad_(),
    ]


def terms(make: Make, case: Case) -> dict[str, object]:
    score, align, position, mask = case
    return {
        "score": SCORES[score](make),
        "align": ALIGNS[align](make),
        "position": POSITIONS[position](make),
        "mask": MASKS[mask](make),
    }


def weights_of(terms: dict[str, object]) -> list[Tensor]:
    modules = [getattr(term, "term", term) for term in terms.values()]
    return [weight for module in modules if isinstance(module, nn.Module) for weight in module.parameters()]


def output_and_gradients(make: Make, case: Case, backend: str) -> tuple[Tensor, list[Tensor]]:
    tensors, kwargs = inputs(make), terms(make, case)
    output = attend(*tensors, backend=backend, **kwargs).output
    inputs_and_weights = tensors + weights_of(kwargs)
    # Distinct coefficients, so that errors cannot cancel.
    weight = torch.linspace(-1, 1, output.numel(), dtype=make.dtype, device=make.device).view_as(output)
    grads = torch.autograd.grad((output * weight).sum(), inputs_and_weights, allow_unused=True, materialize_grads=True)
    return output.detach(), list(grads)


def is_supported(sizes: Sizes, case: Case, backend: str, *, device: str = "cpu", grad: bool = True) -> bool:
    make = Make(sizes, torch.float32, torch.float32, device)
    with torch.set_grad_enabled(grad):
        return BACKENDS[backend].supports(build_request(*inputs(make), **terms(make, case))) is None


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
        truth = attend(*inputs(exact), backend="reference", **terms(exact, case)).output
        actual = attend(*inputs(low), backend=backend, **terms(low, case)).output
    tolerance = ROUNDING[torch.float32] * torch.finfo(torch.float32).eps
    torch.testing.assert_close(actual.double(), truth, rtol=tolerance, atol=tolerance)


BASE = Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=5, dim=6, value_dim=3)


def check_all(backend: str, score: str, align: str, every: int = 1) -> None:
    """Check every position-mask pair, or every `every`-th one, with an offset that depends on score and alignment."""
    first = list(SCORES).index(score) + list(ALIGNS).index(align)
    for number, (position, mask) in enumerate(product(POSITIONS, MASKS)):
        case = (score, align, position, mask)
        if (number + first) % every == 0 and is_supported(BASE, case, backend):
            check(BASE, case, backend, torch.float32)


@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("score", SCORES)
def test_float32_reference_matches_float64(score, align):
    check_all("reference", score, align, every=11)


@pytest.mark.slow
@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("score", SCORES)
def test_float32_reference_matches_float64_for_all_combinations(score, align):
    check_all("reference", score, align)


@pytest.mark.parametrize("align", ["softmax", "softmax, temperature 0.7", "uniform", "local-m"])
@pytest.mark.parametrize("score", ["dot", "scaled dot", "bilinear", "low-rank bilinear", "cosine"])
def test_sdpa_matches_the_float64_reference_for_all_combinations(score, align):
    check_all("sdpa", score, align)


@pytest.mark.parametrize("score", ["dot", "scaled dot", "bilinear", "low-rank bilinear", "cosine"])
@pytest.mark.compiled
def test_flex_inference_matches_the_float64_reference(score):
    for number, case in enumerate(product([score], ALIGNS, POSITIONS, MASKS)):
        if number % 9 == 0 and is_supported(BASE, case, "flex", grad=False):
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
CASES = st.tuples(*(st.sampled_from(list(kind)) for kind in (SCORES, ALIGNS, POSITIONS, MASKS)))


@pytest.mark.parametrize(
    "backend", [pytest.param(b, marks=pytest.mark.compiled if b == "flex" else ()) for b in BACKENDS]
)
@settings(max_examples=120, deadline=None)
@given(sizes=SHAPES, case=CASES)
def test_any_shape_is_computed_correctly_or_rejected_with_a_reason(backend, sizes, case):
    if is_supported(sizes, case, backend):
        check(sizes, case, backend, torch.float32)
        return
    make = Make(sizes, torch.float32, torch.float32)
    with pytest.raises(Unsupported) as error:
        attend(*inputs(make), backend=backend, **terms(make, case))
    assert any(reason in error.value.reason for reason in REASONS)
    if is_supported(sizes, case, backend, grad=False):
        check_inference(sizes, case, backend)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", ["additive", "additive by head", "concat"])
def test_fused_additive_kernel_matches_the_float64_reference(score, mask):
    pytest.importorskip("triton")
    aligns = ("softmax", "softmax, temperature 0.7", "uniform", "local-m")
    align = aligns[(list(MASKS).index(mask) + list(SCORES).index(score)) % 4]  # all of them are tested on GPUs
    case = (score, align, "none", mask)
    assert is_supported(BASE, case, "triton")
    check(BASE, case, "triton", torch.float32)


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "dense"])
@pytest.mark.parametrize(("backend", "score"), [("reference", "dot"), ("sdpa", "scaled dot"), ("triton", "additive")])
def test_thousands_of_keys_do_not_lose_precision(backend, score, mask):
    if backend == "triton":
        pytest.importorskip("triton")
    keys = 513 if backend == "triton" else 4097  # its interpreter is slow; 4,097 are in test_conformance_on_gpu
    sizes = Sizes(batch=2, heads=1, kv_heads=1, queries=3, keys=keys, dim=4, value_dim=2)
    check(sizes, (score, "softmax", "none", mask), backend, torch.float32)
