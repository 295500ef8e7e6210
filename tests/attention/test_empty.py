"""Sizes of zero: the float64 reference's result, or an error that says why not, on every backend."""

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
    *((score, "softmax", "nowhere", "everything") for score in SCORES),
    *((score, align, "nowhere", "everything") for score in ("dot", "scaled dot", "additive") for align in ALIGNS),
    *((score, "softmax", position, "everything") for score in ("dot", "scaled dot") for position in POSITIONS),
    *((score, "softmax", "nowhere", mask) for score in ("dot", "scaled dot", "additive") for mask in MASKS),
]
FEW = [case for case in CASES if case[1:] == ("softmax", "nowhere", "everything")]  # for backends slow on the CPU
NEVER_EMPTY = ("tree", "tree, keys only", "alibi", "rotary")  # positions that cannot be made for every size of zero


def output(make: Make, case: tuple[str, str, str, str], backend: str, *, gradient: bool = False) -> Tensor | None:
    """What attention gives for tensors of these sizes; None where it is refused with a reason."""
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
            found = attend(query, key, value, backend=backend, need_weights=not gradient, **terms).output
    except (ShapeError, Unsupported):
        return None
    if found.requires_grad:
        found.sum().backward()
        assert query.grad is None or query.grad.isfinite().all()
    return found.detach().double()


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize("empty", EMPTY)
def test_a_size_of_zero_gives_the_result_of_the_reference_or_a_reason(empty: str, backend: str) -> None:
    served = 0
    for case in FEW if backend in ("flex", "triton") else CASES:
        if case[2] in NEVER_EMPTY and empty not in ("queries", "value features"):
            continue
        expected = output(Make(EMPTY[empty], torch.float32, torch.float64), case, "reference")
        make = Make(EMPTY[empty], torch.float32, torch.float32)
        for gradient in (False, True):
            found = output(make, case, backend, gradient=gradient)
            if found is not None:
                assert expected is not None, case
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=str(case))
                served += 1
    if backend in ("auto", "reference", "sdpa"):
        assert bool(served) == (empty != "heads")


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "flex"])
def test_without_features_a_dot_product_gives_uniform_weights_and_a_scaled_one_is_refused(backend: str) -> None:
    query, key, value = torch.randn(1, 1, 2, 0), torch.randn(1, 1, 4, 0), torch.randn(1, 1, 4, 3)
    mean = value.mean(dim=2, keepdim=True).expand(1, 1, 2, 3)
    for score in (Dot(), ScaledDot(scale=2.0)):
        torch.testing.assert_close(attend(query, key, value, score=score, backend=backend).output, mean)
    with pytest.raises(ShapeError, match="features"):
        attend(query, key, value, backend=backend)
