"""Claim 19: a bilinear score of reduced rank has fewer parameters."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from qkv.attention import Bilinear, LowRankBilinear
from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.dates import SMALL_GRU
from qkv.experiments.claims.measurements import Measurements, Series
from qkv.experiments.claims.verdict import Difference, Ratio
from qkv.registry import register

DIM, RANKS = 512, (8, 16, 32, 64, 128, 256, 512)
LOW_RANK = '{ name = "low_rank", rank = 4 }'  # an eighth of the 32 features of the small model


@register("claim", "reduced-rank")
class ReducedRank(SweepClaim):
    """Parameters of bilinear scores by rank, and quality of a translator with full and with reduced rank."""

    number = 19
    title = "A bilinear score of reduced rank has fewer parameters"
    statement = (
        "Writing the matrix of a bilinear score as a product of two narrow matrices reduces its parameters. The note "
        "does not mention a price in quality."
    )
    notes = (Note("004", "Variants"),)
    equation = "q W k with W = U^T V:   2 r d parameters instead of d^2"
    source = ("src/qkv/attention/score.py::LowRankBilinear", "src/qkv/attention/score.py::Bilinear")
    hypothesis = (
        "At rank d / 8, the score has a quarter of the parameters (ratio 0.24 to 0.26 for d = 512), and a translator "
        "of dates loses less than 5 % of exact match."
    )
    criteria = (
        Ratio("parameters: rank 64", "parameters: full rank", low=0.24, high=0.26),
        Difference("exact match: rank d / 8", "exact match: full rank", low=-5.0),
    )
    figure = (
        Panel(
            "Parameters of the score, d = 512", "parameters",
            ("parameters by rank: low rank", "parameters by rank: full rank"),
            x_label="rank", log_x=True, log_y=True,
        ),
        Panel(
            "Dates translated exactly", "exact match, %",
            points=("exact match: full rank", "exact match: rank d / 8"),
        ),
    )  # fmt: skip
    limits = "From rank d / 2 on there is nothing to save. Other tasks can need scores of higher rank than dates."
    recipe: ClassVar = {"small": "dates-gru", "full": "dates-gru"}
    factors: ClassVar = {"model.score": ("bilinear", LOW_RANK)}
    labels: ClassVar = {"score=bilinear": "full rank", f"score={LOW_RANK}": "rank d / 8"}
    metric: ClassVar = {"small": "exact", "full": "exact"}
    quantity = "exact match"
    overrides: ClassVar = {"small": SMALL_GRU, "full": ("model.hidden_dim=32",)}

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        trained = super().measure(scale, seeds, folder, device)
        full = float(sum(weight.numel() for weight in Bilinear(DIM, DIM).parameters()))
        low = [sum(weight.numel() for weight in LowRankBilinear(DIM, DIM, rank).parameters()) for rank in RANKS]
        x, count = tuple(map(float, RANKS)), len(seeds)
        series = {
            "parameters by rank: low rank": Series(x, (tuple(map(float, low)),) * count),
            "parameters by rank: full rank": Series(x, ((full,) * len(x),) * count),
        }
        values = {
            "parameters: rank 64": (float(low[RANKS.index(64)]),) * count,
            "parameters: full rank": (full,) * count,
        }
        return replace(trained, values={**trained.values, **values}, series=series)
