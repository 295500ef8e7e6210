"""Claim 28: relative positions help."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_TRANSFORMER
from qkv.experiments.claims.multi30k import FULL_TRANSFORMER, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "relative-positions")
class RelativePositions(SweepClaim):
    """Quality of a Transformer with relative positions and with sinusoidal absolute ones."""

    number = 28
    title = "Relative positions help"
    statement = (
        "Representing the distance between two words in their attention, instead of the position of each word, "
        "improves a Transformer (Shaw et al. 2018)."
    )
    notes = (Note("004", "Position representation"),)
    equation = "score(i, j) = q_i . (k_j + K[j - i]) / sqrt(d),   output_i = sum_j a_ij (v_j + V[j - i])"
    source = ("src/qkv/attention/relative.py::Relative", "src/qkv/attention/encoding.py::Sinusoidal")
    hypothesis = (
        "With the same data, seeds and training settings, the score with relative positions is higher than with "
        "sinusoids: exact match of dates at small scale, BLEU of Multi30k at full scale."
    )
    criteria = (Difference("score: relative", "score: sinusoidal", low=0.0),)
    figure = (
        Panel(
            "Transformer by positions", SCORE_LABEL,
            points=("score: relative", "score: sinusoidal"),
        ),
    )  # fmt: skip
    limits = "Relative positions are in self-attention only, so that attention to the source has no positions."
    recipe: ClassVar = {"small": "dates-transformer", "full": "multi30k-transformer"}
    factors: ClassVar = {"model.position": ("relative", "sinusoidal")}
    labels: ClassVar = {"position=relative": "relative", "position=sinusoidal": "sinusoidal"}
    metric: ClassVar = {"small": "exact", "full": "bleu_lowercased"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_TRANSFORMER, "full": FULL_TRANSFORMER}
