"""Gated convolutions, their padding and initialisation."""

import pytest
import torch
from torch.nn import functional as F

from qkv.nn.conv import GatedConvolution, init_variance_preserving, pad_same, scale_gradient


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_it_matches_a_pytorch_convolution_with_a_gate(kernel):
    torch.manual_seed(0)
    convolve = GatedConvolution(4, kernel).double()
    torch.nn.init.normal_(convolve.linear.bias)
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    weight = convolve.linear.weight.unflatten(1, (kernel, 4)).transpose(1, 2)  # out in kernel
    value, gate = F.conv1d(x.transpose(1, 2), weight, convolve.linear.bias).transpose(1, 2).chunk(2, dim=-1)
    assert convolve(x).shape == (2, 9 - kernel + 1, 4)
    torch.testing.assert_close(convolve(x), value * torch.sigmoid(gate))


def test_gradients_match_finite_differences():
    torch.manual_seed(0)
    convolve = GatedConvolution(3, 2).double()
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: convolve(x), (x, *convolve.parameters()))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_zero_mean_signal_keeps_its_variance(dropout):
    torch.manual_seed(0)
    convolve = GatedConvolution(256, 3, dropout).train()
    x = 0.1 * torch.randn(16, 66, 256)
    assert 0.9 < convolve(x).var() / x.var() < 1.1


def test_the_initialisation_preserves_variance_up_to_the_gain():
    torch.manual_seed(0)
    x = torch.randn(1000, 300)
    assert 0.9 < init_variance_preserving(torch.nn.Linear(300, 200))(x).var() < 1.1
    assert 2.7 < init_variance_preserving(torch.nn.Linear(300, 200), 3.0)(x).var() < 3.3


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_pad_same_centres_the_windows(kernel):
    x = torch.arange(1.0, 7).view(1, 6, 1)
    windows = pad_same(x, kernel, torch.ones(1, 6, dtype=torch.bool)).unfold(1, kernel, 1)[0, :, 0]
    assert len(windows) == 6
    for position, window in enumerate(windows):
        first = position - (kernel - 1) // 2
        assert window.tolist() == [i + 1.0 if 0 <= i < 6 else 0.0 for i in range(first, first + kernel)]


def test_pad_same_zeroes_invalid_positions():
    x = torch.ones(2, 4, 3)
    valid = torch.tensor([[True, True, True, False], [False] * 4])
    actual = pad_same(x, 3, valid)
    assert actual[:, :, 0].tolist() == [[0, 1, 1, 1, 0, 0], [0] * 6]


def test_scale_gradient_leaves_the_value_unchanged():
    x = torch.randn(1000, requires_grad=True)
    y = scale_gradient(x, 1 / 3)
    assert y.equal(x)
    weight = torch.randn(1000)
    (y * weight).sum().backward()
    torch.testing.assert_close(x.grad, weight / 3)
