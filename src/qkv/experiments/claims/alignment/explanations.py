"""How faithful attention is to the predictions of a model, compared with other rankings of the input."""

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from qkv.interpret.attribution import AttributionOptions, Scores, attribute
from qkv.interpret.explainable import Explainable
from qkv.interpret.explanation import ExplainedPipeline, build_explainable
from qkv.interpret.faithfulness import measure_faithfulness, rank_agreement
from qkv.interpret.reweighting import permuted_change, reweight

METHODS = ("attention", "gradient", "leave_one_out", "random")
PREDICTABLE = "-"  # separator of ISO dates: an output that does not depend on the input
MAX_OUTPUTS = 3  # explained outputs of an example, chosen at random


def measure_explanations(
    pipeline: ExplainedPipeline, other: ExplainedPipeline, sources: Sequence[str], adversarial: int
) -> Mapping[str, float]:
    """Return the means over the sources of these values, by name:

    drop METHOD         AOPC comprehensiveness: drop of the probability without the units ranked first
    agreement METHOD    Kendall's tau with the ranking of the other model, if it predicts the same
    permuted            change of the output with permuted attention weights
    adversarial         divergence of other weights with the same output; only of the first `adversarial` sources
    """
    values: dict[str, list[float]] = defaultdict(list)
    for number, source in enumerate(sources):
        prediction = build_explainable(pipeline, source)
        rows = choose_outputs(prediction, number)
        if len(prediction.units) < 2 or not rows:
            continue
        prediction.select(rows)
        scores = rank_units(prediction, number)
        for method, ranking in scores.items():
            drops = [part.aopc_comprehensiveness for part in measure_faithfulness(prediction, ranking)]
            values[f"drop {method}"].append(fmean(drops))
        for method, tau in _agreements(build_explainable(other, source), prediction, scores, number).items():
            values[f"agreement {method}"].append(tau)
        values["permuted"].append(permuted_change(prediction, seed=number))
        if number < adversarial:
            values["adversarial"].append(reweight(prediction, seed=number).adversarial_jsd)
    return {name: fmean(numbers) for name, numbers in values.items()}


def choose_outputs(prediction: Explainable, seed: int) -> list[int]:
    """Return up to three random outputs other than separators."""
    numbers = [number for number, output in enumerate(prediction.outputs) if output.strip() != PREDICTABLE]
    return random.Random(seed).sample(numbers, min(MAX_OUTPUTS, len(numbers)))


def rank_units(prediction: Explainable, seed: int) -> dict[str, Scores]:
    """Return the scores of all methods."""
    return {method: attribute(prediction, method, AttributionOptions(seed=seed)) for method in METHODS}


def _agreements(
    compared: Explainable, prediction: Explainable, scores: Mapping[str, Scores], seed: int
) -> dict[str, float]:
    """Return Kendall's tau between two models by method; empty if their units or predictions differ."""
    if compared.units != prediction.units or compared.text != prediction.text:
        return {}
    compared.select(prediction.rows)
    others = rank_units(compared, seed + 1)
    taus = {method: rank_agreement(ranking, others[method]) for method, ranking in scores.items()}
    return {method: tau for method, tau in taus.items() if not math.isnan(tau)}
