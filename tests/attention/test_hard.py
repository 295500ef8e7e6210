"""Hard attention: its choices and the gradient of each estimator."""

import math

import pytest
import torch
from torch import Tensor

from qkv.attention import AttentionOutput, Causal, Dense, Dot, Padding, Softmax, attend, explain, watch
from qkv.attention.backends import gather
from qkv.attention.hard import Hard
from qkv.attention.operator import Attend
from qkv.errors import InputError, ShapeError

DOT = Dot()


def choose(scores: Tensor, align: Hard, **terms: object) -> AttentionOutput:
    """Attend with the given scores: keys and values are unit vectors, so the output is the choice."""
    keys = torch.eye(scores.shape[-1], dtype=scores.dtype).expand(*scores.shape[:2], -1, -1)
    return attend(scores, keys, keys, score=DOT, align=align, need_weights=True, **terms)


def is_one_hot(weights: Tensor) -> bool:
    return bool(((weights == 0) | (weights == 1)).all() and (weights.sum(dim=-1) == 1).all())


@pytest.mark.parametrize("estimator", ["straight-through", "gumbel", "reinforce"])
def test_evaluation_uses_the_argmax(estimator):
    torch.manual_seed(0)
    scores = torch.randn(3, 2, 4, 5)
    weights = choose(scores, Hard(estimator).eval()).weights
    assert is_one_hot(weights)
    assert weights.argmax(dim=-1).equal(scores.argmax(dim=-1))


@pytest.mark.parametrize("estimator", ["straight-through", "gumbel", "reinforce"])
def test_training_weights_are_one_hot(estimator):
    torch.manual_seed(0)
    assert is_one_hot(choose(torch.randn(3, 2, 4, 5, requires_grad=True), Hard(estimator)).weights)


@pytest.mark.parametrize("estimator", ["gumbel", "reinforce"])
def test_keys_are_sampled_from_the_softmax_and_masked_ones_never(estimator):
    torch.manual_seed(0)
    scores, draws = torch.tensor([0.0, 1.0, 5.0, -1.0, 2.0]), 20_000
    allowed = torch.tensor([True, True, False, True, True])
    weights = choose(
        scores.expand(1, 1, draws, 5), Hard(estimator, temperature=0.3), mask=Dense(allowed.view(1, 1, 1, 5))
    )
    p = scores.masked_fill(~allowed, -torch.inf).softmax(dim=0)
    error = (p * (1 - p) / draws).sqrt()
    actual = weights.weights[0, 0].mean(dim=0)
    assert ((actual - p).abs() <= 4 * error).all()
    assert actual[2] == 0


def test_samples_use_the_global_generator():
    scores = torch.randn(2, 2, 10, 5)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(choose(scores, Hard("reinforce")).output)
    assert outputs[0].equal(outputs[1])
    assert not outputs[0].equal(outputs[2])


class TestStraightThrough:
    """Argmax forward, softmax backward."""

    @pytest.mark.parametrize("mask", [None, Padding(torch.tensor([5, 2]))], ids=["full", "ragged"])
    def test_gradient_matches_softmax(self, mask):
        torch.manual_seed(0)
        scores = torch.randn(2, 2, 3, 5, dtype=torch.float64, requires_grad=True)
        coefficients = torch.randn(2, 2, 3, 5, dtype=torch.float64)
        grads = [
            torch.autograd.grad((choose(scores, align, mask=mask).weights * coefficients).sum(), scores)[0]
            for align in (Hard(), Softmax())
        ]
        torch.testing.assert_close(*grads)
        assert (grads[0] != 0).any()


