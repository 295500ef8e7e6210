"""Dropout: rate, scaling, gradient and reproducibility."""

import pytest
import torch
from torch.nn import functional as F

from qkv.nn.fast import Dropout, dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1001, 997), (3, 5, 7, 10001)], ids=str)
def test_elements_are_dropped_uniformly_and_the_rest_is_scaled(p, shape):
    torch.manual_seed(0)
    kept = dropout(torch.ones(shape), p) != 0
    tolerance = 4 * (p * (1 - p) / kept.numel()) ** 0.5
    assert kept.double().mean() == pytest.approx(1 - p, abs=tolerance)
    for position in range(4):  # four elements share one random number: each must be fair
        assert kept.flatten()[position::4].double().mean() == pytest.approx(1 - p, abs=2 * tolerance)
    assert dropout(torch.ones(shape), p).max() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_neighbours_are_drawn_independently():
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(4_000_000), 0.5) == 0).double() - 0.5
    for distance in (1, 2, 3, 4, 5, 8):
        assert abs((dropped[distance:] * dropped[:-distance]).mean()) < 4 * 0.25 / len(dropped) ** 0.5


def test_the_gradient_has_the_mask_of_the_output():
    x = torch.randn(100, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.25)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert ((grad == 0) == (y == 0)).all()
    torch.testing.assert_close(grad * x, y)


def test_dropout_is_reproducible_from_a_seed_or_a_saved_rng_state():
    x = torch.ones(1000)
    torch.manual_seed(3)
    first = dropout(x, 0.5)
    state = torch.get_rng_state()
    second = dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.5), second)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 3)], ids=str)
def test_it_takes_any_shape(shape):
    assert dropout(torch.ones(shape), 0.5).shape == shape


def test_it_is_the_identity_in_eval_mode_and_for_p_0():
    x = torch.randn(50)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert not torch.equal(Dropout(0.5).train()(x), x)


def test_the_dtype_is_kept():
    assert dropout(torch.ones(8, dtype=torch.bfloat16), 0.5).dtype == torch.bfloat16


@pytest.mark.gpu
def test_on_a_gpu_it_is_pytorch_dropout():
    x = torch.randn(1000, device="cuda")
    torch.manual_seed(0)
    ours = dropout(x, 0.3)
    torch.manual_seed(0)
    assert torch.equal(ours, F.dropout(x, 0.3))
