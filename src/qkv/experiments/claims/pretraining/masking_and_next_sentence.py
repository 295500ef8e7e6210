"""Claim 48: the 80/10/10 rule of masking matters, and so does next sentence prediction."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.pretraining.masked_lm_probes import measure_pretraining
from qkv.experiments.claims.verdict import Difference
from qkv.experiments.sweep import MeasureFunction, Sweep
from qkv.registry import register

QUANTITIES = {"masked": "masked tokens", "unchanged": "unchanged tokens", "next sentence": "next sentence probe"}
SMALL_BERT = (
    "data.name=movie_reviews", "data.size=700", "data.tokenizer.vocab_size=2000", "model.preset=tiny", "model.dim=64",
    "model.max_length=64", "task.length=64", "train.batch_size=2048", "train.epochs=1", "train.lr=3e-3",
    "train.warmup=50", "train.validate_every=400", "train.valid_size=50",
)  # fmt: skip


@register("claim", "masking-and-next-sentence")
class MaskingAndNextSentence(SweepClaim):
    """Ablations of BERT's pre-training: all selected tokens masked, and no next sentence prediction."""

    number = 48
    title = "The 80/10/10 rule and next sentence prediction matter"
    statement = (
        "A model that has only predicted [MASK] tokens does not predict words that are present in its input; random "
        "and unchanged tokens solve that. Next sentence prediction teaches relations between two passages."
    )
    notes = (Note("003", "BERT model"),)
    equation = (
        "15 % of the tokens are selected: 80 % of them -> [MASK], 10 % -> a random token, 10 % unchanged\n"
        "loss = -mean log p(token) - log p(the second passage follows the first)"
    )
    source = (
        "src/qkv/tasks/base/masking.py::mask_tokens",
        "src/qkv/tasks/base/masking.py::sentence_pairs",
        "src/qkv/experiments/claims/pretraining/masked_lm_probes.py::next_sentence_probe",
    )
    hypothesis = (
        "At positions whose token is in the input, the 80/10/10 rule predicts it at least 10 points more often than "
        "[MASK] alone. A linear classifier of the [CLS] vector tells whether a passage follows another more often "
        "after pre-training with next sentence prediction than without."
    )
    criteria = (
        Difference("unchanged tokens: BERT", "unchanged tokens: only [MASK]", low=10.0),
        Difference("next sentence probe: BERT", "next sentence probe: without NSP", low=0.0),
    )
    figure = tuple(
        Panel(title, "accuracy, %", points=tuple(f"{quantity}: {name}" for name in ("BERT", *others)))
        for title, quantity, others in (
            ("Tokens that are in the input", "unchanged tokens", ("only [MASK]",)),
            ("Masked tokens", "masked tokens", ("only [MASK]", "without NSP")),
            ("Does the passage follow? (linear probe)", "next sentence probe", ("without NSP",)),
        )
    )
    limits = (
        "At small scale the models learn little more than the frequencies of words: the one trained with [MASK] only "
        "has the same accuracy at masked and at unchanged tokens, as if it always predicted one frequent word. Longer "
        "training can change that, and the relations of passages, which are hardly learned yet. "
        "Fine-tuning on pairs of texts can show more than a linear probe."
    )
    recipe: ClassVar = {"small": "imdb-bert", "full": "imdb-bert"}
    factors: ClassVar = {"model.head": ("pretraining", "masked_lm")}
    labels: ClassVar = {"head=pretraining": "BERT", "head=masked_lm": "without NSP"}
    overrides: ClassVar = {"small": SMALL_BERT, "full": ()}

    @classmethod
    def measure_function(cls, scale: Scale) -> MeasureFunction:
        return measure_pretraining

    @classmethod
    def sweeps(cls, scale: Scale, seeds: Sequence[int]) -> dict[str, Sweep]:
        only_mask = (*cls.overrides[scale], "task.random_share=0")
        mask_shares = {"task.mask_share": ("1.0",)}
        masks = Sweep(cls.recipe[scale], mask_shares, seeds, only_mask, measure_pretraining, shared=True)
        return {**super().sweeps(scale, seeds), "masks": masks}

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        names = {**self.labels, "mask_share=1.0": "only [MASK]"}
        values: dict[str, list[float]] = {}
        for result in self.run_sweeps(scale, seeds, folder, device).values():
            for outcome in result.outcomes:
                for key, quantity in QUANTITIES.items():
                    name = f"{quantity}: {names[outcome.trial.label]}"
                    values.setdefault(name, []).append(100 * outcome.scores[key])
        return Measurements(tuple(seeds), {name: tuple(numbers) for name, numbers in values.items()})
