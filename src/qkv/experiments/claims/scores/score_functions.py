"""Claim 18: additive, dot and bilinear scores."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_GRU
from qkv.experiments.claims.multi30k import FULL_RNN, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "score-functions")
class ScoreFunctions(SweepClaim):
    """Quality of a translator with additive, dot and bilinear attention."""

    number = 18
    title = "Additive, dot and bilinear scores are alternatives of the same quality"
    statement = (
        "The notes present additive, dot-product and bilinear (general) scores as alternatives, of which none is "
        "generally better than the others."
    )
    notes = (Note("000", "Attention Mechanism"), Note("003", "Alignment scores"), Note("004", "Variants"))
    equation = "additive: v . tanh(W q + U k)     dot: q . k     bilinear: q W k"
    source = (
        "src/qkv/attention/score.py::Additive",
        "src/qkv/attention/score.py::Dot",
        "src/qkv/attention/score.py::Bilinear",
    )
    hypothesis = (
        "With the same data, seeds and training settings, the scores of the dot product and of the bilinear score "
        "differ from the additive one by less than 5 points: exact match of dates in percent at small scale, BLEU of "
        "Multi30k at full scale."
    )
    criteria = (
        Difference("score: dot", "score: additive", low=-5.0, high=5.0),
        Difference("score: bilinear", "score: additive", low=-5.0, high=5.0),
    )
    figure = (
        Panel(
            "Three score functions", SCORE_LABEL,
            points=("score: additive", "score: dot", "score: bilinear"),
        ),
    )  # fmt: skip
    limits = "A short training favors scores that learn fast; the dot product has no parameters to adapt."
    recipe: ClassVar = {"small": "dates-gru", "full": "multi30k-bahdanau"}
    factors: ClassVar = {"model.score.name": ("additive", "dot", "bilinear")}
    labels: ClassVar = {"score=additive": "additive", "score=dot": "dot", "score=bilinear": "bilinear"}
    metric: ClassVar = {"small": "exact", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_GRU, "full": (*FULL_RNN, "model.encoder.dim=512")}
