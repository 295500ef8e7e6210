"""Gated convolutions against PyTorch's own, and what is done around them."""

import pytest
import torch
from torch.nn import functional as F

from qkv.errors import InputError, ShapeError
from qkv.nn.convolution import GatedConvolution, centred, scaled_gradient, steady


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_it_is_the_convolution_of_pytorch_and_a_gate(kernel):
    torch.manual_seed(0)
    convolve = GatedConvolution(4, kernel).double()
    torch.nn.init.normal_(convolve.weigh.bias)
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    weight = convolve.weigh.weight.unflatten(1, (kernel, 4)).transpose(1, 2)  # out in place
    value, gate = F.conv1d(x.transpose(1, 2), weight, convolve.weigh.bias).transpose(1, 2).chunk(2, dim=-1)
    assert convolve(x).shape == (2, 9 - kernel + 1, 4)
    torch.testing.assert_close(convolve(x), value * torch.sigmoid(gate))


def test_its_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    convolve = GatedConvolution(3, 2).double()
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: convolve(x), (x, *convolve.parameters()))


def test_fewer_inputs_than_it_reads_at_once_are_refused_and_just_too_few_give_nothing():
    convolve = GatedConvolution(4, 3)
    assert convolve(torch.zeros(1, 2, 4)).shape == (1, 0, 4)
    with pytest.raises(ShapeError, match="over 3 inputs was given 1: pad them"):
        convolve(torch.zeros(1, 1, 4))


def test_a_kernel_of_nothing_is_refused():
    with pytest.raises(InputError, match="one input at least, not 0"):
        GatedConvolution(4, 0)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_signal_around_zero_keeps_its_variance_with_and_without_dropout(dropout):
    torch.manual_seed(0)
    convolve = GatedConvolution(256, 3, dropout).train()
    x = 0.1 * torch.randn(16, 66, 256)
    assert 0.9 < convolve(x).var() / x.var() < 1.1


def test_a_steady_layer_keeps_the_variance_or_gives_the_gain_asked_for():
    torch.manual_seed(0)
    x = torch.randn(1000, 300)
    assert 0.9 < steady(torch.nn.Linear(300, 200))(x).var() < 1.1
    assert 2.7 < steady(torch.nn.Linear(300, 200), 3.0)(x).var() < 3.3


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_centred_inputs_give_an_output_for_each_that_reads_around_it(kernel):
    x = torch.arange(1.0, 7).view(1, 6, 1)
    windows = centred(x, kernel, None).unfold(1, kernel, 1)[0, :, 0]
    assert len(windows) == 6
    for place, window in enumerate(windows):
        first = place - (kernel - 1) // 2
        assert window.tolist() == [i + 1.0 if 0 <= i < 6 else 0.0 for i in range(first, first + kernel)]


def test_what_is_not_seen_is_read_as_nothing():
    x = torch.ones(2, 4, 3)
    seen = torch.tensor([[True, True, True, False], [False] * 4])
    found = centred(x, 3, seen)
    assert found[:, :, 0].tolist() == [[0, 1, 1, 1, 0, 0], [0] * 6]


def test_a_scaled_gradient_leaves_the_value_as_it_is_to_the_last_bit():
    x = torch.randn(1000, requires_grad=True)
    y = scaled_gradient(x, 1 / 3)
    assert y.equal(x)
    weight = torch.randn(1000)
    (y * weight).sum().backward()
    torch.testing.assert_close(x.grad, weight / 3)
