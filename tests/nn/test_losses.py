"""Losses against PyTorch, explicit loops, finite differences and exact expectations."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.attention import Attend, Dot, Hard, hard
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.nn import fast
from qkv.nn.losses import (
    alignment_loss,
    doubly_stochastic_loss,
    mean_cross_entropy,
    r_drop_loss,
    token_cross_entropy,
)

PAD = 0


def example(batch: int, length: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch * length)
    logits = 3 * torch.randn(batch, length, vocabulary, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocabulary, (batch, length), generator=generator)
    return logits.to(dtype).requires_grad_(), targets


@pytest.mark.parametrize("consume", [False, True])
@pytest.mark.parametrize("chunk", [1, 20, 2**20])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_mean_and_gradient_match_pytorch(chunk, smoothing, dtype, tolerance, consume, monkeypatch):
    monkeypatch.setattr(fast, "CHUNK", chunk)
    logits, targets = example(4, 5, 7, dtype)
    exact = logits.detach().double().requires_grad_()
    expected = F.cross_entropy(exact.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=smoothing)
    loss = mean_cross_entropy(logits, targets, PAD, smoothing, consume=consume)
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    (2 * expected + 1).backward()
    (2 * loss + 1).backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


def test_gradient_matches_finite_differences():
    logits, targets = example(3, 4, 6, torch.float64)
    assert torch.autograd.gradcheck(lambda x: mean_cross_entropy(x, targets, PAD, 0.1), logits)


def test_using_consumed_logits_raises():
    logits, targets = example(3, 4, 6, torch.float64)
    squares = logits**2
    before = squares.detach().clone()
    mean_cross_entropy(logits, targets, PAD).backward(retain_graph=True)
    assert (squares == before).all()
    mean_cross_entropy(squares, targets, PAD, consume=True)
    assert not (squares == before).any()
    exponentials = logits.exp()  # whose backward pass needs its output
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        mean_cross_entropy(exponentials, targets, PAD, consume=True).backward()


def test_the_ignored_target_need_not_be_a_token():
    logits, targets = example(3, 4, 6, torch.float64)
    expected = mean_cross_entropy(logits, targets, PAD, 0.1)
    assert torch.equal(mean_cross_entropy(logits, targets.masked_fill(targets == PAD, -1), -1, 0.1), expected)


def test_a_fully_ignored_batch_has_zero_loss_and_gradient():
    logits, _ = example(2, 3, 5, torch.float32)
    loss = mean_cross_entropy(logits, torch.full((2, 3), PAD), PAD, 0.1)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_the_sum_is_the_mean_times_the_number_of_targets():
    logits, targets = example(3, 4, 6, torch.float64)
    counted = (targets != PAD).sum()
    torch.testing.assert_close(
        token_cross_entropy(logits, targets, PAD).double(),
        mean_cross_entropy(logits, targets, PAD) * counted,
        rtol=1e-5,
        atol=0,
    )


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
DECODERS = [{"decoder": "bahdanau"}, {"decoder": "luong"}, {"decoder": "luong", "input_feeding": False}]


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("options", DECODERS, ids=["bahdanau", "input feeding", "luong"])
def test_the_gradient_over_all_samples_is_that_of_the_expected_log_probability(options, baseline, monkeypatch):
    sizes = {"embedding_dim": 6, "hidden_dim": 6, "dropout": 0.0, "max_length": 8}
    align = {"name": "hard", "estimator": "reinforce", "baseline": baseline}
    torch.manual_seed(0)
    model = RNNSeq2Seq(
        RNNSeq2SeqConfig(source_vocab_size=9, target_vocab_size=9, align=align, **sizes | options)
    ).double()
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


def test_r_drop_is_the_symmetric_divergence_of_both_halves():
    logits, targets = example(3, 4, 7, torch.float64)
    other = torch.randn(3, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    twice = torch.cat((logits, other))
    loss = r_drop_loss(twice, targets.repeat(2, 1), PAD)
    terms = []
    for row, column in itertools.product(range(3), range(4)):
        if targets[row, column] != PAD:
            p, q = (torch.distributions.Categorical(logits=x[row, column]) for x in (logits, other))
            divergence = torch.distributions.kl_divergence
            terms.append((divergence(p, q) + divergence(q, p)) / 4)
    torch.testing.assert_close(loss, torch.stack(terms).mean())
    assert torch.autograd.gradcheck(
        lambda x: r_drop_loss(x, targets.repeat(2, 1), PAD), twice.detach().requires_grad_()
    )
    assert r_drop_loss(logits.repeat(2, 1, 1), targets.repeat(2, 1), PAD) == 0
