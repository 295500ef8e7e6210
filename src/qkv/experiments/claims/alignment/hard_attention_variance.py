"""Claim 36: soft attention is differentiable; hard attention needs an estimator, whose variance a baseline reduces."""

import torch

from qkv.attention import Hard, attend
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Equal, Mean, Ratio
from qkv.registry import register
from qkv.types import Float, Tensor

KEYS = 8
OFFSET = 5.0  # mean reward, which a baseline should remove
DRAWS = {"small": 20_000, "full": 1_000_000}
ESTIMATORS = {"REINFORCE": None, "REINFORCE with baseline": "moving-average"}


@register("claim", "hard-attention-variance")
class HardAttentionVariance(SampledClaim):
    """Bias and variance of gradient estimates of hard attention, with and without baseline; soft attention is exact."""

    number = 36
    title = "Hard attention needs a gradient estimator, soft attention does not"
    statement = (
        "The output of soft attention is differentiable. Hard attention samples one key, which has no gradient; it can "
        "be estimated by a policy gradient, without bias but with a variance that a baseline reduces."
    )
    notes = (Note("002", "Hard attention"), Note("003", "Soft vs Hard Attention"))
    equation = (
        "soft:   c = sum_i p_i v_i,   p = softmax(s)\n"
        "hard:   z ~ p,   d E[R] / ds = E[(R(z) - b) (z - p)] = p_i (R_i - sum_j p_j R_j)   for any baseline b"
    )
    source = ("src/qkv/attention/hard.py::Hard.loss", "src/qkv/attention/hard.py::MovingAverage")
    hypothesis = (
        "The gradient of soft attention equals finite differences (relative error below 1e-6). The mean of the "
        "estimates is that of the exact gradient (relative error below 0.1), and a moving-average baseline divides the "
        "variance by at least 5, for rewards with mean 5 and standard deviation 1."
    )
    criteria = (
        Equal("gradient of soft attention: autograd", "gradient of soft attention: finite differences", high=1e-6),
        Mean("relative error of the mean: REINFORCE", high=0.1),
        Mean("relative error of the mean: REINFORCE with baseline", high=0.1),
        Ratio("variance: REINFORCE", "variance: REINFORCE with baseline", low=5.0),
    )
    figure = (
        Panel(
            "Variance of one gradient estimate", "variance, summed over keys", log_y=True,
            points=("variance: REINFORCE", "variance: REINFORCE with baseline"),
        ),
        Panel(
            "Error of the mean of n estimates", "error relative to the exact gradient",
            ("error by samples: REINFORCE", "error by samples: REINFORCE with baseline"),
            x_label="number of estimates n", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "The factor grows with the mean reward, which the baseline removes: with a mean of 0 there is nothing to gain. "
        "Straight-through and Gumbel estimators, which are biased, are not compared."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        draws = DRAWS[scale]
        scores, rewards = torch.randn(2, KEYS, device=device, dtype=torch.float64)
        rewards = OFFSET + (rewards - rewards.mean()) / rewards.std()
        p = scores.softmax(dim=-1)
        exact = p * (rewards - p @ rewards)
        values, series = soft_gradients(scores, rewards), {}
        for label, baseline in ESTIMATORS.items():
            align = Hard("reinforce", baseline=baseline).to(device)
            for _ in range(50):  # the first values of the moving average
                estimates(align, scores, rewards, 32)
            grads = estimates(align, scores, rewards, draws)
            counts = [count for count in (10, 100, 1000, 10_000, 100_000, 1_000_000) if count <= draws]
            error = {count: float((grads[:count].mean(dim=0) - exact).norm() / exact.norm()) for count in counts}
            values[f"relative error of the mean: {label}"] = float((grads.mean(dim=0) - exact).norm() / exact.norm())
            values[f"variance: {label}"] = float(grads.var(dim=0).sum())
            series[f"error by samples: {label}"] = error
        return Sample(values, series)


def soft_gradients(scores: Float[Tensor, "key"], values: Float[Tensor, "key"]) -> dict[str, float]:
    """Return the derivative of the output in the direction of the values, by autograd and by central differences."""

    def output(s: Float[Tensor, "key"]) -> Float[Tensor, ""]:
        # the query is 1 and the keys are the scores, so that q . k = s
        query = torch.ones_like(s[:1]).view(1, 1, 1, 1)
        return attend(query, s.view(1, 1, -1, 1), values.view(1, 1, -1, 1), backend="reference").output.sum()

    direction, step = values / values.norm(), 1e-5
    (grad,) = torch.autograd.grad(output(scores.requires_grad_()), scores)
    with torch.no_grad():
        difference = output(scores + step * direction) - output(scores - step * direction)
    return {
        "gradient of soft attention: autograd": float(grad @ direction),
        "gradient of soft attention: finite differences": float(difference) / (2 * step),
    }


def estimates(
    align: Hard, scores: Float[Tensor, "key"], rewards: Float[Tensor, "key"], draws: int
) -> Float[Tensor, "draws key"]:
    """Return independent estimates of d E[R] / ds."""
    keys = scores.detach().expand(draws, 1, 1, -1).clone().requires_grad_()
    query = keys.new_ones(draws, 1, 1, 1)
    reward = attend(query, keys.transpose(2, 3), rewards.view(1, 1, -1, 1).expand(draws, 1, -1, 1), align=align).output
    surrogate = align.loss(reward.detach()[:, 0, 0, 0])
    (grad,) = torch.autograd.grad(surrogate.loss, keys)
    return -draws * grad[:, 0, 0]
