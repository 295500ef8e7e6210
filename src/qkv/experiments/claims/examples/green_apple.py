"""Worked example: the value of "apple" in "She is eating a green apple"."""

import torch

from qkv.attention import Dot, attend
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Mean
from qkv.registry import register

WORDS = ("she", "is", "eating", "a", "green")
PRINTED = (0.1, 0.1, 0.5, 0.1, 0.2)  # weights of the words before "apple"


@register("claim", "green-apple")
class GreenApple(SampledClaim):
    """Scores whose softmax is the printed weights, and the value that attention computes with them."""

    number = 59
    title = "Worked example: the value of apple in a sentence"
    statement = (
        'The new value of "apple" is the sum of the values of the words before it, weighted by the softmax of the '
        "products of its query with their keys: 0.1, 0.1, 0.5, 0.1 and 0.2."
    )
    notes = (Note("003", "Generalized model of attention"),)
    equation = "a = softmax(q_apple . k_she, ..., q_apple . k_green),   v_apple = sum_i a_i v_i"
    source = ("src/qkv/attention/operator.py::attend", "src/qkv/experiments/claims/examples/green_apple.py::attended")
    hypothesis = (
        "The printed weights are positive and add up to 1, so that there are queries and keys with this softmax: with "
        "q . k_i = log a_i + c for any c, attention returns the printed sum (difference below 1e-12 in float64)."
    )
    criteria = (
        Mean("sum of the weights minus 1: printed", low=-1e-12, high=1e-12),
        Mean("largest difference: weights", high=1e-12),
        Mean("largest difference: value of apple", high=1e-12),
    )
    figure = (
        Panel(
            "Attention of apple", "weight", ("weight by word: computed", "weight by word: printed"), x_label="word",
        ),
    )  # fmt: skip
    limits = "The note does not name the source of the weights; `qkv claims figure street` shows those of a real model."
    seeds = 3

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        values = torch.randn(len(WORDS), 4, dtype=torch.float64)
        weights, apple = attended(values, shift=float(torch.randn(())))
        expected = torch.tensor(PRINTED, dtype=torch.float64)
        numbers = {
            "sum of the weights minus 1: printed": sum(PRINTED) - 1,
            "largest difference: weights": float((weights - expected).abs().max()),
            "largest difference: value of apple": float((apple - expected @ values).abs().max()),
        }
        curves = {"computed": weights.tolist(), "printed": PRINTED}
        series = {f"weight by word: {name}": dict(enumerate(curve, start=1)) for name, curve in curves.items()}
        return Sample(numbers, series)


def attended(values: torch.Tensor, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and the output of a query whose scores are log a_i + shift."""
    query = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    keys = (torch.tensor(PRINTED, dtype=torch.float64).log() + shift)[None, None, :, None]
    result = attend(query, keys, values[None, None], score=Dot(), need_weights=True)
    assert result.weights is not None
    return result.weights[0, 0, 0], result.output[0, 0, 0]
