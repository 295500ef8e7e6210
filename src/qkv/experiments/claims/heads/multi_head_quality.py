"""Claim 21: several heads are better than one."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_TRANSFORMER
from qkv.experiments.claims.multi30k import FULL_TRANSFORMER, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "multi-head-quality")
class MultiHeadQuality(SweepClaim):
    """Quality of a Transformer with 1 and 4 heads of the same total width."""

    number = 21
    title = "Several heads are better than one head"
    statement = (
        "Several attention heads can attend to different parts of a sequence, and encode more information than a "
        "single head of the same total width."
    )
    notes = (Note("000", "Multi-Head Attention"), Note("003", "Transformers multi-head attention"))
    equation = "MultiHead(x) = Concat(Z_1 ... Z_h) W_O,   Z_i = attend(x W_Qi, x W_Ki, x W_Vi), each of width d / h"
    source = ("src/qkv/nn/multi_head.py::MultiHeadAttention", "src/qkv/models/transformer.py::Transformer")
    hypothesis = (
        "With the same data, seeds, training settings and parameters, the score of 4 heads is higher than that of 1 "
        "head: exact match of dates at small scale, BLEU of Multi30k at full scale."
    )
    criteria = (Difference("score: 4 heads", "score: 1 head", low=0.0),)
    figure = (
        Panel(
            "Transformers of equal width", SCORE_LABEL,
            points=("score: 1 head", "score: 4 heads"),
        ),
    )  # fmt: skip
    limits = "A task that needs only one position at a time does not profit from several heads."
    recipe: ClassVar = {"small": "dates-transformer", "full": "multi30k-transformer"}
    factors: ClassVar = {"model.heads": ("1", "4")}
    labels: ClassVar = {"heads=1": "1 head", "heads=4": "4 heads"}
    metric: ClassVar = {"small": "exact", "full": "bleu_lowercased"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_TRANSFORMER, "full": FULL_TRANSFORMER}
