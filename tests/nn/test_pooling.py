"""Pooling: plain loops, and padding."""

import pytest
import torch

from qkv.attention import Additive, Attend, Sparsemax, attend
from qkv.nn.pooling import POOLINGS, AttentionPooling, LastPooling, MeanPooling, full_lengths


def test_mean_pooling_ignores_padding():
    hidden = torch.randn(3, 4, 5, dtype=torch.float64)
    actual = MeanPooling(5)(hidden, torch.tensor([4, 1, 0]))
    torch.testing.assert_close(actual[0], hidden[0].mean(dim=0))
    torch.testing.assert_close(actual[1], hidden[1, 0])
    assert not actual[2].any()


def test_attention_pooling_matches_its_equation():
    torch.manual_seed(0)
    pool, hidden = AttentionPooling(3).double(), torch.randn(2, 4, 3, dtype=torch.float64)
    actual = pool(hidden, torch.tensor([4, 2]))
    for row, length in enumerate((4, 2)):
        scores = [pool.query @ torch.tanh(pool.key.weight @ h + pool.key.bias) for h in hidden[row, :length]]
        weights = torch.stack(scores).exp()
        torch.testing.assert_close(actual[row], weights @ hidden[row, :length] / weights.sum())


def test_attention_pooling_accepts_other_terms():
    torch.manual_seed(0)
    score, hidden = Additive(3, 3, 2).double(), torch.randn(2, 4, 3, dtype=torch.float64)
    pool = AttentionPooling(3, attend=Attend(score, Sparsemax())).double()
    keys = torch.tanh(hidden @ pool.key.weight.T + pool.key.bias)
    query = pool.query.expand(2, 1, 1, -1)
    expected = attend(query, keys[:, None], hidden[:, None], score=score, align=Sparsemax(), backend="reference")
    torch.testing.assert_close(pool(hidden, full_lengths(hidden)), expected.output[:, 0, 0])


def test_last_pooling_takes_the_final_state_of_each_direction():
    hidden, lengths = torch.randn(3, 4, 6), torch.tensor([4, 2, 0])
    both, forward = LastPooling(6)(hidden, lengths), LastPooling(6, directions=1)(hidden, lengths)
    for row, length in ((0, 4), (1, 2)):
        assert torch.equal(forward[row], hidden[row, length - 1])
        assert torch.equal(both[row], torch.cat((hidden[row, length - 1, :3], hidden[row, 0, 3:])))
    assert not both[2].any()
    assert not forward[2].any()


@pytest.mark.parametrize("name", sorted(POOLINGS))
def test_padding_has_no_effect_and_no_gradient(name):
    torch.manual_seed(0)
    pool, lengths = POOLINGS[name](4).double(), torch.tensor([3, 1, 0])
    hidden = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    actual = pool(hidden, lengths)
    (grad,) = torch.autograd.grad(actual.sum(), hidden)
    inside = torch.arange(5) < lengths[:, None]
    assert not grad[~inside].any()
    counts = grad.any(dim=-1) if name == "last" else grad.all(dim=-1)
    assert counts[0, [0, 2]].all()
    assert counts[inside].all() or name == "last"
    other = hidden.detach().masked_fill(~inside[..., None], 99.0 if name == "attention" else float("nan"))
    torch.testing.assert_close(pool(other, lengths), actual)
