"""Hard attention: what it chooses, and that each estimator's gradient is what it claims to be."""

import math

import pytest
import torch
from torch import Tensor

from qkv.attention import Attended, Dense, Dot, Padding, Softmax, attend, watch
from qkv.attention.hard import Hard
from qkv.attention.operator import Attend
from qkv.errors import InputError, ShapeError

DOT = Dot()


def choose(scores: Tensor, align: Hard, **terms: object) -> Attended:
    """Attend with the given scores: the keys are unit vectors, and so are the values, so what is read is the choice."""
    keys = torch.eye(scores.shape[-1], dtype=scores.dtype).expand(*scores.shape[:2], -1, -1)
    return attend(scores, keys, keys, score=DOT, align=align, need_weights=True, **terms)


def is_one_hot(weights: Tensor) -> bool:
    return bool(((weights == 0) | (weights == 1)).all() and (weights.sum(dim=-1) == 1).all())


@pytest.mark.parametrize("estimator", ["straight-through", "gumbel", "reinforce"])
def test_in_evaluation_all_weight_is_on_the_best_key(estimator):
    torch.manual_seed(0)
    scores = torch.randn(3, 2, 4, 5)
    weights = choose(scores, Hard(estimator).eval()).weights
    assert is_one_hot(weights)
    assert weights.argmax(dim=-1).equal(scores.argmax(dim=-1))


@pytest.mark.parametrize("estimator", ["straight-through", "gumbel", "reinforce"])
def test_in_training_too_all_weight_is_on_one_key(estimator):
    torch.manual_seed(0)
    assert is_one_hot(choose(torch.randn(3, 2, 4, 5, requires_grad=True), Hard(estimator)).weights)


@pytest.mark.parametrize("estimator", ["gumbel", "reinforce"])
def test_keys_are_drawn_as_often_as_softmax_says_and_forbidden_ones_never(estimator):
    torch.manual_seed(0)
    scores, draws = torch.tensor([0.0, 1.0, 5.0, -1.0, 2.0]), 20_000
    allowed = torch.tensor([True, True, False, True, True])
    weights = choose(
        scores.expand(1, 1, draws, 5), Hard(estimator, temperature=0.3), mask=Dense(allowed.view(1, 1, 1, 5))
    )
    p = scores.masked_fill(~allowed, -torch.inf).softmax(dim=0)
    error = (p * (1 - p) / draws).sqrt()
    found = weights.weights[0, 0].mean(dim=0)
    assert ((found - p).abs() <= 4 * error).all()
    assert found[2] == 0


def test_draws_come_from_the_global_generator():
    scores = torch.randn(2, 2, 10, 5)
    reads = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        reads.append(choose(scores, Hard("reinforce")).output)
    assert reads[0].equal(reads[1])
    assert not reads[0].equal(reads[2])


class TestStraightThrough:
    """Forward a choice, backward a softmax."""

    @pytest.mark.parametrize("mask", [None, Padding(torch.tensor([5, 2]))], ids=["whole", "ragged"])
    def test_the_gradient_with_respect_to_the_scores_is_that_of_softmax(self, mask):
        torch.manual_seed(0)
        scores = torch.randn(2, 2, 3, 5, dtype=torch.float64, requires_grad=True)
        aims = torch.randn(2, 2, 3, 5, dtype=torch.float64)
        slopes = [
            torch.autograd.grad((choose(scores, align, mask=mask).weights * aims).sum(), scores)[0]
            for align in (Hard(), Softmax())
        ]
        torch.testing.assert_close(*slopes)
        assert (slopes[0] != 0).any()


