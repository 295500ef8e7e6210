"""Claim 47: pre-training helps, and a single layer on the vector of [CLS] is enough for a classifier."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim, complete
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.pretraining.contextual import minilm_folder
from qkv.experiments.claims.verdict import Difference
from qkv.experiments.sweep import Sweep
from qkv.registry import register

SMALL = ("data.size=400", "model.max_length=48", "train.batch_size=512", "train.warmup=10", "train.valid_size=100")
SMALL_SCRATCH = (
    *SMALL, "data.tokenizer.vocab_size=4000", "model.preset=tiny", "train.epochs=8", "train.lr=5e-4",
    "train.validate_every=1000",
)  # fmt: skip
SMALL_FINETUNE = (*SMALL, "train.epochs=2", "train.lr=1e-4", "train.validate_every=1000")

FROM_SCRATCH, PRETRAINED, PRETRAINING = "from scratch", "pre-trained", "pre-training"


@register("claim", "pretraining-helps")
class PretrainingHelps(SweepClaim):
    """Accuracy of a sentiment classifier fine-tuned from a pretrained encoder, and of one trained from scratch."""

    number = 47
    title = "Pre-training helps, with a single layer on [CLS] as the classifier"
    statement = (
        "An encoder that was pre-trained on text without labels becomes a better classifier than one trained from "
        "scratch on the labeled texts alone, with nothing but a single layer on the vector of [CLS] added."
    )
    notes = (Note("003", "BERT model"),)
    equation = "p = softmax(W tanh(W_p h_[CLS] + b_p) + b);   h from pretrained or from random weights"
    source = ("src/qkv/models/bert.py::Bert", "src/qkv/training/finetune.py::load_pretrained")
    hypothesis = (
        "With the same labeled sentences, the accuracy is higher with pre-training. At small scale there are 400 "
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
        "More labeled texts reduce the gap. At small scale the classifier from scratch has two layers, trained for "
        "more epochs: six layers do not learn from so few sentences. MiniLM was pre-trained on more than masked words."
    )
    recipe: ClassVar = {"small": "polarity-bert", "full": "polarity-bert"}
    factors: ClassVar = {"model.pooler": ("true",)}
    labels: ClassVar = {"pooler=true": "from scratch"}
    overrides: ClassVar = {"small": SMALL_SCRATCH, "full": ()}
    exclusive = True  # fine-tuning follows pre-training

    @classmethod
    def sweeps(cls, scale: Scale, seeds: Sequence[int]) -> dict[str, Sweep]:
        runs = {FROM_SCRATCH: cls._sweep(cls.recipe[scale], seeds, *cls.overrides[scale])}
        if scale == "small":
            return {
                **runs,
                PRETRAINED: cls._sweep(cls.recipe[scale], seeds, *SMALL_FINETUNE, f"init={minilm_folder()}"),
            }
        return {**runs, PRETRAINING: cls._sweep("imdb-bert", seeds)}

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        outcomes = {name: result.outcomes for name, result in self.run_sweeps(scale, seeds, folder, device).items()}
        if scale == "full":  # fine-tuning starts from runs, which have to be finished
            encoders = {run.seed: folder / "runs" / run.trial.name for run in outcomes.pop(PRETRAINING)}
            sweeps = [self._sweep(self.recipe[scale], (seed,), f"init={encoders[seed]}") for seed in seeds]
            outcomes[PRETRAINED] = [run for sweep in sweeps for run in complete(sweep, folder, device).outcomes]
        values = {
            f"accuracy: {name}": tuple(100 * run.scores["accuracy"] for run in runs) for name, runs in outcomes.items()
        }
        return Measurements(tuple(seeds), values)

    @classmethod
    def _sweep(cls, recipe: str, seeds: Sequence[int], *overrides: str) -> Sweep:
        return Sweep(recipe, cls.factors, seeds, overrides, shared=True)
