"""Claim 39: the alignment matrix shows which words correspond."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from qkv.datasets.corpora.synthetic.dates import HELD_OUT, generate
from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.dates import SMALL_GRU
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.verdict import Mean
from qkv.registry import register


@register("claim", "alignment-matrix")
class AlignmentMatrix(SweepClaim):
    """Share of target tokens whose largest attention weight is on the part of the source that they come from."""

    number = 39
    title = "The alignment matrix shows which words correspond"
    statement = (
        "The matrix of attention weights explicitly shows which source words correspond to each target word, although "
        "no alignment is given in training."
    )
    notes = (Note("003", "Attention models"), Note("002", "Attention visualized"))
    equation = "accuracy = mean over target tokens t of [argmax_i a_ti is in the gold span of t]"
    source = (
        "src/qkv/metrics/alignment_metrics.py::alignment_accuracy",
        "src/qkv/datasets/corpora/synthetic/dates.py::Format.render",
    )
    hypothesis = (
        "Each digit of an ISO date comes from the year, the month or the day of the source. For at least 90 % of the "
        "digits, the largest weight is on a character of that part, with the attention of Bahdanau et al. and with "
        "that of Luong et al.; chance is the mean share of the part in the source."
    )
    criteria = (
        Mean("alignment accuracy: Bahdanau", low=90.0),
        Mean("alignment accuracy: Luong", low=90.0),
    )
    figure = (
        Panel(
            "Digits aligned with the part they come from", "alignment accuracy, %",
            points=("alignment accuracy: Bahdanau", "alignment accuracy: Luong", "alignment accuracy: chance"),
        ),
    )  # fmt: skip
    limits = (
        "States of a bidirectional encoder contain their neighbors, so that a decoder can attend next to the part it "
        "needs, and still be correct. More training gives sharper weights."
    )
    recipe: ClassVar = {"small": "dates-gru", "full": "dates-gru"}
    factors: ClassVar = {"model.decoder": ("bahdanau", "luong")}
    labels: ClassVar = {"decoder=bahdanau": "Bahdanau", "decoder=luong": "Luong"}
    metric: ClassVar = {"small": "alignment", "full": "alignment"}
    quantity = "alignment accuracy"
    overrides: ClassVar = {"small": SMALL_GRU, "full": ()}

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        trained = super().measure(scale, seeds, folder, device)
        shares = [
            100 * (stop - start) / len(pair.source)
            for pair in generate(HELD_OUT, split="valid")
            for start, stop in filter(None, pair.gold or ())
        ]
        chance = {"alignment accuracy: chance": (fmean(shares),) * len(seeds)}
        return replace(trained, values={**trained.values, **chance})
