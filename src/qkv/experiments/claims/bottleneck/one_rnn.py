"""Claim 5: one RNN over source, <TRANSLATE> and target does not work."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from qkv.errors import InputError
from qkv.experiments.claims.bottleneck.single_rnn import SMALL_SINGLE_RNN, SMALL_WITH_ATTENTION
from qkv.experiments.claims.claim import Note, Panel, RecipeClaim, Scale
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.multi30k import FULL_RNN, SCORE_LABEL
from qkv.experiments.claims.verdict import Mean
from qkv.registry import register

WORKS = "encoder-decoder with attention"


@register("claim", "one-rnn")
class OneRNN(RecipeClaim):
    """Quality of one RNN that reads the source, <TRANSLATE> and the target, relative to a model that works."""

    number = 5
    title = "One RNN over source, <TRANSLATE> and target does not work"
    statement = (
        "A single RNN that first reads the source, then a tag <TRANSLATE>, and then generates the target does not "
        "work: one state has to hold the source and the output so far, in two languages."
    )
    notes = (Note("002", "Sequence to sequence and attention"),)
    equation = "h_t = RNN(h_{t-1}, E[x_t]),   x = (source_1 ... source_n, <TRANSLATE>, target_1 ... target_m)"
    source = ("src/qkv/models/single_rnn.py::SingleRNN",)
    hypothesis = (
        "With the same data, seeds and training settings, its score is less than half of the score of an "
        "encoder-decoder with attention: exact match of dates at small scale, with 62,000 and 73,000 parameters; BLEU "
        "of Multi30k at full scale."
    )
    criteria = (Mean("relative score: one RNN", high=50.0),)
    figure = (
        Panel(
            "One RNN against an encoder-decoder", SCORE_LABEL,
            points=("score: one RNN", f"score: {WORKS}"),
        ),
    )  # fmt: skip
    limits = (
        "A wider state or longer training helps the single RNN, and short inputs need less memory. With attention over "
        "its own past, one network for both languages works: that is a decoder-only Transformer."
    )
    conditions: ClassVar = {
        "small": {"one RNN": SMALL_SINGLE_RNN, WORKS: SMALL_WITH_ATTENTION},
        "full": {"one RNN": ("multi30k-single-rnn",), WORKS: ("multi30k-bahdanau",)},
    }
    metric: ClassVar = {"small": "exact", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": (), "full": FULL_RNN}

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        trained = super().measure(scale, seeds, folder, device)
        scores, working = trained.value("score: one RNN"), trained.value(f"score: {WORKS}")
        if min(working) == 0:
            raise InputError("the encoder-decoder with attention did not learn: nothing to compare with")
        relative = tuple(100 * score / other for score, other in zip(scores, working, strict=True))
        return replace(trained, values={**trained.values, "relative score: one RNN": relative})
