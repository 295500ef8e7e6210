"""Claim 30: without feed-forward layers, a Transformer only averages."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_TRANSFORMER
from qkv.experiments.claims.multi30k import FULL_TRANSFORMER, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "feed-forward")
class FeedForwardHelps(SweepClaim):
    """Quality of a Transformer with and without feed-forward networks."""

    number = 30
    title = "Without feed-forward networks, self-attention only averages"
    statement = (
        "Self-attention has no elementwise nonlinearity: more layers only average the values again. A feed-forward "
        "network after each attention layer makes the model better."
    )
    notes = (Note("001", "Problem 2: Non-linearities"), Note("004", "Issues: lack of non-linearity"))
    equation = "x = x + MHA(LN(x)),   x = x + W_2 f(W_1 LN(x));   without: the second sum is left out"
    source = ("src/qkv/nn/feed_forward.py::FeedForward", "src/qkv/models/transformer.py::EncoderBlock")
    hypothesis = (
        "With the same data, seeds and training settings, the score with feed-forward networks is higher (exact "
        "match of dates in percent at small scale, BLEU of Multi30k at full scale)."
    )
    criteria = (Difference("score: with feed-forward", "score: without feed-forward", low=0.0),)
    figure = (
        Panel(
            "Transformer with and without feed-forward networks", SCORE_LABEL,
            points=("score: with feed-forward", "score: without feed-forward"),
        ),
    )  # fmt: skip
    limits = (
        "The model without feed-forward networks also has fewer parameters; attention weights and normalization are"
        " nonlinear, so that it is more than an average."
    )
    recipe: ClassVar = {"small": "dates-transformer", "full": "multi30k-transformer"}
    factors: ClassVar = {"model.ffn": ("position_wise", "none")}
    labels: ClassVar = {"ffn=position_wise": "with feed-forward", "ffn=none": "without feed-forward"}
    metric: ClassVar = {"small": "exact", "full": "bleu_lowercased"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_TRANSFORMER, "full": FULL_TRANSFORMER}
