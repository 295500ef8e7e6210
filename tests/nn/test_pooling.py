"""One vector for a text: by loops, and whatever stands after its end."""

import pytest
import torch

from qkv.nn.pooling import POOLINGS, AttentionPooling, MeanPooling


def test_the_mean_is_over_the_words_that_are_there():
    hidden = torch.randn(3, 4, 5, dtype=torch.float64)
    found = MeanPooling(5)(hidden, torch.tensor([4, 1, 0]))
    torch.testing.assert_close(found[0], hidden[0].mean(dim=0))
    torch.testing.assert_close(found[1], hidden[1, 0])
    assert not found[2].any()


def test_attention_weighs_words_by_what_they_are():
    torch.manual_seed(0)
    pool, hidden = AttentionPooling(3).double(), torch.randn(2, 4, 3, dtype=torch.float64)
    found = pool(hidden, torch.tensor([4, 2]))
    for row, length in enumerate((4, 2)):
        scores = [pool.query @ torch.tanh(pool.key.weight @ h + pool.key.bias) for h in hidden[row, :length]]
        weights = torch.stack(scores).exp()
        torch.testing.assert_close(found[row], weights @ hidden[row, :length] / weights.sum())


@pytest.mark.parametrize("name", sorted(POOLINGS))
def test_what_stands_after_the_end_does_not_count_and_learns_nothing(name):
    torch.manual_seed(0)
    pool, lengths = POOLINGS[name](3).double(), torch.tensor([3, 1, 0])
    hidden = torch.randn(3, 5, 3, dtype=torch.float64, requires_grad=True)
    found = pool(hidden, lengths)
    (slope,) = torch.autograd.grad(found.sum(), hidden)
    inside = torch.arange(5) < lengths[:, None]
    assert not slope[~inside].any()
    assert slope[inside].any(dim=-1).all()
    other = hidden.detach().masked_fill(~inside[..., None], float("nan") if name == "mean" else 99.0)
    torch.testing.assert_close(pool(other, lengths), found)