class TestGumbel:
    """Sample forward, softmax of the noisy scores backward."""

    def test_gradient_at_high_temperature_is_independent_of_the_noise(self):
        # softmax((s + noise) / T) goes to 1 / n as T grows, so T times its gradient goes to (c - mean(c)) / n.
        torch.manual_seed(0)
        scores = torch.randn(2, 1, 3, 5, dtype=torch.float64, requires_grad=True)
        coefficients = torch.randn(2, 1, 3, 5, dtype=torch.float64)
        weights = choose(scores, Hard("gumbel", temperature=1e6), mask=Padding(torch.tensor([5, 2]))).weights
        (grad,) = torch.autograd.grad((weights * coefficients).sum(), scores)
        expected = torch.zeros_like(grad)
        for row, n in enumerate((5, 2)):
            expected[row, ..., :n] = (
                coefficients[row, ..., :n] - coefficients[row, ..., :n].mean(dim=-1, keepdim=True)
            ) / n
        torch.testing.assert_close(1e6 * grad, expected, rtol=0, atol=1e-4)

    def test_gradient_matches_the_softmax_of_the_noisy_scores(self):
        scores = torch.randn(2, 1, 3, 5, dtype=torch.float64, requires_grad=True)
        coefficients = torch.randn(2, 1, 3, 5, dtype=torch.float64)
        torch.manual_seed(0)
        weights = choose(scores, Hard("gumbel", temperature=0.7)).weights
        torch.manual_seed(0)
        noisy = scores - torch.empty_like(scores).exponential_().log()
        assert weights.argmax(dim=-1).equal(noisy.argmax(dim=-1))
        (grad,) = torch.autograd.grad((weights * coefficients).sum(), scores)
        (expected,) = torch.autograd.grad(((noisy / 0.7).softmax(dim=-1) * coefficients).sum(), scores)
        torch.testing.assert_close(grad, expected)

    def test_temperature_must_be_positive(self):
        with pytest.raises(InputError, match="temperature"):
            Hard("gumbel", temperature=0.0)


REWARDS = torch.tensor([1.0, 3.0, -2.0, 0.5], dtype=torch.float64)
LOGITS = torch.tensor([0.3, -0.5, 0.8, 0.0], dtype=torch.float64)


