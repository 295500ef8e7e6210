"""Dilated causal convolutions: plain loops, receptive field and gradients."""

import math

import pytest
import torch

from qkv.errors import InputError
from qkv.nn.temporal_convolution import DenseBlock, TemporalConvolution, dilated_layers


@pytest.mark.parametrize("dilation", [1, 2, 7])
def test_a_dense_block_matches_its_equation_at_each_position(dilation):
    torch.manual_seed(0)
    block = DenseBlock(3, dilation, 2).double()
    torch.nn.init.normal_(block.linear.bias)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    actual = block(x)
    weight, bias = block.linear.weight.tolist(), block.linear.bias.tolist()
    for row in range(2):
        for t in range(5):
            before = x[row, t - dilation].tolist() if t >= dilation else [0.0] * 3
            read = [*before, *x[row, t].tolist()]
            z = [sum(w * r for w, r in zip(line, read, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
            gated = [math.tanh(z[n]) / (1 + math.exp(-z[n + 2])) for n in range(2)]
            assert actual[row, t].tolist() == pytest.approx([*x[row, t].tolist(), *gated])


@pytest.mark.parametrize("length", [1, 2, 3, 6, 8, 9])
def test_the_receptive_field_is_causal_and_covers_the_length(length):
    torch.manual_seed(0)
    convolution = TemporalConvolution(2, length, 3).double()
    x = torch.randn(1, length, 2, dtype=torch.float64, requires_grad=True)
    (seen,) = torch.autograd.grad(convolution(x)[0, -1].sum(), x, retain_graph=True)
    assert (seen != 0).any(dim=-1).all()
    for position in range(length):
        (seen,) = torch.autograd.grad(convolution(x)[0, position].sum(), x)
        assert not seen[0, position + 1 :].any()


def test_the_depth_is_the_ceiling_of_log2():
    assert [dilated_layers(length) for length in (1, 2, 3, 4, 5, 6, 21, 64, 101)] == [
        math.ceil(math.log2(length)) for length in (1, 2, 3, 4, 5, 6, 21, 64, 101)
    ]


def test_gradients_match_finite_differences():
    torch.manual_seed(0)
    convolution = TemporalConvolution(2, 4, 2).double()
    assert torch.autograd.gradcheck(convolution, torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True))


def test_a_dilation_of_zero_raises():
    with pytest.raises(InputError, match="dilation"):
        DenseBlock(2, 0, 2)
