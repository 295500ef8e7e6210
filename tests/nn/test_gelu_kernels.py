"""The Triton kernels of a linear layer with GELU, compared with PyTorch's in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip("triton")

from qkv.nn import fast
from qkv.nn.kernels.gelu_kernels import TILES, gelu_of_linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on a CPU through Triton's interpreter


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize(
    "shape", [(3, 5, 7), (2, TILES.rows + 1, TILES.columns + 3), (4 * TILES.row_blocks, 64), (0, 8)]
)
def test_values_and_gradients_match_pytorch(approximate: str, shape: tuple[int, ...]):
    torch.manual_seed(0)
    x = (2 * torch.randn(shape)).to(DEVICE).requires_grad_()
    bias = torch.randn(shape[-1], device=DEVICE, requires_grad=True)
    grad = torch.randn(shape, device=DEVICE)
    actual = gelu_of_linear(x + bias.detach(), bias, tanh=approximate == "tanh")
    exact_x, exact_bias = (t.detach().double().requires_grad_() for t in (x, bias))
    expected = F.gelu(exact_x + exact_bias, approximate=approximate)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)
    grads = torch.autograd.grad(actual, (x, bias), grad)
    exact = torch.autograd.grad(expected, (exact_x, exact_bias), grad.double())
    torch.testing.assert_close(grads[0].double(), exact[0], rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(grads[1].double(), exact[1], rtol=1e-5, atol=1e-4)


def test_values_are_accurate_over_the_whole_range():
    x = torch.linspace(-12, 12, 4001, device=DEVICE)
    bias = torch.zeros_like(x)
    for tanh in (False, True):
        exact = F.gelu(x.double(), approximate="tanh" if tanh else "none")
        actual = gelu_of_linear(x, bias, tanh=tanh).double()
        assert ((actual - exact).abs() <= 1e-6 * x.abs().clamp(min=1)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_gradient_of_the_bias_equals_the_plain_one_under_autocast(approximate: str):
    torch.manual_seed(0)
    linear = nn.Linear(96, 200, device="cuda")
    x = torch.randn(4, 33, 96, device="cuda", requires_grad=True)

    def run() -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            output = fast.linear_gelu(linear, x, approximate)
        return output, *torch.autograd.grad(output.float().sin().sum(), (x, linear.weight, linear.bias))

    actual = run()
    with fast.disabled():
        expected = run()
    for a, b in zip(actual, expected, strict=True):
        assert (a - b).norm() <= 1e-2 * b.norm()
