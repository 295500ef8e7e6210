"""Doubly stochastic attention loss against an explicit loop, and its zeros."""

import torch

from qkv.nn.losses import doubly_stochastic_loss


def test_loss_matches_an_explicit_loop():
    torch.manual_seed(0)
    weights = torch.rand(3, 4, 5, dtype=torch.float64).softmax(dim=-1)
    counted = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    total = 0.0
    for row in range(3):
        for position in range(5):
            weight = sum(weights[row, t, position].item() for t in range(4) if counted[row, t])
            total += (1 - weight) ** 2
    torch.testing.assert_close(doubly_stochastic_loss(weights, counted).item(), total / 8)


def test_uniform_coverage_and_empty_rows_have_zero_loss():
    counted = torch.tensor([[True, True], [False, False]])
    once = torch.eye(2).expand(2, 2, 2)  # two steps attend to one position each
    assert doubly_stochastic_loss(once, counted) == 0
    assert doubly_stochastic_loss(once, ~counted.any(dim=1, keepdim=True).expand(2, 2) & False) == 0
    twice = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).expand(2, 2, 2)
    assert doubly_stochastic_loss(twice, counted) == 1.0  # ((1 - 2)^2 + 1^2) / 2 steps
