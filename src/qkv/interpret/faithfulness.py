"""Tests of attributions: does removing the units that a method ranks first change the prediction?

Let p(x) be the probability of an output, and r_k the k units with the greatest scores:

    comprehensiveness_k = p(x) - p(x without r_k)      large if the units are necessary         (DeYoung et al. 2020)
    sufficiency_k       = p(x) - p(r_k alone)          small if the units are sufficient
    AOPC                = the mean over k = 1, 5, 10, 20 and 50 % of the units, rounded up

Rank agreement is Kendall's tau-b, and the effect of a head the drop of log p when its output is zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float as FloatArray

from qkv.attention import ablate
from qkv.attention.layers import select_layers
from qkv.interpret.attribution import Scores
from qkv.interpret.explainable import Explainable
from qkv.types import Bool, Float, Tensor

BINS = (0.01, 0.05, 0.1, 0.2, 0.5)  # fractions of the units


@dataclass(frozen=True)
class Faithfulness:
    """Comprehensiveness and sufficiency of the scores of one output, for each fraction of the units."""

    bins: tuple[float, ...]
    comprehensiveness: tuple[float, ...]
    sufficiency: tuple[float, ...]

    @property
    def aopc_comprehensiveness(self) -> float:
        """Mean comprehensiveness over the bins."""
        return sum(self.comprehensiveness) / len(self.bins)

    @property
    def aopc_sufficiency(self) -> float:
        """Mean sufficiency over the bins."""
        return sum(self.sufficiency) / len(self.bins)


def measure_faithfulness(prediction: Explainable, scores: Scores, bins: Sequence[float] = BINS) -> list[Faithfulness]:
    """Return the comprehensiveness and sufficiency of the scores of each output."""
    outputs, units = scores.shape
    kept = torch.stack([top_units(row, math.ceil(fraction * units)) for row in scores for fraction in bins])
    p = prediction.log_probs(torch.cat((prediction.everything(), ~kept, kept))).double().exp()
    whole, parts = p[0], p[1:].view(2, outputs, len(bins), outputs)
    parts = parts[:, torch.arange(outputs), :, torch.arange(outputs)]  # [output, 2, bins]: each output's own variants
    drops = (whole[:, None, None] - parts).tolist()
    return [Faithfulness(tuple(bins), tuple(removed), tuple(alone)) for removed, alone in drops]


def top_units(scores: Float[Tensor, "units"], count: int) -> Bool[Tensor, "units"]:
    """Return which units have the `count` greatest scores; of equal ones, the first."""
    order = scores.argsort(descending=True, stable=True)
    return torch.zeros(len(scores), dtype=torch.bool).index_fill(0, order[:count], True)


def kendall_tau(a: FloatArray[np.ndarray, "units"], b: FloatArray[np.ndarray, "units"]) -> float:
    """Return Kendall's tau-b of two rankings; NaN if one of them has only ties.

    tau_b = (concordant - discordant) / sqrt((pairs - ties in a) (pairs - ties in b))
    """
    first, second = (np.sign(x[:, None] - x[None, :]) for x in (np.asarray(a, float), np.asarray(b, float)))
    untied = math.sqrt(float((first**2).sum())) * math.sqrt(float((second**2).sum()))
    return float((first * second).sum()) / untied if untied else math.nan


def rank_agreement(a: Scores, b: Scores) -> float:
    """Return Kendall's tau-b between two methods or models, averaged over the outputs."""
    taus = [kendall_tau(x, y) for x, y in zip(a.numpy(), b.numpy(), strict=True)]
    defined = [tau for tau in taus if not math.isnan(tau)]
    return sum(defined) / len(defined) if defined else math.nan


def head_effects(prediction: Explainable) -> dict[tuple[str, int], Float[Tensor, "outputs"]]:
    """Return by layer and head the drop of each output's log-probability when the head is ablated."""
    whole = prediction.log_probs(prediction.everything())[0]
    effects = {}
    for name, attend in select_layers(prediction.model, None).items():
        for head in range(attend.heads or 1):
            with ablate(prediction.model, name, [head]):
                effects[name, head] = whole - prediction.log_probs(prediction.everything())[0]
    return effects