class TestGumbel:
    """Forward a draw, backward a softmax with noise."""

    def test_at_a_high_temperature_its_gradient_no_longer_depends_on_the_noise(self):
        # softmax((s + noise) / T) goes to 1 / n as T grows, so T times its gradient goes to (aim - mean aim) / n.
        torch.manual_seed(0)
        scores = torch.randn(2, 1, 3, 5, dtype=torch.float64, requires_grad=True)
        aims = torch.randn(2, 1, 3, 5, dtype=torch.float64)
        weights = choose(scores, Hard("gumbel", temperature=1e6), mask=Padding(torch.tensor([5, 2]))).weights
        (slope,) = torch.autograd.grad((weights * aims).sum(), scores)
        expected = torch.zeros_like(slope)
        for row, n in enumerate((5, 2)):
            expected[row, ..., :n] = (aims[row, ..., :n] - aims[row, ..., :n].mean(dim=-1, keepdim=True)) / n
        torch.testing.assert_close(1e6 * slope, expected, rtol=0, atol=1e-4)

    def test_its_gradient_is_that_of_the_softmax_of_the_scores_with_the_noise_that_chose(self):
        scores = torch.randn(2, 1, 3, 5, dtype=torch.float64, requires_grad=True)
        aims = torch.randn(2, 1, 3, 5, dtype=torch.float64)
        torch.manual_seed(0)
        weights = choose(scores, Hard("gumbel", temperature=0.7)).weights
        torch.manual_seed(0)
        noisy = scores - torch.empty_like(scores).exponential_().log()
        assert weights.argmax(dim=-1).equal(noisy.argmax(dim=-1))
        (slope,) = torch.autograd.grad((weights * aims).sum(), scores)
        (expected,) = torch.autograd.grad(((noisy / 0.7).softmax(dim=-1) * aims).sum(), scores)
        torch.testing.assert_close(slope, expected)

    def test_a_temperature_is_positive(self):
        with pytest.raises(InputError, match="temperature must be positive"):
            Hard("gumbel", temperature=0.0)


REWARDS = torch.tensor([1.0, 3.0, -2.0, 0.5], dtype=torch.float64)
LOGITS = torch.tensor([0.3, -0.5, 0.8, 0.0], dtype=torch.float64)