def estimates(align: Hard, draws: int, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """Many estimates of d E[R] / ds, [draws, key], and their reported variance."""
    scores = LOGITS.expand(draws, 1, 1, 4).clone().requires_grad_()
    choice = choose(scores, align).output[:, 0, 0]
    surrogate = align.loss(choice.detach() @ (REWARDS + offset))
    (grad,) = torch.autograd.grad(surrogate.loss, scores)
    return -draws * grad[:, 0, 0], surrogate.variance


class TestReinforce:
    """The expectation is the gradient of the expected reward."""

    @pytest.mark.parametrize("offset", [0.0, 10.0])
    @pytest.mark.parametrize("baseline", [None, "moving-average", "learned"])
    def test_unbiased_with_and_without_a_baseline(self, baseline, offset):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline=baseline, query_dim=4).double()
        if baseline == "moving-average":
            estimates(align, 50, offset)  # initialize the average
        if baseline == "learned":
            align.baseline.linear.bias.data.fill_(offset)
        draws = 40_000
        actual, _ = estimates(align, draws, offset)
        p = LOGITS.softmax(dim=0)
        exact = p * (REWARDS - p @ REWARDS)  # of sum p_k r_k
        error = actual.std(dim=0) / math.sqrt(draws)
        assert ((actual.mean(dim=0) - exact).abs() <= 4 * error).all()
        assert (error < 0.25 * exact.abs().max()).all()  # otherwise the check above would be too weak

    def test_reported_variance_matches_the_estimates_and_theory(self):
        torch.manual_seed(0)
        actual, variance = estimates(Hard("reinforce", baseline=None), 20_000)
        torch.testing.assert_close(variance, actual.var(dim=0).sum())
        p = LOGITS.softmax(dim=0)
        each = REWARDS[:, None] * (torch.eye(4, dtype=torch.float64) - p)  # R (z - p) for each z
        theory = (p @ each.square()).sum() - (p @ each).square().sum()
        assert float(variance) == pytest.approx(float(theory), rel=0.05)

    @pytest.mark.parametrize("baseline", ["moving-average", "learned"])
    def test_a_good_baseline_reduces_the_variance(self, baseline):
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

    def test_moving_average_excludes_the_current_reward(self):
        align = Hard("reinforce", decay=0.8)
        baselines = []
        for reward in (1.0, 2.0, 5.0):
            scores = torch.randn(2, 1, 1, 3)
            choose(scores, align)
            baselines.append(float(align.baseline(scores).mean()))
            align.loss(torch.full((2,), reward))
        assert baselines == pytest.approx([0.0, 1.0, (0.8 * 1.0 + 2.0) / 1.8])

    def test_learned_baseline_has_no_gradient_for_the_queries(self):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline="learned", query_dim=4).double()
        torch.nn.init.normal_(align.baseline.linear.weight)
        scores = torch.randn(5, 1, 1, 4, dtype=torch.float64, requires_grad=True)
        result, reward = choose(scores, align), torch.randn(5, dtype=torch.float64)
        expected = align.baseline(scores)[:, 0, 0].detach()
        loss = align.loss(reward).loss
        (grad,) = torch.autograd.grad(loss, scores, retain_graph=True)
        by_hand = -(reward - expected)[:, None] * (result.weights - scores.softmax(dim=-1))[:, 0, 0] / 5
        torch.testing.assert_close(grad[:, 0, 0], by_hand.detach())
        (bias,) = torch.autograd.grad(loss, align.baseline.linear.bias)
        torch.testing.assert_close(bias, 2 * (expected - reward).mean().view(1))  # of (R - b)^2

    @pytest.mark.parametrize("length", [4, 2])
    def test_entropy_gradient_is_exact(self, length):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline=None, entropy=0.7)
        scores = torch.randn(3, 2, 2, 4, dtype=torch.float64, requires_grad=True)
        choose(scores, align, mask=Padding(torch.full((3,), length)))
        surrogate = align.loss(torch.zeros(3))
        p = scores[..., :length].softmax(dim=-1)
        entropy = -(p * p.log()).sum(dim=-1, keepdim=True)
        torch.testing.assert_close(surrogate.loss, -0.7 * entropy.sum() / 3)
        (grad,) = torch.autograd.grad(surrogate.loss, scores)
        torch.testing.assert_close(grad[..., :length], (0.7 * p * (p.log() + entropy) / 3).detach())
        assert (grad[..., length:] == 0).all()

    def test_queries_of_several_calls_are_concatenated(self):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline=None)
        steps = [torch.randn(2, 1, 1, keys, requires_grad=True) for keys in (3, 4, 5)]  # the keys grow, as in decoding
        outputs = [choose(step, align) for step in steps]
        reward = torch.tensor([[0.0, 0.0, 6.0], [0.0, -4.0, 0.0]])
        grads = torch.autograd.grad(align.loss(reward).loss, steps)
        for t, (step, result, grad) in enumerate(zip(steps, outputs, grads, strict=True)):
            by_hand = -reward[:, t, None] * (result.weights - step.softmax(dim=-1))[:, 0, 0] / 2
            torch.testing.assert_close(grad[:, 0, 0], by_hand.detach())

    def test_masked_steps_have_no_gradient_and_no_effect_on_averages(self):
        torch.manual_seed(0)
        align = Hard("reinforce", baseline="moving-average", entropy=1.0)
        scores = torch.randn(2, 1, 3, 4, requires_grad=True)
        mask = torch.tensor([[True, True, False], [True, False, False]])
        choose(scores, align)
        reward = torch.tensor([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]])
        surrogate = align.loss(reward, mask)
        (grad,) = torch.autograd.grad(surrogate.loss, scores)
        assert (grad[:, 0][~mask] == 0).all()
        assert (grad[:, 0][mask] != 0).any(dim=-1).all()
        assert float(align.baseline(scores).mean()) == pytest.approx(3.0)

    def test_baseline_scales_with_the_number_of_steps(self):
        torch.manual_seed(0)
        align, scores = Hard("reinforce", decay=0.8), torch.randn(2, 1, 3, 4, requires_grad=True)
        steps = torch.tensor([[3.0, 2.0, 1.0], [1.0, 0.0, 0.0]])
        for _ in range(2):
            choose(scores, align)
            surrogate = align.loss(5.0 * steps, steps > 0, steps)
        assert float(align.baseline(scores).mean()) == pytest.approx(5.0)
        (grad,) = torch.autograd.grad(surrogate.loss, scores)
        assert grad.abs().max() < 1e-5  # the reward equals the baseline for every sample

    def test_fully_masked_queries_have_zero_output_and_no_effect(self):
        torch.manual_seed(0)
        scores, mask = torch.randn(2, 1, 3, 4), Padding(torch.tensor([0, 4]))
        surrogates = []
        for rows in (slice(0, 2), slice(1, 2)):
            align, part = Hard("reinforce", baseline=None, entropy=1.0), scores[rows].clone().requires_grad_()
            torch.manual_seed(1)
            if rows.start == 0:
                result = choose(part, align, mask=mask)
                assert (result.output[0] == 0).all()
                draws = align._draws[0]
                assert (draws.log_probability[0] == 0).all()
                assert (draws.entropy[0] == 0).all()
            else:
                torch.empty(1, 1, 3, 4).exponential_()  # consume the noise of the missing row
                choose(part, align)
            surrogates.append((align.loss(torch.full((len(part),), 3.0)), part))
        (both, scores_of_both), (one, _) = surrogates
        torch.testing.assert_close(2 * both.loss, one.loss)
        torch.testing.assert_close(both.variance, one.variance)
        (grad,) = torch.autograd.grad(both.loss, scores_of_both)
        assert grad.isfinite().all()
        assert (grad[0] == 0).all()

    def test_all_queries_masked_gives_zero_loss_and_no_update(self):
        align = Hard("reinforce")
        scores = torch.randn(2, 1, 3, 4, requires_grad=True)
        choose(scores, align)
        surrogate = align.loss(torch.ones(2), torch.zeros(2, 3, dtype=torch.bool))
        assert [each.item() for each in surrogate] == [0.0, 0.0]
        assert float(align.baseline.mass) == 0.0

    def test_learns_to_attend_to_the_rewarded_key(self):
        torch.manual_seed(0)
        align, scores = Hard("reinforce"), torch.zeros(1, 1, 1, 4, requires_grad=True)
        optimizer = torch.optim.SGD([scores], lr=3.0)
        for _ in range(20):
            optimizer.zero_grad()
            reward = choose(scores.expand(30, 1, 1, 4), align).output[:, 0, 0, 2]  # 1 for the third key
            align.loss(reward.detach()).loss.backward()
            optimizer.step()
        assert scores.softmax(dim=-1).flatten()[2] > 0.9


