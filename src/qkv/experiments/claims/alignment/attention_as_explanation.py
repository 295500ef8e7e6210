"""Claim 40: attention as an explanation is questionable."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qkv.experiments.claims.alignment.explanations import METHODS, measure_explanations
from qkv.experiments.claims.claim import Note, Panel, RecipeClaim, Scale
from qkv.experiments.claims.dates import SMALL_GRU
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.interpret.explanation import build_pipeline
from qkv.registry import register
from qkv.training.run import Run

EXAMPLES: dict[Scale, int] = {"small": 50, "full": 200}  # of the validation split
ADVERSARIAL: dict[Scale, int] = {"small": 20, "full": 50}  # of these, for the classifier
SMALL_LSTM = ("model.embedding_dim=64", "model.hidden_dim=32", "train.epochs=3", "train.lr=5e-3")
LABELS = {method: method.replace("_", " ") for method in METHODS}
ACCURACY = {"dates": "exact", "classifier": "accuracy"}


@register("claim", "attention-as-explanation")
class AttentionAsExplanation(RecipeClaim):
    """Tests of the faithfulness of attention in a translator of dates and in a classifier of sentences."""

    number = 40
    title = "Attention as an explanation is questionable"
    statement = (
        "Attention weights are used to explain what a network has learned. It is questionable whether they do: in some "
        "models, the inputs with the largest weights are not those that the output depends on."
    )
    notes = (Note("002", "Attention visualized"),)
    equation = (
        "drop = mean over k of p(x) - p(x without the k first inputs),   k = 1, 5, 10, 20 and 50 %\n"
        "other weights: TVD(p(a), p(permuted a));   max JSD(a, a') with TVD(p(a), p(a')) <= 0.01"
    )
    source = (
        "src/qkv/interpret/faithfulness.py::measure_faithfulness",
        "src/qkv/interpret/reweighting.py::reweight",
        "src/qkv/experiments/claims/alignment/explanations.py::measure_explanations",
    )
    hypothesis = (
        "In an LSTM with attention pooling that classifies the polarity of sentences, attention fails four tests. "
        "Without the words that the gradient ranks first, the probability of the label drops by at least 0.1 more than "
        "without the most attended ones. Permuted weights change the output by less than 0.1. Weights with a "
        "divergence above 0.35, half of the maximum, give the same output. The rankings of two seeds agree less by "
        "attention than by the gradient, by at least 0.1 of Kendall's tau. In a GRU that translates dates, each digit "
        "needs a few characters, and attention is the main path to them: without the most attended characters, the "
        "probability of a digit drops by at least 0.2 more than without random ones, and permuted weights change the "
        "output by more than 0.3. This shows that the tests can be passed. One larger model of each kind had been "
        "tested before the ranges were chosen (docs/faithfulness.md)."
    )
    criteria = (
        Difference("drop, classifier: gradient", "drop, classifier: attention", low=0.1),
        Mean("change with permuted weights: classifier", high=0.1),
        Mean("divergence with the same output: classifier", low=0.35),
        Difference("agreement of seeds, classifier: gradient", "agreement of seeds, classifier: attention", low=0.1),
        Difference("drop, dates: attention", "drop, dates: random", low=0.2),
        Mean("change with permuted weights: dates", low=0.3),
    )
    figure = (
        *(
            Panel(title, f"drop of the probability without the first {units}",
                  points=tuple(f"drop, {model}: {LABELS[method]}" for method in METHODS))
            for title, units, model in (
                ("Classifier of sentences", "words", "classifier"), ("Translator of dates", "characters", "dates"),
            )
        ),
        Panel(
            "Permuted attention weights", "change of the output (TVD)",
            points=("change with permuted weights: classifier", "change with permuted weights: dates"),
        ),
        Panel(
            "Classifiers of two seeds", "agreement of rankings (Kendall's tau)",
            points=tuple(f"agreement of seeds, classifier: {LABELS[method]}" for method in METHODS),
        ),
    )  # fmt: skip
    limits = (
        "Attention is never negative, so that it cannot tell words for the label from words against it; the gradient "
        "can, and the drop rewards that. Texts without some words are unlike those of the training. Three pairs of "
        "seeds share models, so that the interval of the agreement is too narrow. Other classifiers can differ, above "
        "all if few words carry the label."
    )
    conditions: ClassVar = {
        "small": {"classifier": ("polarity-lstm-attention", *SMALL_LSTM), "dates": ("dates-gru", *SMALL_GRU)},
        "full": {"classifier": ("polarity-lstm-attention",), "dates": ("dates-gru",)},
    }
    overrides: ClassVar = {"small": (), "full": ()}

    exclusive = True

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        values: dict[str, tuple[float, ...]] = {}
        for model, result in self.run_sweeps(scale, seeds, folder, device).items():
            runs = [folder / "runs" / outcome.trial.name for outcome in result.outcomes]
            sources = [pair.source for pair in Run.open(runs[0]).data().splits["valid"][: EXAMPLES[scale]]]
            pipelines = [build_pipeline(run, device) for run in runs]
            adversarial = ADVERSARIAL[scale] if model == "classifier" else 0
            measured = [
                measure_explanations(pipeline, other, sources, adversarial)
                for pipeline, other in zip(pipelines, (*pipelines[1:], pipelines[0]), strict=True)
            ]
            names = {
                **{f"drop, {model}: {label}": f"drop {method}" for method, label in LABELS.items()},
                **{f"agreement of seeds, {model}: {label}": f"agreement {method}" for method, label in LABELS.items()},
                f"change with permuted weights: {model}": "permuted",
            }
            if adversarial:
                names[f"divergence with the same output: {model}"] = "adversarial"
            for name, key in names.items():
                values[name] = tuple(row[key] for row in measured)
            values[f"accuracy: {model}"] = tuple(100 * o.scores[ACCURACY[model]] for o in result.outcomes)
        return Measurements(tuple(seeds), values)