def estimates(align: Hard, draws: int, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """Many estimates of d E[R] / ds, [draws, key], and the variance that was reported with them."""
    scores = LOGITS.expand(draws, 1, 1, 4).clone().requires_grad_()
    choice = choose(scores, align).output[:, 0, 0]
    surrogate = align.loss(choice.detach() @ (REWARDS + offset))
    (slope,) = torch.autograd.grad(surrogate.loss, scores)
    return -draws * slope[:, 0, 0], surrogate.variance


class TestReinforce:
    """On average, the gradient of the expected reward."""

    @pytest.mark.parametrize("offset", [0.0, 10.0])
    @pytest.mark.parametrize("baseline", [None, "moving-average", "learned"])
    def test_it_is_unbiased_with_and_without_a_baseline(self, baseline, offset):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline=baseline, query_dim=4).double()
        if baseline == "moving-average":
            estimates(align, 50, offset)  # so that it has seen rewards
        if baseline == "learned":
            align.baseline.linear.bias.data.fill_(offset)
        draws = 40_000
        found, _ = estimates(align, draws, offset)
        p = LOGITS.softmax(dim=0)
        exact = p * (REWARDS - p @ REWARDS)  # of sum p_k r_k
        error = found.std(dim=0) / math.sqrt(draws)
        assert ((found.mean(dim=0) - exact).abs() <= 4 * error).all()
        assert (error < 0.25 * exact.abs().max()).all()  # or the line above would say little

    def test_the_reported_variance_is_that_of_the_estimates_and_of_theory(self):
        torch.manual_seed(0)
        found, variance = estimates(Hard("reinforce", baseline=None), 20_000)
        torch.testing.assert_close(variance, found.var(dim=0).sum())
        p = LOGITS.softmax(dim=0)
        each = REWARDS[:, None] * (torch.eye(4, dtype=torch.float64) - p)  # R (z - p) for each z
        theory = (p @ each.square()).sum() - (p @ each).square().sum()
        assert float(variance) == pytest.approx(float(theory), rel=0.05)

    @pytest.mark.parametrize("baseline", ["moving-average", "learned"])
    def test_a_baseline_that_knows_what_to_expect_makes_it_vary_less(self, baseline):
        torch.manual_seed(0)
        _, without = estimates(Hard("reinforce", baseline=None), 1000, offset=10.0)
        align = Hard("reinforce", baseline=baseline, query_dim=4).double()
        optimizer = torch.optim.SGD(align.parameters(), lr=0.1) if baseline == "learned" else None
        for _ in range(25):
            if optimizer is None:
                estimates(align, 20, offset=10.0)
                continue
            scores = LOGITS.expand(20, 1, 1, 4)
            choice = choose(scores, align).output[:, 0, 0]
            optimizer.zero_grad()
            align.loss(choice @ (REWARDS + 10.0)).loss.backward()
            optimizer.step()
        _, after = estimates(align, 1000, offset=10.0)
        assert after < without / 5

    def test_the_moving_average_is_of_the_rewards_so_far_and_not_of_this_one(self):
        align = Hard("reinforce", decay=0.8)
        baselines = []
        for reward in (1.0, 2.0, 5.0):
            choose(torch.randn(2, 1, 1, 3), align)
            baselines.append(float(align.loss(torch.full((2,), reward)).baseline))
        assert baselines == pytest.approx([0.0, 1.0, (0.8 * 1.0 + 2.0) / 1.8])

    def test_a_learned_baseline_does_not_move_the_queries(self):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline="learned", query_dim=4).double()
        torch.nn.init.normal_(align.baseline.linear.weight)
        scores = torch.randn(5, 1, 1, 4, dtype=torch.float64, requires_grad=True)
        read, reward = choose(scores, align), torch.randn(5, dtype=torch.float64)
        expected = align.baseline(scores)[:, 0, 0].detach()
        loss = align.loss(reward).loss
        (slope,) = torch.autograd.grad(loss, scores, retain_graph=True)
        by_hand = -(reward - expected)[:, None] * (read.weights - scores.softmax(dim=-1))[:, 0, 0] / 5
        torch.testing.assert_close(slope[:, 0, 0], by_hand.detach())
        (bias,) = torch.autograd.grad(loss, align.baseline.linear.bias)
        torch.testing.assert_close(bias, 2 * (expected - reward).mean().view(1))  # of (R - b)^2

    @pytest.mark.parametrize("length", [4, 2])
    def test_the_gradient_of_the_entropy_is_exact(self, length):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline=None, entropy=0.7)
        scores = torch.randn(3, 2, 2, 4, dtype=torch.float64, requires_grad=True)
        choose(scores, align, mask=Padding(torch.full((3,), length)))
        surrogate = align.loss(torch.zeros(3))
        p = scores[..., :length].softmax(dim=-1)
        entropy = -(p * p.log()).sum(dim=-1, keepdim=True)
        torch.testing.assert_close(surrogate.loss, -0.7 * entropy.sum() / 3)
        (slope,) = torch.autograd.grad(surrogate.loss, scores)
        torch.testing.assert_close(slope[..., :length], (0.7 * p * (p.log() + entropy) / 3).detach())
        assert (slope[..., length:] == 0).all()

    def test_queries_of_several_calls_are_counted_one_after_another(self):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline=None)
        steps = [torch.randn(2, 1, 1, keys, requires_grad=True) for keys in (3, 4, 5)]  # the keys grow, as in decoding
        reads = [choose(step, align) for step in steps]
        reward = torch.tensor([[0.0, 0.0, 6.0], [0.0, -4.0, 0.0]])
        slopes = torch.autograd.grad(align.loss(reward).loss, steps)
        for t, (step, read, slope) in enumerate(zip(steps, reads, slopes, strict=True)):
            by_hand = -reward[:, t, None] * (read.weights - step.softmax(dim=-1))[:, 0, 0] / 2
            torch.testing.assert_close(slope[:, 0, 0], by_hand.detach())

    def test_steps_that_are_not_counted_teach_nothing_and_are_in_no_average(self):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline="moving-average", entropy=1.0)
        scores = torch.randn(2, 1, 3, 4, requires_grad=True)
        counted = torch.tensor([[True, True, False], [True, False, False]])
        choose(scores, align)
        reward = torch.tensor([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]])
        surrogate = align.loss(reward, counted)
        (slope,) = torch.autograd.grad(surrogate.loss, scores)
        assert (slope[:, 0][~counted] == 0).all()
        assert (slope[:, 0][counted] != 0).any(dim=-1).all()
        assert float(surrogate.advantage) == pytest.approx(3.0)
        choose(scores, align)
        assert float(align.loss(reward, counted).baseline) == pytest.approx(3.0)

    def test_of_a_reward_over_several_steps_as_many_are_expected(self):
        torch.manual_seed(0)
        align, scores = Hard("reinforce", decay=0.8), torch.randn(2, 1, 3, 4, requires_grad=True)
        steps = torch.tensor([[3.0, 2.0, 1.0], [1.0, 0.0, 0.0]])
        for _ in range(2):
            choose(scores, align)
            surrogate = align.loss(5.0 * steps, steps > 0, steps)
        assert float(surrogate.baseline) == pytest.approx(5.0 * (3 + 2 + 1 + 1) / 4)
        assert float(surrogate.advantage) == pytest.approx(0.0, abs=1e-5)
        (slope,) = torch.autograd.grad(surrogate.loss, scores)
        assert slope.abs().max() < 1e-5  # what came was what was expected, whatever was drawn

    def test_a_query_that_may_see_nothing_reads_zeros_and_counts_for_nothing(self):
        torch.manual_seed(0)
        scores, mask = torch.randn(2, 1, 3, 4), Padding(torch.tensor([0, 4]))
        surrogates = []
        for rows in (slice(0, 2), slice(1, 2)):
            align, part = Hard("reinforce", baseline=None, entropy=1.0), scores[rows].clone().requires_grad_()
            torch.manual_seed(1)
            if rows.start == 0:
                read = choose(part, align, mask=mask)
                assert (read.output[0] == 0).all()
                draws = align._draws[0]
                assert (draws.log_probability[0] == 0).all()
                assert (draws.entropy[0] == 0).all()
            else:
                torch.empty(1, 1, 3, 4).exponential_()  # the noise of the row that is not here
                choose(part, align)
            surrogates.append((align.loss(torch.full((len(part),), 3.0)), part))
        (both, scores_of_both), (one, _) = surrogates
        torch.testing.assert_close(2 * both.loss, one.loss)
        torch.testing.assert_close(both.variance, one.variance)
        (slope,) = torch.autograd.grad(both.loss, scores_of_both)
        assert slope.isfinite().all()
        assert (slope[0] == 0).all()

    def test_where_no_query_counts_there_is_nothing_to_learn_and_no_average_moves(self):
        align = Hard("reinforce")
        scores = torch.randn(2, 1, 3, 4, requires_grad=True)
        choose(scores, align)
        surrogate = align.loss(torch.ones(2), torch.zeros(2, 3, dtype=torch.bool))
        assert [each.item() for each in surrogate] == [0.0, 0.0, 0.0, 0.0]
        assert float(align.baseline.mass) == 0.0

    def test_it_learns_to_look_where_the_reward_is(self):
        torch.manual_seed(0)
        align, scores = Hard("reinforce"), torch.zeros(1, 1, 1, 4, requires_grad=True)
        optimizer = torch.optim.SGD([scores], lr=3.0)
        for _ in range(20):
            optimizer.zero_grad()
            reward = choose(scores.expand(30, 1, 1, 4), align).output[:, 0, 0, 2]  # 1 for the third key
            align.loss(reward.detach()).loss.backward()
            optimizer.step()
        assert scores.softmax(dim=-1).flatten()[2] > 0.9


