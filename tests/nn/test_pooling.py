"""One vector for a text: by loops, and whatever stands after its end."""

import pytest
import torch

from qkv.nn.pooling import POOLINGS, AttentionPooling, LastPooling, MeanPooling


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


def test_the_last_state_of_each_direction_is_where_that_direction_ends():
    hidden, lengths = torch.randn(3, 4, 6), torch.tensor([4, 2, 0])
    both, ahead = LastPooling(6)(hidden, lengths), LastPooling(6, directions=1)(hidden, lengths)
    for row, length in ((0, 4), (1, 2)):
        assert torch.equal(ahead[row], hidden[row, length - 1])
        assert torch.equal(both[row], torch.cat((hidden[row, length - 1, :3], hidden[row, 0, 3:])))
    assert not both[2].any()
    assert not ahead[2].any()


@pytest.mark.parametrize("name", sorted(POOLINGS))
def test_what_stands_after_the_end_does_not_count_and_learns_nothing(name):
    torch.manual_seed(0)
    pool, lengths = POOLINGS[name](4).double(), torch.tensor([3, 1, 0])
    hidden = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    found = pool(hidden, lengths)
    (slope,) = torch.autograd.grad(found.sum(), hidden)
    inside = torch.arange(5) < lengths[:, None]
    assert not slope[~inside].any()
    counts = slope.any(dim=-1) if name == "last" else slope.all(dim=-1)
    assert counts[0, [0, 2]].all()
    assert counts[inside].all() or name == "last"
    other = hidden.detach().masked_fill(~inside[..., None], 99.0 if name == "attention" else float("nan"))
    torch.testing.assert_close(pool(other, lengths), found)