class TestStoredSamples:
    """Samples are stored until `loss` is called, and only if they can receive gradients."""

    def test_loss_consumes_the_samples(self):
        align = Hard("reinforce")
        choose(torch.randn(2, 1, 1, 3), align)
        align.loss(torch.ones(2))
        with pytest.raises(InputError, match="no samples"):
            align.loss(torch.ones(2))

    def test_samples_are_stored_only_by_reinforce_in_training_with_gradients(self):
        scores = torch.randn(2, 1, 1, 3)
        choose(scores, align := Hard("reinforce").eval())
        with torch.no_grad():
            choose(scores, align.train())
        with pytest.raises(InputError, match="training mode"):
            align.loss(torch.ones(2))
        choose(scores, other := Hard())
        with pytest.raises(InputError, match="straight-through"):
            other.loss(torch.ones(2))

    def test_watching_adds_no_samples(self):
        layer = Attend(align=Hard("reinforce"))
        x = torch.randn(2, 1, 3, 4)
        with watch(torch.nn.ModuleDict({"layer": layer})):
            layer(x, x, x)
        assert layer.align.loss(torch.ones(2, 3)).loss.isfinite()

    def test_moving_average_is_in_the_state_dict(self):
        align, again = Hard("reinforce"), Hard("reinforce")
        choose(torch.randn(2, 1, 1, 3), align)
        align.loss(torch.full((2,), 4.0))
        again.load_state_dict(align.state_dict())
        assert float(again.baseline(torch.randn(2, 1, 1, 3)).mean()) == pytest.approx(4.0)


