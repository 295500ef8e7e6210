"""Sizes of zero: every backend matches the float64 reference or raises an error."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from qkv.attention import Dot, ScaledDot, attend
from qkv.attention.backends import BACKENDS
from qkv.errors import ShapeError, Unsupported
from tests.attention.terms import ALIGNS, MASKS, POSITIONS, SCORES, Make, Sizes

EMPTY = {
    "features": replace(Sizes(), dim=0),
    "queries": replace(Sizes(), queries=0),
    "keys": replace(Sizes(), keys=0),
    "batch": replace(Sizes(), batch=0),
    "heads": replace(Sizes(), heads=0, kv_heads=0),
    "value features": replace(Sizes(), value_dim=0),
    "features and keys": replace(Sizes(), dim=0, keys=0),
    "all features": replace(Sizes(), dim=0, value_dim=0),
}
CASES = [
    *((score, "softmax", "none", "none") for score in SCORES),
    *((score, align, "none", "none") for score in ("dot", "scaled dot", "additive") for align in ALIGNS),
    *((score, "softmax", position, "none") for score in ("dot", "scaled dot") for position in POSITIONS),
    *((score, "softmax", "none", mask) for score in ("dot", "scaled dot", "additive") for mask in MASKS),
]
FEW = [case for case in CASES if case[1:] == ("softmax", "none", "none")]  # for backends that are slow on the CPU
NEVER_EMPTY = (
    "tree",
    "tree, keys only",
    "alibi",
    "quadratic",
    "rotary",
)  # positions that do not exist for every size of zero


def output(make: Make, case: tuple[str, str, str, str], backend: str, *, gradient: bool = False) -> Tensor | None:
    """Output of attention for tensors of these sizes; None if it raises."""
    score, align, position, mask = case
    sizes = make.sizes
    try:
        terms = {
            "score": SCORES[score](make), "align": ALIGNS[align](make),
            "position": POSITIONS[position](make), "mask": MASKS[mask](make),
        }  # fmt: skip
        query = make.tensor(sizes.batch, sizes.heads, sizes.queries, sizes.dim, seed=7).requires_grad_(gradient)
        key = make.tensor(sizes.batch, sizes.kv_heads, sizes.keys, sizes.dim, seed=8)
        value = make.tensor(sizes.batch, sizes.kv_heads, sizes.keys, sizes.value_dim, seed=9)
        with torch.set_grad_enabled(gradient):
            actual = attend(query, key, value, backend=backend, need_weights=not gradient, **terms).output
    except (ShapeError, Unsupported):
        return None
    if actual.requires_grad:
        actual.sum().backward()
        assert query.grad is None or query.grad.isfinite().all()
    return actual.detach().double()


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize("empty", EMPTY)
def test_sizes_of_zero_match_the_reference_or_raise(empty: str, backend: str) -> None:
    supported = 0
    for case in FEW if backend in ("flex", "triton") else CASES:
        if case[2] in NEVER_EMPTY and empty not in ("queries", "value features"):
            continue
        expected = output(Make(EMPTY[empty], torch.float32, torch.float64), case, "reference")
        make = Make(EMPTY[empty], torch.float32, torch.float32)
        for gradient in (False, True):
            actual = output(make, case, backend, gradient=gradient)
            if actual is not None:
                assert expected is not None, case
                torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, msg=str(case))
                supported += 1
    if backend in ("auto", "reference", "sdpa"):
        assert bool(supported) == (empty != "heads")


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "flex"])
def test_without_features_dot_gives_uniform_weights_and_scaled_dot_raises(backend: str) -> None:
    query, key, value = torch.randn(1, 1, 2, 0), torch.randn(1, 1, 4, 0), torch.randn(1, 1, 4, 3)
    mean = value.mean(dim=2, keepdim=True).expand(1, 1, 2, 3)
    for score in (Dot(), ScaledDot(scale=2.0)):
        torch.testing.assert_close(attend(query, key, value, score=score, backend=backend).output, mean)
    with pytest.raises(ShapeError, match="features"):
        attend(query, key, value, backend=backend)
