"""Claim 17: dot products of large vectors need scaling."""

import torch

from qkv.attention import Dot, ScaledDot, attend
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Difference, Exponent, Ratio
from qkv.registry import register
from qkv.types import Float, Tensor

QUERIES, KEYS, DIMS = 8, 64, (4, 16, 64, 256, 1024)
SETS = {"small": 512, "full": 8192}  # of queries and keys, drawn independently


@register("claim", "scaled-dot-variance")
class ScaledDotVariance(SampledClaim):
    """Variance of the scores, entropy of the weights and size of the softmax gradient, by dimension."""

    number = 17
    title = "Dot products need scaling when vectors are large"
    statement = (
        "The variance of a dot product grows with the dimension of the vectors, so that the softmax saturates and "
        "passes hardly any gradient; division by the square root of the dimension prevents it."
    )
    notes = (
        Note("000", "Self-Attention"),
        Note("001", "Scaled dot product"),
        Note("003", "Alignment scores"),
        Note("004", "Scaling the dot product"),
    )
    equation = (
        "q, k ~ N(0, 1) in d dimensions:   Var(q . k) = d,   Var(q . k / sqrt(d)) = 1\n"
        "softmax Jacobian:                 dp/ds = diag(p) - p p^T"
    )
    source = ("src/qkv/attention/score.py::Dot", "src/qkv/attention/score.py::ScaledDot.scale_for")
    hypothesis = (
        "The variance is proportional to d (exponent 1, within 0.1) without scaling and constant with it. At d = 1,024 "
        "the entropy of the weights over 64 keys (at most 4.16 nats) is more than 1 nat higher with scaling, and the "
        "norm of the softmax Jacobian at least doubles."
    )
    criteria = (
        Exponent("variance of scores: dot", low=0.9, high=1.1),
        Exponent("variance of scores: scaled dot", low=-0.1, high=0.1),
        Difference("entropy at d = 1024: scaled dot", "entropy at d = 1024: dot", low=1.0),
        Ratio("Jacobian norm at d = 1024: scaled dot", "Jacobian norm at d = 1024: dot", low=2.0),
    )
    figure = (
        Panel(
            "Variance of the scores", "variance", ("variance of scores: dot", "variance of scores: scaled dot"),
            x_label="dimension d", log_x=True, log_y=True,
        ),
        Panel(
            "Entropy of the attention weights", "entropy over 64 keys, nats", ("entropy: dot", "entropy: scaled dot"),
            x_label="dimension d", log_x=True,
        ),
        Panel(
            "Gradient of the softmax", "norm of the Jacobian", ("Jacobian norm: dot", "Jacobian norm: scaled dot"),
            x_label="dimension d", log_x=True,
        ),
    )  # fmt: skip
    limits = (
        "Queries and keys are independent and normally distributed, as in a new model. A trained model can shrink its "
        "projections instead; whether it learns as well without scaling needs training."
    )
    amendments = (
        "In the first run, which was mixed, all queries shared one set of keys; now each has its own, so that the "
        "samples are independent."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        values: dict[str, float] = {}
        series: dict[str, dict[float, float]] = {}
        for label, score in (("dot", Dot()), ("scaled dot", ScaledDot())):
            for dim in DIMS:
                query = torch.randn(SETS[scale], 1, QUERIES, dim, device=device)
                key = torch.randn(SETS[scale], 1, KEYS, dim, device=device)
                weights = attend(query, key, key, score=score, need_weights=True, backend="reference").weights
                assert weights is not None
                p = weights.flatten(0, 2).double()
                measured = {
                    "variance of scores": float(score(query, key).var()),
                    "entropy": float(-torch.special.xlogy(p, p).sum(dim=-1).mean()),
                    "Jacobian norm": float(jacobian_norm(p).mean()),
                }
                for quantity, value in measured.items():
                    series.setdefault(f"{quantity}: {label}", {})[dim] = value
            for quantity in ("entropy", "Jacobian norm"):
                values[f"{quantity} at d = {DIMS[-1]}: {label}"] = series[f"{quantity}: {label}"][DIMS[-1]]
        return Sample(values, series)


def jacobian_norm(p: Float[Tensor, "query key"]) -> Float[Tensor, "query"]:
    """Frobenius norm of diag(p) - p p^T: sum_i p_i^2 - 2 sum_i p_i^3 + (sum_i p_i^2)^2, then the square root."""
    square = p.square().sum(dim=-1)
    return (square - 2 * p.pow(3).sum(dim=-1) + square.square()).clamp(min=0.0).sqrt()
