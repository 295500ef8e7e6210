"""Claim 43: a hierarchical attention network shows the sentences that are crucial for the label."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.documents.planted import measure_ranks
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.experiments.sweep import MeasureFunction
from qkv.registry import register

SMALL_HAN = (
    "data.size=600", "data.tokenizer.vocab_size=5000", "model.embedding_dim=50", "model.hidden_dim=25",
    "model.max_length=30", "model.max_words=25", "model.word_dropout=0.1", "train.batch_size=8192", "train.epochs=6",
    "train.lr=5e-3", "train.warmup=20", "train.ema=0.9", "train.validate_every=500", "train.valid_size=100",
)  # fmt: skip


@register("claim", "crucial-sentences")
class CrucialSentences(SweepClaim):
    """Rank of the attention weight of a sentence inserted into reviews, with a strong opinion and without one."""

    number = 43
    title = "A hierarchical attention network shows the crucial sentences"
    statement = (
        "The weights of a hierarchical attention network show which sentences of a document are crucial for its label."
    )
    notes = (Note("003", "Attention models"),)
    equation = (
        "a_i = softmax_i(u_i . u_s),   v = sum_i a_i h_i;   rank of sentence i = share of the others with a_j < a_i"
    )
    source = (
        "src/qkv/models/han.py::HAN",
        "src/qkv/experiments/claims/documents/planted.py::plant",
    )
    hypothesis = (
        "A sentence with a strong opinion, that of the label, is inserted at a random position into the first 12 "
        "sentences of a review. Its weight is above that of 75 % of the other sentences on average (by chance 50 %), "
        "and at least 10 points more than that of a sentence without opinion at the same position."
    )
    criteria = (
        Mean("rank of the weight: opinion", low=75.0),
        Difference("rank of the weight: opinion", "rank of the weight: no opinion", low=10.0),
    )
    figure = (
        Panel(
            "Attention to an inserted sentence", "other sentences with a lower weight, %",
            points=("rank of the weight: opinion", "rank of the weight: no opinion"),
        ),
    )  # fmt: skip
    limits = (
        "The inserted sentences have frequent words of opinion. Opinions that need the context are harder to find, and "
        "a network with a low accuracy has not learned what is crucial."
    )
    recipe: ClassVar = {"small": "movie-reviews-han", "full": "movie-reviews-han"}
    factors: ClassVar = {"model.pooling": ("attention",)}
    labels: ClassVar = {"pooling=attention": "attention"}
    overrides: ClassVar = {"small": SMALL_HAN, "full": ()}

    @classmethod
    def measure_function(cls, scale: Scale) -> MeasureFunction:
        return measure_ranks

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        (result,) = self.run_sweeps(scale, seeds, folder, device).values()
        values = {
            f"rank of the weight: {name}": tuple(outcome.scores[name] for outcome in result.outcomes)
            for name in ("opinion", "no opinion")
        }
        return Measurements(tuple(seeds), values)
