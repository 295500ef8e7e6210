"""Claim 27: learned positions fit the data better than sinusoids."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_TRANSFORMER
from qkv.experiments.claims.multi30k import FULL_TRANSFORMER, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "learned-positions")
class LearnedPositions(SweepClaim):
    """Quality of a Transformer with learned and with sinusoidal positions, at lengths that occur in training."""

    number = 27
    title = "Learned positions fit the data better than sinusoids"
    statement = (
        "Position vectors that are learned from scratch likely fit the data better than sinusoids, which cannot be "
        "learned."
    )
    notes = (Note("001", "Learning position representations"), Note("004", "Issues: Sequence order"))
    equation = "x_i = E[token_i] + P[i], P learned;   or x_i = E[token_i] + PE(i), sines and cosines"
    source = ("src/qkv/attention/encoding.py::Learned", "src/qkv/attention/encoding.py::Sinusoidal")
    hypothesis = (
        "With the same data, seeds and training settings, the score with learned positions is higher: exact match of "
        "dates at small scale, BLEU of Multi30k at full scale."
    )
    criteria = (Difference("score: learned", "score: sinusoidal", low=0.0),)
    figure = (
        Panel(
            "Transformer by positions", SCORE_LABEL,
            points=("score: learned", "score: sinusoidal"),
        ),
    )  # fmt: skip
    limits = (
        "Learned positions need data: with few sequences, positions near the maximum length are rarely trained. Beyond "
        "the trained length, see claim 26."
    )
    recipe: ClassVar = {"small": "dates-transformer", "full": "multi30k-transformer"}
    factors: ClassVar = {"model.position": ("learned", "sinusoidal")}
    labels: ClassVar = {"position=learned": "learned", "position=sinusoidal": "sinusoidal"}
    metric: ClassVar = {"small": "exact", "full": "bleu_lowercased"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_TRANSFORMER, "full": FULL_TRANSFORMER}
