"""Claim 54: a bidirectional encoder helps."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_GRU
from qkv.experiments.claims.multi30k import FULL_RNN, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "bidirectional-encoder")
class BidirectionalEncoder(SweepClaim):
    """Quality of a translator with attention over a bidirectional encoder, and over a forward one of equal width."""

    number = 54
    title = "A bidirectional encoder helps"
    statement = (
        "The annotation of a word should include the words before and after it; an encoder that reads the source in "
        "both directions therefore translates better than one that reads it forward."
    )
    notes = (Note("003", "Attention models"),)
    equation = "h_i = [forward_i ; backward_i], each of half the width;   or h_i = forward_i of the whole width"
    source = ("src/qkv/nn/rnn.py::BiRNN", "src/qkv/models/rnn_seq2seq.py::RNNSeq2Seq")
    hypothesis = (
        "With the same data, seeds, training settings and width of h_i, the score of the bidirectional encoder is "
        "higher: exact match of dates at small scale, BLEU of Multi30k at full scale."
    )
    criteria = (Difference("score: bidirectional", "score: forward only", low=0.0),)
    figure = (
        Panel(
            "Encoders of equal width", SCORE_LABEL,
            points=("score: bidirectional", "score: forward only"),
        ),
    )  # fmt: skip
    limits = "The forward encoder has more recurrent weights, since its states are twice as wide."
    recipe: ClassVar = {"small": "dates-gru", "full": "multi30k-bahdanau"}
    factors: ClassVar = {"model.encoder.bidirectional": ("true", "false")}
    labels: ClassVar = {"bidirectional=true": "bidirectional", "bidirectional=false": "forward only"}
    metric: ClassVar = {"small": "exact", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_GRU, "full": FULL_RNN}
