"""Claim 49: a learned mix of the layers of ELMo is better than the top layer, and than vectors without context."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qkv.datasets.corpora.text.sentence_polarity import SentencePolarity
from qkv.datasets.corpora.text.ud_english_ewt import UDEnglishEWT
from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.measurements import Measurements, Series
from qkv.experiments.claims.pretraining.layer_probes import LAYERS, LayerProbes
from qkv.experiments.claims.verdict import Mean
from qkv.experiments.sweep import MeasureFunction, Sweep
from qkv.registry import register

PROBES = {"small": LayerProbes(sentences=1000, tests=500), "full": LayerProbes(sentences=4000, tests=1000)}
TASKS = ("parts of speech", "polarity")
MIX, *SINGLE = LAYERS
SMALL_ELMO = (
    "data.name=movie_reviews", "data.size=300", "data.tokenizer.vocab_size=2000", "model.dim=64",
    "model.hidden_dim=128", "model.filters=[[1,16],[2,32],[3,64]]", "model.max_characters=16", "task.length=32",
    "train.batch_size=1024", "train.epochs=1", "train.lr=3e-3", "train.warmup=50", "train.validate_every=1000",
    "train.valid_size=50",
)  # fmt: skip


@register("claim", "layer-mix")
class LayerMix(SweepClaim):
    """Accuracy of linear classifiers of the frozen layers of a bidirectional language model."""

    number = 49
    title = "A learned mix of the layers of ELMo is better than its top layer"
    statement = (
        "ELMo represents a word by a learned linear combination of the layers of a bidirectional language model, which "
        "is a function of the entire sentence. This is better than the top layer alone, and than word vectors without "
        "context."
    )
    notes = (Note("003", "ELMo model"),)
    equation = "ELMo_t = sum_j s_j y^j_t,   s = softmax(a);   top layer: y^L_t;   word vectors: y^0_t"
    source = (
        "src/qkv/models/elmo.py::Elmo.representations",
        "src/qkv/models/elmo.py::ScalarMix",
        "src/qkv/experiments/claims/pretraining/layer_probes.py::mix_probe",
    )
    hypothesis = (
        "A small ELMo with two LSTM layers is trained as a language model on film reviews, and frozen. A linear "
        "classifier of its vectors finds the part of speech of words, another the polarity of sentences from the mean "
        "over their words. With the learned mix, the accuracy of both is higher than with the top layer. It is higher "
        "than with the word vectors, too, for parts of speech, which depend on the context, by at least one point. "
        "All are compared on the same language model, so that the gain is measured for each seed."
    )
    criteria = (
        Mean("gain in parts of speech: over the top layer", low=0.0),
        Mean("gain in parts of speech: over the word vectors", low=1.0),
        Mean("gain in polarity: over the top layer", low=0.0),
        Mean("gain in polarity: over the word vectors", low=0.0),
    )
    figure = (
        *(
            Panel(title, "accuracy, %", points=tuple(f"{task}: {name}" for name in LAYERS))
            for title, task in zip(("Parts of speech of web texts", "Polarity of sentences"), TASKS, strict=True)
        ),
        Panel(
            "Learned mix", "weight s", tuple(f"weights: {task}" for task in TASKS), x_label="layer (0: word vectors)",
        ),
    )  # fmt: skip
    limits = (
        "At small scale the language model is trained for a minute on 300 reviews: its layers know little of the "
        "context, and it finds 67 % of the parts of speech. The polarity is tested on 500 sentences, with a standard "
        "error of two points; more sentences and seeds can decide about it. All words are in lower case. A network on "
        "top of the vectors can compute the context itself, and then needs less of it in the vectors."
    )
    recipe: ClassVar = {"small": "imdb-elmo", "full": "imdb-elmo"}
    factors: ClassVar = {"model.layers": ("2",)}
    labels: ClassVar = {"layers=2": "language model"}
    overrides: ClassVar = {"small": SMALL_ELMO, "full": ()}

    @classmethod
    def measure_function(cls, scale: Scale) -> MeasureFunction:
        return PROBES[scale]

    @classmethod
    def sweeps(cls, scale: Scale, seeds: Sequence[int]) -> dict[str, Sweep]:
        for data in (UDEnglishEWT(), SentencePolarity()):
            data.fetch()  # raises before the training if the files of a probe are missing
        return super().sweeps(scale, seeds)

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        (result,) = self.run_sweeps(scale, seeds, folder, device).values()
        rows = [outcome.scores for outcome in result.outcomes]
        values: dict[str, tuple[float, ...]] = {}
        series: dict[str, Series] = {}
        for task in TASKS:
            for name in LAYERS:
                values[f"{task}: {name}"] = tuple(100 * row[f"{task} {name}"] for row in rows)
            for name in SINGLE:
                gains = (100 * (row[f"{task} {MIX}"] - row[f"{task} {name}"]) for row in rows)
                values[f"gain in {task}: over the {name}"] = tuple(gains)
            weights = tuple(tuple(row[f"{task} weight {number}"] for number in range(3)) for row in rows)
            series[f"weights: {task}"] = Series((0.0, 1.0, 2.0), weights)
        return Measurements(tuple(seeds), values, series)
