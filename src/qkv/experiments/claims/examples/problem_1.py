"""Worked example: Problem 1, a language model of one self-attention layer, computed by hand."""

from collections.abc import Iterable

import torch

from qkv.attention import Causal, attend
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Mean
from qkv.registry import register

TOKENS = ("<START>", "Awful", "plot", "and", "actors.", "The", "movie", "is")
EMBEDDINGS = ((0, 0, 0), (0, -5, 0), (1, 0, 0), (0, 0, 0), (-1, 0, 0), (0, 0, 0), (-2, 0, 0), (0, 0, 0))
PROJECTION = ((0.1, 0.0), (0.0, -0.1), (0.0, 0.1))  # W_Q = W_K = W_V
READOUT = {"good": (1.0, -1.0), "bad": (-1.0, 1.0)}
PRINTED_WEIGHTS = (0.101, 0.136, 0.112, 0.118, 0.124, 0.130, 0.136, 0.143)
PRINTED_OUTPUT, PRINTED_LOGIT = (-0.028, 0.436), {"good": -0.464, "bad": 0.464}
ROUNDING = 0.0006  # of three decimals


@register("claim", "problem-1")
class Problem1(SampledClaim):
    """Attention weights, output and logits of the last word of Problem 1, in float64."""

    number = 56
    title = "Worked example: Problem 1, the sentiment of a film review"
    statement = (
        "A single layer of scaled dot-product self-attention reads eight words with added positions, and continues "
        'with "bad". The note computes the weights of the last word, its output and both logits by hand.'
    )
    notes = (Note("000", "Problem 1"),)
    equation = "p_8 = softmax(q_8 K^T / sqrt(2)),   z_8 = p_8 V,   logits = W z_8"
    source = ("src/qkv/attention/operator.py::attend", "src/qkv/experiments/claims/examples/problem_1.py::solve")
    hypothesis = (
        "The printed numbers have three decimals: the weights, the output and the logits agree within 0.0006, and the "
        'logit of "bad" is larger.'
    )
    criteria = (
        Mean("difference from the printed: weights", high=ROUNDING),
        Mean("difference from the printed: output", high=ROUNDING),
        Mean("difference from the printed: logits", high=ROUNDING),
        Mean("logit of bad minus logit of good: exact", low=0.0),
    )
    figure = (
        Panel(
            "Attention of the last word", "weight", ("weight by position: computed", "weight by position: printed"),
            x_label="position",
        ),
    )  # fmt: skip
    limits = "Nothing: it is arithmetic. Weights of other embeddings or without the factor 1 / sqrt(2) differ."
    deterministic = True
    seeds = 1

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        weights, output, logits = solve()
        values = {
            "difference from the printed: weights": _largest(weights, PRINTED_WEIGHTS),
            "difference from the printed: output": _largest(output, PRINTED_OUTPUT),
            "difference from the printed: logits": _largest(logits.values(), PRINTED_LOGIT.values()),
            "logit of bad minus logit of good: exact": logits["bad"] - logits["good"],
        }
        curves = {"computed": weights, "printed": PRINTED_WEIGHTS}
        series = {f"weight by position: {name}": dict(enumerate(curve, start=1)) for name, curve in curves.items()}
        return Sample(values, series)


def solve() -> tuple[list[float], list[float], dict[str, float]]:
    """Return the attention weights and the output of the last word, and the logit of each continuation."""
    embeddings = torch.tensor(EMBEDDINGS, dtype=torch.float64)
    positions = torch.zeros_like(embeddings)
    positions[:, 2] = torch.arange(len(TOKENS))
    x = ((embeddings + positions) @ torch.tensor(PROJECTION, dtype=torch.float64))[None, None]  # batch, head
    attended = attend(x, x, x, mask=Causal(), need_weights=True)
    assert attended.weights is not None
    output = attended.output[0, 0, -1]
    logits = {word: float(output @ output.new_tensor(row)) for word, row in READOUT.items()}
    return attended.weights[0, 0, -1].tolist(), output.tolist(), logits


def _largest(values: Iterable[float], printed: Iterable[float]) -> float:
    return max(abs(value - number) for value, number in zip(values, printed, strict=True))
