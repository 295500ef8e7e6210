"""What it costs not to look at all of a picture: against loops, and what does not count."""

import torch

from qkv.objectives.doubly_stochastic import doubly_stochastic_loss


def test_it_is_the_sum_of_a_plain_loop_for_each_step_that_counts():
    torch.manual_seed(0)
    weights = torch.rand(3, 4, 5, dtype=torch.float64).softmax(dim=-1)
    counted = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    total = 0.0
    for row in range(3):
        for place in range(5):
            read = sum(weights[row, t, place].item() for t in range(4) if counted[row, t])
            total += (1 - read) ** 2
    torch.testing.assert_close(doubly_stochastic_loss(weights, counted).item(), total / 8)


def test_a_row_that_says_nothing_costs_nothing_and_a_picture_read_once_all_over_neither():
    counted = torch.tensor([[True, True], [False, False]])
    once = torch.eye(2).expand(2, 2, 2)  # each of two steps reads another of two places
    assert doubly_stochastic_loss(once, counted) == 0
    assert doubly_stochastic_loss(once, ~counted.any(dim=1, keepdim=True).expand(2, 2) & False) == 0
    twice = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).expand(2, 2, 2)
    assert doubly_stochastic_loss(twice, counted) == 1.0  # ((1 - 2)^2 + 1^2) / 2 steps
