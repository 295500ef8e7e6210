"""Claim 55: input feeding helps."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_GRU
from qkv.experiments.claims.multi30k import FULL_RNN, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register

LUONG = ("model.decoder=luong", "model.score.name=bilinear")


@register("claim", "input-feeding")
class InputFeeding(SweepClaim):
    """Quality of a Luong decoder with and without its last attentional state as input."""

    number = 55
    title = "Input feeding helps"
    statement = (
        "Feeding the attention output of a step to the next step of the decoder, in addition to the previous word, "
        "improves the result: the decoder knows what it has attended to."
    )
    notes = (Note("001", "Sequence-to-sequence NMT with attention"),)
    equation = (
        "s_t = f(s_{t-1}, [y_{t-1} ; h~_{t-1}]),   h~_t = tanh(W [c_t ; s_t]);   without: s_t = f(s_{t-1}, y_{t-1})"
    )
    source = ("src/qkv/models/rnn_seq2seq.py::RNNSeq2Seq",)
    hypothesis = (
        "With the same data, seeds and training settings, the score with input feeding is higher: exact match of dates "
        "at small scale, BLEU of Multi30k at full scale."
    )
    criteria = (Difference("score: with input feeding", "score: without input feeding", low=0.0),)
    figure = (
        Panel(
            "Luong decoder with bilinear attention", SCORE_LABEL,
            points=("score: with input feeding", "score: without input feeding"),
        ),
    )  # fmt: skip
    limits = "Dates need little memory of what was attended to; longer outputs can profit more."
    recipe: ClassVar = {"small": "dates-gru", "full": "multi30k-luong-general"}
    factors: ClassVar = {"model.input_feeding": ("true", "false")}
    labels: ClassVar = {"input_feeding=true": "with input feeding", "input_feeding=false": "without input feeding"}
    metric: ClassVar = {"small": "exact", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": (*SMALL_GRU, *LUONG), "full": FULL_RNN}