class TestMemory:
    """Draws are remembered from call to call, and only those that can learn."""

    def test_a_loss_takes_the_draws_with_it(self):
        align = Hard("reinforce")
        choose(torch.randn(2, 1, 1, 3), align)
        align.loss(torch.ones(2))
        with pytest.raises(InputError, match="no draws to reward"):
            align.loss(torch.ones(2))

    def test_nothing_is_remembered_in_evaluation_or_without_gradients_or_by_another_estimator(self):
        scores = torch.randn(2, 1, 1, 3)
        choose(scores, align := Hard("reinforce").eval())
        with torch.no_grad():
            choose(scores, align.train())
        with pytest.raises(InputError, match="in training mode, with gradients"):
            align.loss(torch.ones(2))
        choose(scores, other := Hard())
        with pytest.raises(InputError, match=r"this one is 'straight-through'"):
            other.loss(torch.ones(2))

    def test_a_step_that_was_given_up_can_be_forgotten(self):
        align = Hard("reinforce")
        choose(torch.randn(2, 1, 1, 3), align)
        align.forget()
        choose(torch.randn(3, 1, 1, 3), align)
        assert align.loss(torch.ones(3)).loss.isfinite()

    def test_watching_adds_no_draws(self):
        layer = Attend(align=Hard("reinforce"))
        x = torch.randn(2, 1, 3, 4)
        with watch(torch.nn.ModuleDict({"layer": layer})):
            layer(x, x, x)
        assert layer.align.loss(torch.ones(2, 3)).loss.isfinite()

    def test_the_moving_average_is_saved_with_the_model(self):
        align, again = Hard("reinforce"), Hard("reinforce")
        choose(torch.randn(2, 1, 1, 3), align)
        align.loss(torch.full((2,), 4.0))
        again.load_state_dict(align.state_dict())
        choose(torch.randn(2, 1, 1, 3), again)
        assert float(again.loss(torch.ones(2)).baseline) == pytest.approx(4.0)


