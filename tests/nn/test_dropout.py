"""Dropout: its share, its mean, its gradient, and that a seed repeats it."""

import pytest
import torch
from torch.nn import functional as F

from qkv.nn.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1001, 997), (3, 5, 7, 10001)], ids=str)
def test_its_share_is_lost_everywhere_alike_and_the_rest_makes_up_for_it(p, shape):
    torch.manual_seed(0)
    kept = dropout(torch.ones(shape), p) != 0
    four = 4 * (p * (1 - p) / kept.numel()) ** 0.5
    assert kept.double().mean() == pytest.approx(1 - p, abs=four)
    for place in range(4):  # four draws come of one number: each of them has to be fair
        assert kept.flatten()[place::4].double().mean() == pytest.approx(1 - p, abs=2 * four)
    assert dropout(torch.ones(shape), p).max() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_neighbours_are_drawn_independently():
    torch.manual_seed(0)
    lost = (dropout(torch.ones(4_000_000), 0.5) == 0).double() - 0.5
    for distance in (1, 2, 3, 4, 5, 8):
        assert abs((lost[distance:] * lost[:-distance]).mean()) < 4 * 0.25 / len(lost) ** 0.5


def test_the_gradient_reaches_what_was_kept_and_nothing_else():
    x = torch.randn(100, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.25)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert ((slope == 0) == (y == 0)).all()
    torch.testing.assert_close(slope * x, y)


def test_a_seed_repeats_it_and_a_saved_state_goes_on_with_it():
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


def test_it_drops_nothing_once_trained_or_where_nothing_is_asked_for():
    x = torch.randn(50)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert not torch.equal(Dropout(0.5).train()(x), x)


def test_short_numbers_keep_their_kind():
    assert dropout(torch.ones(8, dtype=torch.bfloat16), 0.5).dtype == torch.bfloat16


@pytest.mark.gpu
def test_on_a_gpu_it_is_pytorchs_own():
    x = torch.randn(1000, device="cuda")
    torch.manual_seed(0)
    ours = dropout(x, 0.3)
    torch.manual_seed(0)
    assert torch.equal(ours, F.dropout(x, 0.3))
