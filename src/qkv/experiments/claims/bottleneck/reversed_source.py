"""Claim 3: reversing the source helps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.cmudict import SMALL_CMUDICT
from qkv.experiments.claims.multi30k import FULL_RNN
from qkv.experiments.claims.verdict import Difference
from qkv.experiments.sweep import Evaluate, MeasureFunction
from qkv.registry import register
from qkv.training.run import Run


@dataclass(frozen=True)
class EvaluatePhonemes(Evaluate):
    """Scores of a run on a split, with the phoneme accuracy in percent, 100 (1 - phoneme error rate)."""

    def __call__(self, run: Run, device: str) -> Mapping[str, float]:
        scores = super().__call__(run, device)
        return {**scores, "phoneme accuracy": 100 * (1 - scores["per"])} if "per" in scores else scores


@register("claim", "reversed-source")
class ReversedSource(SweepClaim):
    """Quality of an encoder-decoder without attention on sources in their order, and reversed."""

    number = 3
    title = "Reversing the source helps"
    statement = (
        "If the source is reversed, its first words are near the first words of the target, and an encoder-decoder "
        "without attention translates better."
    )
    notes = (Note("002", "Sequence to sequence learning"),)
    equation = "encoder(x_n ... x_1) instead of encoder(x_1 ... x_n)"
    source = ("src/qkv/nn/encoders/source_encoders.py::RNNEncoder", "src/qkv/models/rnn_seq2seq.py::PlainDecoder")
    hypothesis = (
        "With the same data, seeds and training settings, a forward encoder without attention has a higher score on "
        "reversed sources. The orders of source and target must agree: phoneme accuracy of English words (CMUdict) at "
        "small scale, BLEU of Multi30k at full scale."
    )
    criteria = (Difference("score: reversed", "score: in order", low=0.0),)
    figure = (
        Panel(
            "Forward encoder without attention", {"small": "phoneme accuracy, %", "full": "BLEU"},
            points=("score: in order", "score: reversed"),
        ),
    )  # fmt: skip
    limits = (
        "Reversal helps the beginning of the target and harms its end. Where source and target have opposite orders, "
        "as in dates to ISO 8601, the argument predicts the contrary. Attention makes the order irrelevant."
    )
    recipe: ClassVar = {"small": "cmudict-plain", "full": "multi30k-plain"}
    factors: ClassVar = {"model.encoder.reverse": ("false", "true")}
    labels: ClassVar = {"reverse=false": "in order", "reverse=true": "reversed"}
    metric: ClassVar = {"small": "phoneme accuracy", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": (*SMALL_CMUDICT, "model.encoder.bidirectional=false"), "full": FULL_RNN}

    @classmethod
    def measure_function(cls, scale: Scale) -> MeasureFunction:
        return EvaluatePhonemes(cls.split)
