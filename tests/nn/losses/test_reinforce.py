"""REINFORCE loss of hard attention: rewards, gradients, and when it is computed."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Attend, Dot, Hard, hard
from qkv.models.rnn_seq2seq import Config, RNNSeq2Seq
from qkv.nn.losses import alignment_loss

PAD = 0


class AttentionModel(nn.Module):
    """A single attention layer whose outputs are the logits."""

    def __init__(self, align: object, scores: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.attend = Attend(Dot(), align)
        self.scores = nn.Parameter(scores)  # b q k: the keys are unit vectors
        self.values = values

    def forward(self) -> torch.Tensor:
        batch, _, keys = self.scores.shape
        eye = torch.eye(keys, dtype=self.scores.dtype).expand(batch, 1, -1, -1)
        return self.attend(self.scores[:, None], eye, self.values[:, None]).output[:, 0]


def build(align: object, batch: int = 2) -> tuple[AttentionModel, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores, values = (torch.randn(batch, 3, size, generator=generator, dtype=torch.float64) for size in (3, 4))
    targets = torch.tensor([[1, 2, 3], [3, PAD, PAD]]).repeat(batch // 2, 1)
    return AttentionModel(align, scores, values).train(), targets


@pytest.mark.parametrize("align", [None, Hard("straight-through"), Hard("gumbel")])
def test_no_loss_without_reinforce_layers(align):
    model, targets = build(align)
    assert alignment_loss(model, model(), targets, PAD) is None


def test_no_loss_outside_training():
    model, targets = build(Hard("reinforce"))
    assert alignment_loss(model.eval(), model(), targets, PAD) is None
    with torch.no_grad():
        assert alignment_loss(model.train(), model(), targets, PAD) is None


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_loss_is_the_mean_of_discounted_reward_times_log_probability(discount):
    torch.manual_seed(0)
    model, targets = build(Hard("reinforce", baseline=None, discount=discount))
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
    expected = -sum(
        discount ** (u - t) * reward[row, u, targets[row, u]].detach() * log_p[row, t, choice[row, t]]
        for row, t in counted
        for later_row, u in counted
        if later_row == row and u >= t
    )
    torch.testing.assert_close(loss, expected / len(counted))
    torch.testing.assert_close(
        *(torch.autograd.grad(value, model.scores, retain_graph=True)[0] for value in (loss, expected / len(counted)))
    )


def test_the_mean_gradient_is_that_of_the_expected_log_probability():
    model, targets = build(Hard("reinforce", baseline="moving-average"))
    values, scores = model.values, model.scores.detach().clone().requires_grad_()
    log_p = torch.stack([values[row].log_softmax(-1)[:, targets[row]] for row in range(2)])  # b k q
    expected = (scores.softmax(-1) * log_p.transpose(1, 2))[targets != PAD].sum() / (targets != PAD).sum()
    (exact,) = torch.autograd.grad(-expected, scores)
    torch.manual_seed(1)
    copies = 20_000
    wide = AttentionModel(model.attend.align, scores.detach().repeat(copies, 1, 1), values.repeat(copies, 1, 1)).train()
    for _ in range(2):  # the first pass initializes the baseline
        logits = wide()
        loss = alignment_loss(wide, logits, targets.repeat(copies, 1), PAD)
    (gradient,) = torch.autograd.grad(loss, wide.scores)
    estimate = gradient.view(copies, 2, 3, 3).sum(dim=0)
    assert (estimate - exact).abs().max() < 0.02 * exact.abs().max()


BASELINES = ["none", "moving-average", "learned"]
DECODERS = [{"attention": "bahdanau"}, {"attention": "luong"}, {"attention": "luong", "input_feeding": False}]


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("options", DECODERS, ids=["bahdanau", "input feeding", "luong"])
def test_the_gradient_over_all_samples_is_that_of_the_expected_log_probability(options, baseline, monkeypatch):
    sizes = {"embedding": 6, "hidden": 6, "dropout": 0.0, "max_length": 8}
    torch.manual_seed(0)
    model = RNNSeq2Seq(Config(9, 9, align="hard", estimator="reinforce", baseline=baseline, **sizes | options)).double()
    layer = next(part for part in model.modules() if isinstance(part, Hard))
    for weight in model.parameters():
        nn.init.normal_(weight)  # so that every sample affects all later outputs
    if baseline == "moving-average":
        layer.baseline.total.fill_(-2.0)
        layer.baseline.mass.fill_(1.0)
    source, inputs = torch.tensor([[4, 5]]), torch.tensor([[2, 6, 7, PAD]])
    targets = torch.tensor([[6, 7, 3, PAD]])
    state = {name: value.clone() for name, value in model.state_dict().items()}
    trained = [weight for name, weight in model.named_parameters() if "baseline" not in name]
    exact, estimate = ([torch.zeros_like(weight) for weight in trained] for _ in range(2))
    for draws in itertools.product(range(2), repeat=4):
        model.load_state_dict(state)  # reset the moving average
        remaining = iter(draws)
        monkeypatch.setattr(hard, "_gumbel_noise", lambda scores, remaining=remaining: forced_noise(scores, remaining))
        logits = model(source, inputs)
        p = sum(draw.log_probability.sum() for draw in layer._draws).exp()
        loss = F.cross_entropy(logits[0], targets[0], ignore_index=PAD)
        for total, value in (
            (exact, p * loss),
            (estimate, p.detach() * (loss + alignment_loss(model, logits, targets, PAD))),
        ):
            gradients = torch.autograd.grad(value, trained, retain_graph=True)
            for accumulated, gradient in zip(total, gradients, strict=True):
                accumulated += gradient
    for gradient, expected in zip(estimate, exact, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-7)
    assert max(gradient.abs().max() for gradient in exact) > 0.1


def forced_noise(scores, remaining):
    """Return noise that forces each query to sample the next of the remaining draws."""
    noise = torch.zeros_like(scores)
    for query in range(scores.shape[2]):
        noise[:, :, query, next(remaining)] = 1e6
    return noise


def test_samples_are_cleared_after_each_call():
    model, targets = build(Hard("reinforce"))
    for _ in range(3):
        loss = alignment_loss(model, model(), targets, PAD)
        assert math.isfinite(loss.item())


def test_a_batch_of_padding_has_zero_loss():
    model, targets = build(Hard("reinforce", baseline=None))
    loss = alignment_loss(model, model(), torch.full_like(targets, PAD), PAD)
    assert loss.item() == 0.0