class TestWhatCannotBe:
    """Refused in words."""

    def test_an_unknown_name_is_answered_with_the_nearest(self):
        with pytest.raises(InputError, match="did you mean straight-through"):
            Hard("straight_through")
        with pytest.raises(InputError, match="did you mean moving-average"):
            Hard("reinforce", baseline="moving_average")

    def test_a_learned_baseline_needs_the_size_of_the_query(self):
        with pytest.raises(InputError, match="give Hard its query_dim"):
            Hard("reinforce", baseline="learned")

    @pytest.mark.parametrize("entropy", [-0.1, math.inf, math.nan])
    def test_a_bonus_for_staying_undecided_is_finite_and_no_punishment(self, entropy):
        with pytest.raises(InputError, match="entropy must be 0 or more, and finite"):
            Hard("reinforce", entropy=entropy)

    @pytest.mark.parametrize("discount", [-0.1, 1.1, math.nan])
    def test_a_discount_leaves_less_and_not_less_than_nothing(self, discount):
        with pytest.raises(InputError, match=r"discount must lie in \[0, 1\]"):
            Hard("reinforce", discount=discount)

    def test_a_decay_lies_below_1(self):
        with pytest.raises(InputError, match="decay"):
            Hard("reinforce", decay=1.0)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("shape", [(3,), (2, 2), (2, 3, 1), ()])
    def test_a_reward_is_of_each_row_or_of_each_query(self, shape):
        align = Hard("reinforce")
        choose(torch.randn(2, 1, 3, 4), align)
        with pytest.raises(ShapeError, match=r"one for each row, \[2\], or one for each query of all calls, \[2, 3\]"):
            align.loss(torch.ones(shape))
        assert align.loss(torch.ones(2)).loss.isfinite()  # nothing was lost

    @pytest.mark.usefixtures("unchecked")
    def test_what_is_counted_is_queries(self):
        align = Hard("reinforce")
        choose(torch.randn(2, 1, 3, 4), align)
        with pytest.raises(ShapeError, match="counted has shape"):
            align.loss(torch.ones(2), torch.ones(2, 4, dtype=torch.bool))
        with pytest.raises(ShapeError, match="steps has shape"):
            align.loss(torch.ones(2), steps=torch.ones(2, 4))

    def test_calls_of_several_batches_have_no_reward_in_common(self):
        align = Hard("reinforce")
        for batch in (2, 3):
            choose(torch.randn(batch, 1, 3, 4), align)
        with pytest.raises(ShapeError, match=r"call loss\(\) after each"):
            align.loss(torch.ones(2))
