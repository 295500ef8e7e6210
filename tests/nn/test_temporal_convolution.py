"""Causal convolutions against plain loops, and how far they reach."""

import math

import pytest
import torch

from qkv.errors import InputError
from qkv.nn.temporal_convolution import DenseBlock, TemporalConvolution, reach_depth


@pytest.mark.parametrize("dilation", [1, 2, 7])
def test_a_dense_block_is_its_equation_at_each_place(dilation):
    torch.manual_seed(0)
    block = DenseBlock(3, dilation, 2).double()
    torch.nn.init.normal_(block.weigh.bias)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    found = block(x)
    weight, bias = block.weigh.weight.tolist(), block.weigh.bias.tolist()
    for row in range(2):
        for t in range(5):
            before = x[row, t - dilation].tolist() if t >= dilation else [0.0] * 3
            read = [*before, *x[row, t].tolist()]
            z = [sum(w * r for w, r in zip(line, read, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
            gated = [math.tanh(z[n]) / (1 + math.exp(-z[n + 2])) for n in range(2)]
            assert found[row, t].tolist() == pytest.approx([*x[row, t].tolist(), *gated])


@pytest.mark.parametrize("length", [1, 2, 3, 6, 8, 9])
def test_the_last_place_sees_every_place_before_it_and_none_sees_a_later_one(length):
    torch.manual_seed(0)
    convolution = TemporalConvolution(2, length, 3).double()
    x = torch.randn(1, length, 2, dtype=torch.float64, requires_grad=True)
    (seen,) = torch.autograd.grad(convolution(x)[0, -1].sum(), x, retain_graph=True)
    assert (seen != 0).any(dim=-1).all()
    for place in range(length):
        (seen,) = torch.autograd.grad(convolution(x)[0, place].sum(), x)
        assert not seen[0, place + 1 :].any()


def test_it_is_as_deep_as_it_takes_and_no_deeper():
    assert [reach_depth(length) for length in (1, 2, 3, 4, 5, 6, 21, 64, 101)] == [
        math.ceil(math.log2(length)) for length in (1, 2, 3, 4, 5, 6, 21, 64, 101)
    ]


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    convolution = TemporalConvolution(2, 4, 2).double()
    assert torch.autograd.gradcheck(convolution, torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True))


def test_a_convolution_that_looks_nowhere_is_refused():
    with pytest.raises(InputError, match="one place at least, not by 0"):
        DenseBlock(2, 0, 2)
