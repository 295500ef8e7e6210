"""Claim 34: a decoder trained with a view of the future fails at test time."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_TRANSFORMER
from qkv.experiments.claims.multi30k import FULL_TRANSFORMER, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "causal-training")
class CausalTraining(SweepClaim):
    """Quality of generated text after training with and without the causal mask."""

    number = 34
    title = "A decoder trained with a view of the future fails at test time"
    statement = (
        "A decoder that can attend to later words during training copies the word that it should predict, and fails"
        " when it has to generate text without them."
    )
    notes = (Note("001", "Problem 3: looking into the future"),)
    equation = (
        "training with a mask: p(y_t | y_1 ... y_{t-1}, x);   without: p(y_t | y_1 ... y_n, x)\n"
        "test: y_t from y_1 ... y_{t-1} and x"
    )
    source = ("src/qkv/attention/mask.py::Causal", "src/qkv/models/transformer.py::DecoderBlock")
    hypothesis = (
        "With the same data, seeds and training settings, the score of generated text after training with the "
        "causal mask is at least 20 points higher than without it (exact match of dates in percent at small scale, "
        "BLEU of Multi30k at full scale)."
    )
    criteria = (Difference("score: with causal mask", "score: without mask", low=20.0),)
    figure = (
        Panel(
            "Training with and without the causal mask", SCORE_LABEL,
            points=("score: with causal mask", "score: without mask"),
        ),
    )  # fmt: skip
    limits = (
        "Nothing is expected to change it for autoregressive generation. Models that fill in masked words are "
        "trained without the mask on purpose."
    )
    recipe: ClassVar = {"small": "dates-transformer", "full": "multi30k-transformer"}
    factors: ClassVar = {"model.causal": ("true", "false")}
    labels: ClassVar = {"causal=true": "with causal mask", "causal=false": "without mask"}
    metric: ClassVar = {"small": "exact", "full": "bleu_lowercased"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_TRANSFORMER, "full": FULL_TRANSFORMER}
