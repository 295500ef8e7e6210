"""Claim 47: pre-training helps, and a single layer on the vector of [CLS] is enough for a classifier."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim, complete
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.pretraining.contextual import minilm_folder
from qkv.experiments.claims.verdict import Difference
from qkv.experiments.sweep import Sweep, SweepResult
from qkv.registry import register

SMALL = ("data.size=400", "model.max_length=48", "train.batch_size=512", "train.warmup=10", "train.valid_size=100")
SMALL_SCRATCH = (
    *SMALL, "data.tokenizer.vocab_size=4000", "model.preset=tiny", "train.epochs=8", "train.lr=5e-4",
    "train.validate_every=1000",
)  # fmt: skip
SMALL_FINETUNE = (*SMALL, "train.epochs=2", "train.lr=1e-4", "train.validate_every=1000")


@register("claim", "pretraining-helps")
class PretrainingHelps(SweepClaim):
    """Accuracy of a sentiment classifier fine-tuned from a pretrained encoder, and of one trained from scratch."""

    number = 47
    title = "Pre-training helps, with a single layer on [CLS] as the classifier"
    statement = (
        "An encoder that was pre-trained on text without labels becomes a better classifier than one trained from "
        "scratch on the labelled texts alone, with nothing but a single layer on the vector of [CLS] added."
    )
    notes = (Note("003", "BERT model"),)
    equation = "p = softmax(W tanh(W_p h_[CLS] + b_p) + b);   h from pretrained or from random weights"
    source = ("src/qkv/models/bert.py::Bert", "src/qkv/training/finetune.py::load_pretrained")
    hypothesis = (
        "With the same labelled sentences, the accuracy is higher with pre-training. At small scale there are 400 "
        "sentences, and the pretrained encoder is a released one (MiniLM, a BERT with six layers), since a minute of "
        "pre-training on two cores teaches the frequencies of words only. At full scale the encoder is a run of "
        "imdb-bert, and both classifiers have the same architecture and settings."
    )
    criteria = (Difference("accuracy: pre-trained", "accuracy: from scratch", low=0.0),)
    figure = (
        Panel(
            "Polarity of sentences of film reviews", "accuracy, %",
            points=("accuracy: pre-trained", "accuracy: from scratch"),
        ),
    )  # fmt: skip
    limits = (
        "More labelled texts reduce the gap. At small scale the classifier from scratch has two layers, trained for "
        "more epochs: six layers do not learn from so few sentences. MiniLM was pre-trained on more than masked words."
    )
    recipe: ClassVar = {"small": "polarity-bert", "full": "polarity-bert"}
    factors: ClassVar = {"model.pooler": ("true",)}
    labels: ClassVar = {"pooler=true": "from scratch"}
    overrides: ClassVar = {"small": SMALL_SCRATCH, "full": ()}

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        def run(name: str, recipe: str, seeds: Sequence[int], *overrides: str) -> SweepResult:
            sweep = Sweep(recipe, self.factors, seeds, overrides)
            return complete(sweep, folder / name, device)

        folders = {seed: minilm_folder() for seed in seeds}
        if scale == "full":
            pretraining = run("pretraining", "imdb-bert", seeds)
            folders = {run.seed: folder / "pretraining" / "runs" / run.trial.name for run in pretraining.outcomes}
        finetune = SMALL_FINETUNE if scale == "small" else ()
        results = {"from scratch": run("scratch", self.recipe[scale], seeds, *self.overrides[scale]).outcomes}
        results["pre-trained"] = [
            outcome
            for seed in seeds
            for outcome in run(
                f"pretrained-{seed}", self.recipe[scale], (seed,), *finetune, f"init={folders[seed]}"
            ).outcomes
        ]
        values = {
            f"accuracy: {name}": tuple(100 * outcome.scores["accuracy"] for outcome in outcomes)
            for name, outcomes in results.items()
        }
        return Measurements(tuple(seeds), values)
