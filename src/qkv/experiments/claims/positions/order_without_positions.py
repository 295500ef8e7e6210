"""Claim 23: self-attention is permutation-equivariant, so order is lost without positions."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch

from qkv.attention import Sinusoidal
from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.dates import SMALL_TRANSFORMER
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.nn.multi_head import MultiHeadAttention
from qkv.registry import register

LENGTH, DIM, HEADS = 32, 64, 4


@register("claim", "order-without-positions")
class OrderWithoutPositions(SweepClaim):
    """Error of f(permuted x) = permuted f(x), and exact match of date translators with and without positions."""

    number = 23
    title = "Without positions, self-attention does not know the order of its input"
    statement = (
        "Permuting the input of self-attention permutes its output in the same way. A model without positions "
        "therefore cannot use the order of words, and fails where the order matters."
    )
    notes = (
        Note("001", "Problem 1: Sequence order"),
        Note("002", "Transformers are not sequential"),
        Note("003", "Transformers position encoding"),
    )
    equation = "MultiHead(P x) = P MultiHead(x)   for every permutation P;   not so for x + PE"
    source = ("src/qkv/nn/multi_head.py::MultiHeadAttention", "src/qkv/attention/encoding.py::Sinusoidal")
    hypothesis = (
        "Without positions both sides are equal up to rounding in float64 (relative error below 1e-12); with "
        "sinusoids they differ by more than 1 %. A Transformer that translates dates, whose digits are read "
        "differently in another order, loses at least 30 % of exact match without positions."
    )
    criteria = (
        Mean("equivariance error: without positions", high=1e-12),
        Mean("equivariance error: sinusoidal", low=0.01),
        Difference("exact match: sinusoidal", "exact match: without positions", low=30.0),
    )
    figure = (
        Panel(
            "Dates translated exactly", "exact match, %",
            points=("exact match: sinusoidal", "exact match: without positions"),
        ),
        Panel(
            "Equivariance error", "relative difference of f(P x) and P f(x)", log_y=True,
            points=("equivariance error: sinusoidal", "equivariance error: without positions"),
        ),
    )  # fmt: skip
    limits = (
        "The causal mask of the decoder keeps the order of the target, so only the source is unordered. Where the "
        "words alone determine the answer, positions matter less."
    )
    recipe: ClassVar = {"small": "dates-transformer", "full": "dates-transformer"}
    factors: ClassVar = {"model.position.name": ("sinusoidal", "none")}
    labels: ClassVar = {"position=sinusoidal": "sinusoidal", "position=none": "without positions"}
    metric: ClassVar = {"small": "exact", "full": "exact"}
    quantity = "exact match"
    overrides: ClassVar = {"small": SMALL_TRANSFORMER, "full": ()}

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        trained = super().measure(scale, seeds, folder, device)
        errors = {
            "equivariance error: sinusoidal": tuple(equivariance_error(seed, positions=True) for seed in seeds),
            "equivariance error: without positions": tuple(equivariance_error(seed, positions=False) for seed in seeds),
        }
        return replace(trained, values={**trained.values, **errors})


def equivariance_error(seed: int, *, positions: bool) -> float:
    """Return |f(P x) - P f(x)| / |f(x)| of a layer with random weights, in float64."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(DIM, HEADS).double()
    x, order = torch.randn(1, LENGTH, DIM, dtype=torch.float64), torch.randperm(LENGTH)
    encoding = Sinusoidal(DIM).double()

    def f(x: torch.Tensor) -> torch.Tensor:
        return layer(encoding.add_to(x) if positions else x)[0]

    with torch.no_grad():
        return max(float((f(x[:, order]) - f(x)[:, order]).norm() / f(x).norm()), 1e-17)
