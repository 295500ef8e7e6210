"""The C kernel of attention for training on the CPU against float64."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from qkv.attention import ALiBi, Causal, Dense, Padding, Quadratic, Relative, attend
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


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scale: float, bias: Tensor | float = 0.0
) -> Tensor:
    """Attention by its formula; rows without a visible key are 0."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (scale * query @ key.transpose(2, 3) + bias).masked_fill(~allowed, -math.inf)
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


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


BIASES = {
    "shared": (1, 4, 20, 37),
    "per example": (3, 4, 20, 37),
    "of all heads": (3, 1, 20, 37),
    "of the keys": (1, 4, 1, 37),
    "of the queries": (3, 4, 20, 1),
    "one number": (1, 1, 1, 1),
}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_bias_and_its_gradient(dtype, mask, shape, kv_heads):
    tensors = [
        heads_of(3, 4, 20, 16, dtype, 1),
        *(heads_of(3, kv_heads, 37, 16, dtype, seed) for seed in (2, 3)),
        torch.randn(shape, generator=torch.Generator().manual_seed(6)).to(dtype).requires_grad_(),
    ]
    _, allowed = MASKS[mask](20, 37)
    terms = {"is_causal": True} if mask == "causal" else {"mask": allowed}
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    truth = softmax_attention(*exact[:3], allowed, 0.25, exact[3])
    output = cpu.kernel_attention(*tensors[:3], 0.25, bias=tensors[3], **terms)
    assert error(output, truth) < MAX_ERROR[dtype]
    grad = heads_of(3, 4, 20, 16, dtype, 4).detach()
    gradients = torch.autograd.grad(output, tensors, grad)
    for gradient, wanted in zip(gradients, torch.autograd.grad(truth, exact, grad.double()), strict=True):
        assert gradient.dtype == dtype
        if gradient.shape[2:] == (20, 1) or gradient.numel() == 1:  # a constant in the softmax
            assert gradient.abs().max() < 10 * MAX_ERROR[dtype]
        else:
            assert error(gradient, wanted) < MAX_ERROR[dtype]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_gradient_of_a_bias_does_not_depend_on_the_default_dtype(default):
    for shape in ((20, 20), (1, 2, 20, 20)):
        for batch in (1, 3):  # fewer and more examples than threads
            tensors = [heads_of(batch, 2, 20, 8, torch.float32, seed) for seed in range(3)]
            bias = torch.randn(shape, generator=torch.Generator().manual_seed(6), dtype=torch.float32).requires_grad_()
            exact = [tensor.detach().double().requires_grad_() for tensor in (*tensors, bias)]
            truth = softmax_attention(*exact[:3], torch.ones(20, 20, dtype=torch.bool), 0.25, exact[3])
            before = torch.get_default_dtype()
            torch.set_default_dtype(default)
            try:
                output = cpu.kernel_attention(*tensors, 0.25, bias=bias)
                gradients = torch.autograd.grad(output.square().sum(), [*tensors, bias])
            finally:
                torch.set_default_dtype(before)
            for gradient, wanted in zip(gradients, torch.autograd.grad(truth.square().sum(), exact), strict=True):
                assert error(gradient, wanted) < MAX_ERROR[torch.float32]


def test_infinite_biases_mask():
    tensors = [heads_of(2, 2, 16, 16, torch.float32, seed) for seed in range(3)]
    bias = torch.zeros(1, 1, 16, 16).masked_fill(torch.ones(16, 16).triu(1).bool(), -math.inf)
    bias[:, :, 3] = -math.inf  # no key is visible
    bias.requires_grad_()
    output = cpu.kernel_attention(*tensors, 0.25, bias=bias)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    truth = softmax_attention(*exact, bias > -math.inf, 0.25)
    assert error(output, truth) < MAX_ERROR[torch.float32]
    *gradients, of_bias = torch.autograd.grad(output.sum(), [*tensors, bias])
    for gradient, wanted in zip(gradients, torch.autograd.grad(truth.sum(), exact), strict=True):
        assert error(gradient, wanted) < MAX_ERROR[torch.float32]
    assert (of_bias[bias.isinf()] == 0).all()


@pytest.mark.parametrize("mask", [None, Causal(), Padding(torch.tensor([37, 1, 0]))])
@pytest.mark.parametrize(
    "position",
    [Relative(8, 4, values=False), ALiBi(4), Quadratic(4, columns=6)],
    ids=lambda position: type(position).__name__,
)
def test_positions_use_the_kernel(calls, position, mask):
    tensors = [heads_of(3, 4, 37, 8, torch.float32, seed) for seed in range(3)]
    results = []
    for dtype in (torch.float32, torch.float64):
        inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
        term = copy.deepcopy(position).to(dtype) if isinstance(position, nn.Module) else position
        parameters = list(term.parameters()) if isinstance(term, nn.Module) else []
        backend = "sdpa" if dtype == torch.float32 else "reference"
        output = attend(*inputs, position=term, mask=mask, backend=backend).output
        results.append((output, *torch.autograd.grad(output.square().sum(), [*inputs, *parameters])))
    assert len(calls) == 1
    for found, truth in zip(*results, strict=True):
        assert error(found, truth.double()) < 10 * MAX_ERROR[torch.float32]


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
