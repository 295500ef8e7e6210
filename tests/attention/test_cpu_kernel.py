"""The C kernel of attention for training on the CPU against float64."""

import math

import pytest
import torch
from torch import Tensor

from qkv.attention import Causal, Dense, Padding, attend
from qkv.attention.backends import cpu, sdpa
from qkv.runtime import c_library, fast_paths

MAX_ERROR = {torch.float32: 1e-6, torch.bfloat16: 4e-3}  # of the norm


@pytest.fixture(autouse=True)
def _require_kernel(monkeypatch):
    if cpu.kernels() is None:
        pytest.skip("needs a C compiler")
    monkeypatch.setattr(cpu, "MIN_PRODUCTS", 0)


@pytest.fixture
def calls(monkeypatch):
    """The calls of the kernel."""
    seen = []

    def record(*arguments):
        seen.append(arguments)
        return cpu.kernel_attention(*arguments)

    monkeypatch.setattr(sdpa, "kernel_attention", record)
    return seen


def heads_of(batch: int, heads: int, length: int, dim: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Heads as a projection splits them: not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, heads, dim, generator=generator).to(dtype).transpose(1, 2).requires_grad_()


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scale: float) -> Tensor:
    """Attention by its formula; rows without a visible key are 0."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (scale * query @ key.transpose(2, 3)).masked_fill(~allowed, -math.inf)
    weights = scores.exp() / scores.exp().sum(dim=-1, keepdim=True).clamp(min=1e-300)
    return weights @ value


def error(found: Tensor, truth: Tensor) -> float:
    return ((found.double() - truth).norm() / truth.norm()).item()


def clear_caches() -> None:
    """Let the next call load or compile the kernel again."""
    c_library.load_library.cache_clear()
    cpu.kernels.cache_clear()


MASKS = {
    "none": lambda queries, keys: (None, torch.ones(3, 1, queries, keys, dtype=torch.bool)),
    "causal": lambda queries, keys: (Causal(), torch.ones(1, 1, queries, keys, dtype=torch.bool).tril(keys - queries)),
    "padding": lambda queries, keys: (
        Padding(torch.tensor([keys, 1, 0])),
        (torch.arange(keys) < torch.tensor([keys, 1, 0])[:, None])[:, None, None, :].expand(3, 1, queries, keys),
    ),
    "dense": lambda queries, keys: (
        2 * (torch.rand(3, 4, queries, keys, generator=torch.Generator().manual_seed(5)) < 0.5,)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("queries", "keys", "dim", "value_dim", "kv_heads"),
    [(64, 64, 32, 32, 4), (17, 17, 5, 3, 4), (1, 33, 16, 24, 2), (20, 50, 40, 8, 1), (33, 16, 64, 64, 4)],
)
def test_output_and_gradients(calls, dtype, mask, queries, keys, dim, value_dim, kv_heads):
    if mask == "causal" and queries > keys:
        pytest.skip("queries before the first key are tested with the other masks")
    tensors = [
        heads_of(3, 4, queries, dim, dtype, 1),
        heads_of(3, kv_heads, keys, dim, dtype, 2),
        heads_of(3, kv_heads, keys, value_dim, dtype, 3),
    ]
    term, allowed = MASKS[mask](queries, keys)
    term = Dense(term) if isinstance(term, Tensor) else term
    grad = heads_of(3, 4, queries, value_dim, dtype, 4).detach()
    output = attend(*tensors, mask=term, backend="sdpa").output
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    truth = softmax_attention(*exact, allowed, dim**-0.5)
    assert len(calls) == 1
    assert error(output, truth) < MAX_ERROR[dtype]
    for found, wanted in zip(
        torch.autograd.grad(output, tensors, grad), torch.autograd.grad(truth, exact, grad.double()), strict=True
    ):
        assert found.dtype == dtype
        assert error(found, wanted) < MAX_ERROR[dtype]


def test_without_the_instructions_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(c_library, "FLAGS", tuple(flag for flag in c_library.FLAGS if flag != "-march=native"))
    tensors = [heads_of(2, 2, 33, 24, torch.bfloat16, seed) for seed in range(3)]
    native = attend(*tensors, mask=Causal(), backend="sdpa").output
    clear_caches()
    try:
        portable = attend(*tensors, mask=Causal(), backend="sdpa").output
        assert len([*(tmp_path / "qkv").iterdir()]) == 1
        torch.testing.assert_close(portable, native)
        for one, other in zip(*(torch.autograd.grad(x.sum(), tensors) for x in (portable, native)), strict=True):
            torch.testing.assert_close(one, other)
    finally:
        monkeypatch.undo()
        clear_caches()


def test_without_a_compiler_pytorch_is_used(calls, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(c_library, "COMPILERS", ("no-such-compiler",))
    clear_caches()
    attend(*(heads_of(2, 2, 8, 8, torch.float32, seed) for seed in range(3)), backend="sdpa")
    monkeypatch.undo()
    clear_caches()
    assert not calls


def test_dropout_zeroes_weights_and_scales_the_rest(calls):
    torch.manual_seed(0)
    query, key = (heads_of(4, 2, 64, 64, torch.float32, seed) for seed in range(2))
    identity = torch.eye(64).expand(4, 2, 64, 64).clone().requires_grad_()  # the output is the matrix of weights
    plain, dropped = (attend(query, key, identity, dropout=rate, backend="sdpa").output for rate in (0.0, 0.25))
    kept = dropped != 0
    assert len(calls) == 2
    assert 0.74 < kept.float().mean() < 0.76
    for of_each_row_or_column in (kept.float().mean(dim=(0, 1)).mean(dim=dim) for dim in (0, 1)):
        assert (of_each_row_or_column - 0.75).abs().max() < 0.08  # four standard deviations
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75)
    again = attend(query, key, identity, dropout=0.25, backend="sdpa").output
    assert 0.6 < ((again != 0) == kept).float().mean() < 0.65  # 0.75^2 + 0.25^2: another mask

    grad = torch.randn(4, 2, 64, 64, generator=torch.Generator().manual_seed(9))
    found = torch.autograd.grad(dropped, (query, key, identity), grad)
    exact = [tensor.detach().double().requires_grad_() for tensor in (query, key, identity)]
    weights = (exact[0] @ exact[1].transpose(2, 3) / 8).softmax(dim=-1) * kept / 0.75
    for one, wanted in zip(found, torch.autograd.grad(weights @ exact[2], exact, grad.double()), strict=True):
        assert error(one, wanted) < MAX_ERROR[torch.float32]


def test_dropout_of_everything_is_zero():
    tensors = [heads_of(2, 2, 16, 16, torch.float32, seed) for seed in range(3)]
    output = attend(*tensors, dropout=1.0, backend="sdpa").output
    assert not output.any()
    assert not any(gradient.any() for gradient in torch.autograd.grad(output.sum(), tensors))


def test_dropout_depends_on_the_seed_of_torch():
    tensors = [heads_of(2, 2, 16, 16, torch.float32, seed) for seed in range(3)]
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(attend(*tensors, dropout=0.5, backend="sdpa").output)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_numbers_that_are_not_finite_are_not_hidden():
    for position, number in ((0, math.nan), (1, math.nan), (0, math.inf)):
        tensors = [heads_of(1, 1, 32, 16, torch.float32, seed) for seed in range(3)]
        with torch.no_grad():
            tensors[position][0, 0, 3, 3] = number
        output = attend(*tensors, backend="sdpa").output
        assert output[0, 0, 3].isnan().any()
        assert all(gradient.isnan().any() for gradient in torch.autograd.grad(output.sum(), tensors))


def test_the_kernel_is_used_for_training_only(calls):
    tensors = [heads_of(2, 2, 8, 8, torch.float32, seed) for seed in range(3)]
    with torch.no_grad():
        attend(*tensors, backend="sdpa")
    attend(*(tensor.detach() for tensor in tensors), backend="sdpa")
    attend(*(tensor.double() for tensor in tensors), backend="sdpa")
    with fast_paths.disabled():
        plain = attend(*tensors, backend="sdpa").output
    assert not calls
    torch.testing.assert_close(attend(*tensors, backend="sdpa").output, plain)
    assert len(calls) == 1


def test_small_calls_use_pytorch(calls, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(cpu, "_Attention", None)  # a call would fail
    attend(*(heads_of(2, 2, 8, 8, torch.float32, seed) for seed in range(3)), backend="sdpa")
