"""Claim 32: layer normalization helps training."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_TRANSFORMER
from qkv.experiments.claims.multi30k import FULL_TRANSFORMER, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "layer-norm")
class LayerNormHelps(SweepClaim):
    """Quality of a Transformer with layer normalization before each layer, after each sum, and without."""

    number = 32
    title = "Layer normalization helps training"
    statement = "Normalizing the activations of each layer makes training easier and the model better."
    notes = (Note("001", "Layer normalization"), Note("004", "Layer normalization"))
    equation = "LN(x) = g (x - mean(x)) / std(x) + b;   pre: x + f(LN(x)),   post: LN(x + f(x)),   none: x + f(x)"
    source = ("src/qkv/nn/residual_norm.py::ResidualNorm", "src/qkv/models/transformer.py::EncoderBlock")
    hypothesis = (
        "With the same data, seeds and training settings, the scores with normalization before each layer and after"
        " each sum are higher than without (exact match of dates in percent at small scale, BLEU of Multi30k at "
        "full scale)."
    )
    criteria = (
        Difference("score: pre-norm", "score: without norm", low=0.0),
        Difference("score: post-norm", "score: without norm", low=0.0),
    )
    figure = (
        Panel(
            "Transformer with and without layer normalization", SCORE_LABEL,
            points=("score: pre-norm", "score: post-norm", "score: without norm"),
        ),
    )  # fmt: skip
    limits = (
        "The learning rate is that of the recipe, which was chosen with normalization: a smaller one can suit a "
        "model without it. Deeper models need normalization more."
    )
    recipe: ClassVar = {"small": "dates-transformer", "full": "multi30k-transformer"}
    factors: ClassVar = {"model.norm": ("pre", "post", "none")}
    labels: ClassVar = {"norm=pre": "pre-norm", "norm=post": "post-norm", "norm=none": "without norm"}
    metric: ClassVar = {"small": "exact", "full": "bleu_lowercased"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_TRANSFORMER, "full": FULL_TRANSFORMER}