class TestInvalidArguments:
    """Invalid arguments raise."""

    def test_unknown_names_suggest_the_nearest(self):
        with pytest.raises(InputError, match="straight-through"):
            Hard("straight_through")
        with pytest.raises(InputError, match="moving-average"):
            Hard("reinforce", baseline="moving_average")

    def test_learned_baseline_needs_query_dim(self):
        with pytest.raises(InputError, match="query_dim"):
            Hard("reinforce", baseline="learned")

    @pytest.mark.parametrize("entropy", [-0.1, math.inf, math.nan])
    def test_entropy_must_be_finite_and_non_negative(self, entropy):
        with pytest.raises(InputError, match="entropy"):
            Hard("reinforce", entropy=entropy)

    @pytest.mark.parametrize("discount", [-0.1, 1.1, math.nan])
    def test_discount_must_be_between_0_and_1(self, discount):
        with pytest.raises(InputError, match="discount"):
            Hard("reinforce", discount=discount)

    def test_decay_must_be_below_1(self):
        with pytest.raises(InputError, match="decay"):
            Hard("reinforce", decay=1.0)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("shape", [(3,), (2, 2), (2, 3, 1), ()])
    def test_reward_must_be_per_row_or_per_query(self, shape):
        align = Hard("reinforce")
        choose(torch.randn(2, 1, 3, 4), align)
        with pytest.raises(ShapeError, match="reward"):
            align.loss(torch.ones(shape))
        assert align.loss(torch.ones(2)).loss.isfinite()  # the samples are kept

    @pytest.mark.usefixtures("unchecked")
    def test_mask_and_steps_must_be_per_query(self):
        align = Hard("reinforce")
        choose(torch.randn(2, 1, 3, 4), align)
        with pytest.raises(ShapeError, match="mask"):
            align.loss(torch.ones(2), torch.ones(2, 4, dtype=torch.bool))
        with pytest.raises(ShapeError, match="steps"):
            align.loss(torch.ones(2), steps=torch.ones(2, 4))

    def test_calls_with_different_batch_sizes_raise(self):
        align = Hard("reinforce")
        for batch in (2, 3):
            choose(torch.randn(batch, 1, 3, 4), align)
        with pytest.raises(ShapeError, match="differ"):
            align.loss(torch.ones(2))


def tensors(queries: int = 6, kv_heads: int = 2, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 4, queries, 8), (2, kv_heads, 7, 8), (2, kv_heads, 7, 5))
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


