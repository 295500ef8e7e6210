"""Claim 31: residual connections allow deep models."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_TRANSFORMER
from qkv.experiments.claims.multi30k import FULL_TRANSFORMER, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "residuals")
class ResidualsAllowDepth(SweepClaim):
    """Quality of a Transformer with a deep encoder, with and without residual connections."""

    number = 31
    title = "Residual connections allow deep models"
    statement = (
        "Residual connections let gradients pass all layers, so that deep models can be trained; without them, they"
        " cannot."
    )
    notes = (Note("001", "Residual connections"), Note("004", "Residual connections"))
    equation = "x_l = x_{l-1} + Layer(x_{l-1});   without: x_l = Layer(x_{l-1})"
    source = ("src/qkv/nn/residual_norm.py::ResidualNorm", "src/qkv/models/transformer.py::EncoderBlock")
    hypothesis = (
        "In a Transformer with four encoder layers at small scale, and six at full scale, with the same data, seeds"
        " and training settings, the score with residual connections is at least 20 points higher (exact match of "
        "dates in percent at small scale, BLEU of Multi30k at full scale)."
    )
    criteria = (Difference("score: with residuals", "score: without residuals", low=20.0),)
    figure = (
        Panel(
            "Deep Transformer with and without residuals", SCORE_LABEL,
            points=("score: with residuals", "score: without residuals"),
        ),
    )  # fmt: skip
    limits = "Shallow models, or an initialization that preserves the variance of each layer, need residuals less."
    recipe: ClassVar = {"small": "dates-transformer", "full": "multi30k-transformer"}
    factors: ClassVar = {"model.residual": ("true", "false")}
    labels: ClassVar = {"residual=true": "with residuals", "residual=false": "without residuals"}
    metric: ClassVar = {"small": "exact", "full": "bleu_lowercased"}
    quantity = "score"
    overrides: ClassVar = {
        "small": (*(s for s in SMALL_TRANSFORMER if "encoder_layers" not in s), "model.encoder_layers=4"),
        "full": (*FULL_TRANSFORMER, "model.encoder_layers=6"),
    }
