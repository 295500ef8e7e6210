"""Claim 2: attention solves the bottleneck of the fixed-length context."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_GRU
from qkv.experiments.claims.multi30k import FULL_RNN, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "attention-helps")
class AttentionHelps(SweepClaim):
    """Quality of an encoder-decoder with attention, and with the last encoder state as its only context."""

    number = 2
    title = "Attention solves the bottleneck of a single context vector"
    statement = (
        "A decoder that attends to all encoder states translates better than one that gets the whole source in a "
        "single vector."
    )
    notes = (
        Note("001", "Bottleneck Problem"),
        Note("003", "Attention models"),
        Note("004", "Seq-2-seq with attention"),
    )
    equation = "with attention: c_t = sum_i a_ti h_i for each target token;   without: c = h_n for all of them"
    source = ("src/qkv/models/rnn_seq2seq.py::RNNSeq2Seq", "src/qkv/nn/source_attention.py::SourceAttention")
    hypothesis = (
        "With the same data, seeds and training settings, the score with attention is higher: exact match of dates at "
        "small scale, BLEU of Multi30k at full scale."
    )
    criteria = (Difference("score: with attention", "score: without attention", low=0.0),)
    figure = (
        Panel(
            "Encoder-decoder with and without attention", SCORE_LABEL,
            points=("score: with attention", "score: without attention"),
        ),
    )  # fmt: skip
    limits = (
        "A wider state, longer training or shorter texts reduce the gap: the bottleneck is the size of the vector "
        "relative to what it has to hold."
    )
    recipe: ClassVar = {"small": "dates-gru", "full": "multi30k-bahdanau"}
    factors: ClassVar = {"model.decoder": ("bahdanau", "plain")}
    labels: ClassVar = {"decoder=bahdanau": "with attention", "decoder=plain": "without attention"}
    metric: ClassVar = {"small": "exact", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_GRU, "full": FULL_RNN}