class TestGather:
    """The chosen values are gathered, with the results of the product of weights and values."""

    @pytest.mark.parametrize("kv_heads", [1, 2, 4])
    @pytest.mark.parametrize("mask", [None, Causal(), Padding(torch.tensor([3, 0]))])
    def test_values_and_gradients_equal_those_of_the_reference(self, mask, kv_heads):
        outputs, grads = [], []
        for backend in ("reference", "gather"):
            leaves = tensors(kv_heads=kv_heads)
            output = attend(*leaves, mask=mask, align=Hard().eval(), backend=backend).output
            factors = torch.randint(-8, 8, output.shape, generator=torch.Generator().manual_seed(1)).float()
            outputs.append(output)
            grads.append(torch.autograd.grad((output * factors).sum(), leaves[2])[0])  # sums of integers are exact
        assert outputs[0].equal(outputs[1])
        assert grads[0].equal(grads[1])

    @pytest.mark.parametrize(
        "mask", [None, Causal(), Padding(torch.tensor([5, 0])), Dense(torch.rand(2, 4, 6, 7) > 0.4)]
    )
    @pytest.mark.parametrize("cells", [1, 2 * 4 * 7 * 4])
    def test_blocks_of_queries_give_the_same_values(self, mask, cells, monkeypatch):
        monkeypatch.setattr(gather, "BLOCK_CELLS", cells)
        monkeypatch.setattr(gather, "BLOCK_QUERIES", 1)
        with torch.no_grad():
            blocks, together = (
                attend(*tensors(), mask=mask, align=Hard().eval(), backend=backend).output
                for backend in ("gather", "reference")
            )
        assert blocks.equal(together)

    @pytest.mark.parametrize("estimator", ["gumbel", "reinforce"])
    def test_samples_are_those_of_the_reference(self, estimator, monkeypatch):
        monkeypatch.setattr(gather, "BLOCK_CELLS", 1)
        monkeypatch.setattr(gather, "BLOCK_QUERIES", 1)
        outputs = []
        for backend in ("reference", "gather"):
            torch.manual_seed(3)
            with torch.no_grad():
                outputs.append(attend(*tensors(), align=Hard(estimator).train(), backend=backend).output)
        assert outputs[0].equal(outputs[1])

    def test_rewarded_samples_have_the_gradients_of_the_reference(self):
        grads = []
        for backend in ("reference", "gather"):
            torch.manual_seed(3)
            align, leaves = Hard("reinforce").train(), tensors()
            output = attend(*leaves, align=align, backend=backend).output
            loss = align.loss(torch.tensor([1.0, -2.0])).loss + output.square().sum()
            grads.append(torch.autograd.grad(loss, leaves))
        for actual, expected in zip(*grads, strict=True):
            torch.testing.assert_close(actual, expected)

    def test_values_of_other_keys_are_not_read(self):
        query, key, value = (x.detach() for x in tensors(queries=1, kv_heads=4))
        scores = query @ key.transpose(-1, -2)
        chosen = scores.argmax(dim=-1, keepdim=True).expand(-1, -1, -1, 5)
        others = torch.full_like(value, torch.nan).scatter(2, chosen, value.gather(2, chosen))
        with torch.no_grad():
            actual = attend(query, key, others, align=Hard().eval()).output
        assert actual.equal(value.gather(2, chosen))

    def test_it_runs_in_inference_and_for_samples_but_not_where_weights_have_a_gradient(self):
        for align, backend in (
            (Hard().eval(), "gather"),
            (Hard("reinforce").train(), "gather"),
            (Hard("straight-through").train(), "reference"),
            (Hard("gumbel").train(), "reference"),
        ):
            assert explain(*tensors(), align=align).backend == backend
        with torch.no_grad():
            assert explain(*tensors(), align=Hard("gumbel").train()).backend == "gather"
        assert explain(*tensors(), align=Hard().eval(), dropout=0.1).backend == "reference"

    def test_watched_samples_are_those_that_were_used(self):
        query, key, value = (x.detach() for x in tensors(kv_heads=4))
        layer = Attend(align=Hard("reinforce")).train()
        with watch(layer) as recorded:
            output = layer(query, key, value).output
        assert is_one_hot(recorded[""].weights)
        assert output.equal(recorded[""].weights @ value)

    def test_autocast_has_the_dtype_of_a_product(self):
        for backend in ("reference", "gather"):
            with torch.autocast("cpu", torch.bfloat16):
                output = attend(*tensors(), align=Hard().eval(), backend=backend).output
            assert output.dtype == torch.bfloat16


@pytest.mark.parametrize("done", [0.0, 0.1, 0.4, 1.0])
def test_annealed_weights_move_from_the_softmax_to_the_choice_with_the_gradient_of_the_softmax(done):
    torch.manual_seed(0)
    scores = torch.randn(2, 2, 3, 5, dtype=torch.float64, requires_grad=True)
    align = Hard("straight-through", anneal=0.4)
    align.set_progress(done)
    weights = choose(scores, align).weights
    p = scores.softmax(dim=-1)
    z = torch.nn.functional.one_hot(scores.argmax(dim=-1), 5)
    hardness = min(1.0, done / 0.4)
    torch.testing.assert_close(weights, (1 - hardness) * p + hardness * z)
    if done == 1.0:
        assert is_one_hot(weights)
    factor = torch.randn_like(weights)
    (grad,) = torch.autograd.grad((weights * factor).sum(), scores, retain_graph=True)
    (expected,) = torch.autograd.grad((p * factor).sum(), scores)
    torch.testing.assert_close(grad, expected)


def test_annealed_attention_is_hard_in_evaluation_and_by_default():
    scores = torch.randn(2, 2, 3, 5, requires_grad=True)
    align = Hard("gumbel", anneal=0.5)
    assert is_one_hot(choose(scores, align).weights)
    align.set_progress(0.0)
    assert not is_one_hot(choose(scores, align).weights)
    assert is_one_hot(choose(scores, align.eval()).weights)
    assert not align.state_dict()


def test_anneal_is_a_fraction():
    with pytest.raises(InputError, match="anneal"):
        Hard(anneal=1.5)
