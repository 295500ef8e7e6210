"""What hard attention learns from: the right share of the reward, from the right draws, and only where it draws."""

import math

import pytest
import torch
from torch import nn

from qkv.attention import Attend, Dot, Hard
from qkv.objectives.attention import alignment_loss

PAD = 0


class Reading(nn.Module):
    """A model of one attention layer, whose logits are what it reads."""

    def __init__(self, align: object, scores: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.attend = Attend(Dot(), align)
        self.scores = nn.Parameter(scores)  # b q k: the keys are unit vectors
        self.values = values

    def forward(self) -> torch.Tensor:
        batch, _, keys = self.scores.shape
        eye = torch.eye(keys, dtype=self.scores.dtype).expand(batch, 1, -1, -1)
        return self.attend(self.scores[:, None], eye, self.values[:, None]).output[:, 0]


def made(align: object, batch: int = 2) -> tuple[Reading, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores, values = (torch.randn(batch, 3, size, generator=generator, dtype=torch.float64) for size in (3, 4))
    targets = torch.tensor([[1, 2, 3], [3, PAD, PAD]]).repeat(batch // 2, 1)
    return Reading(align, scores, values).train(), targets


@pytest.mark.parametrize("align", [None, Hard("straight-through"), Hard("gumbel")])
def test_there_is_nothing_to_learn_where_nothing_is_rewarded(align):
    model, targets = made(align)
    assert alignment_loss(model, model(), targets, PAD) is None


def test_there_is_nothing_to_learn_without_training():
    model, targets = made(Hard("reinforce"))
    assert alignment_loss(model.eval(), model(), targets, PAD) is None
    with torch.no_grad():
        assert alignment_loss(model.train(), model(), targets, PAD) is None


def test_it_is_the_mean_over_tokens_of_reward_times_log_probability():
    torch.manual_seed(0)
    model, targets = made(Hard("reinforce", baseline=None))
    logits = model()
    choice = torch.stack(
        [
            (value[None] == row[:, None]).all(-1).double().argmax(-1)
            for value, row in zip(model.values, logits, strict=True)
        ]
    )
    loss = alignment_loss(model, logits, targets, PAD)
    reward, log_p = logits.log_softmax(-1), model.scores.log_softmax(-1)
    counted = [(row, t) for row in range(2) for t in range(3) if targets[row, t] != PAD]
    by_hand = -sum(reward[row, t, targets[row, t]].detach() * log_p[row, t, choice[row, t]] for row, t in counted)
    torch.testing.assert_close(loss, by_hand / len(counted))
    torch.testing.assert_close(
        *(torch.autograd.grad(value, model.scores, retain_graph=True)[0] for value in (loss, by_hand / len(counted)))
    )


def test_on_average_its_gradient_is_that_of_the_expected_log_probability():
    model, targets = made(Hard("reinforce", baseline="moving-average"))
    values, scores = model.values, model.scores.detach().clone().requires_grad_()
    log_p = torch.stack([values[row].log_softmax(-1)[:, targets[row]] for row in range(2)])  # b k q
    expected = (scores.softmax(-1) * log_p.transpose(1, 2))[targets != PAD].sum() / (targets != PAD).sum()
    (exact,) = torch.autograd.grad(-expected, scores)
    torch.manual_seed(1)
    copies = 20_000
    wide = Reading(model.attend.align, scores.detach().repeat(copies, 1, 1), values.repeat(copies, 1, 1)).train()
    for _ in range(2):  # the first pass teaches the baseline
        logits = wide()
        loss = alignment_loss(wide, logits, targets.repeat(copies, 1), PAD)
    (slope,) = torch.autograd.grad(loss, wide.scores)
    found = slope.view(copies, 2, 3, 3).sum(dim=0)
    assert (found - exact).abs().max() < 0.02 * exact.abs().max()


def test_it_forgets_the_draws_it_has_rewarded():
    model, targets = made(Hard("reinforce"))
    for _ in range(3):
        loss = alignment_loss(model, model(), targets, PAD)
        assert math.isfinite(loss.item())


def test_a_batch_of_nothing_but_padding_teaches_nothing():
    model, targets = made(Hard("reinforce", baseline=None))
    loss = alignment_loss(model, model(), torch.full_like(targets, PAD), PAD)
    assert loss.item() == 0.0
