"""Claim 6: two RNNs are needed, an encoder and a decoder."""

from typing import ClassVar

from qkv.experiments.claims.bottleneck.single_rnn import SMALL_ENCODER_DECODER, SMALL_SINGLE_RNN
from qkv.experiments.claims.claim import Note, Panel, RecipeClaim
from qkv.experiments.claims.multi30k import FULL_RNN, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "two-rnns")
class TwoRNNs(RecipeClaim):
    """Quality of an encoder-decoder without attention, and of one RNN for both tasks."""

    number = 6
    title = "An encoder and a decoder are better than one RNN"
    statement = (
        "Compressing the source and generating the target are different tasks: two RNNs, connected by the context "
        "vector, translate better than one RNN that does both."
    )
    notes = (Note("002", "Sequence to sequence and attention"), Note("003", "Introduction"))
    equation = "c = encoder(source), s_t = decoder(s_{t-1}, y_{t-1}, c);   or one RNN over source, <TRANSLATE>, target"
    source = ("src/qkv/models/rnn_seq2seq.py::PlainDecoder", "src/qkv/models/single_rnn.py::SingleRNN")
    hypothesis = (
        "With the same data, seeds, training settings and nearly the same number of parameters, the score of the "
        "encoder-decoder without attention is higher: exact match of dates at small scale, BLEU of Multi30k at full "
        "scale."
    )
    criteria = (Difference("score: encoder-decoder", "score: one RNN", low=0.0),)
    figure = (
        Panel(
            "Models without attention", SCORE_LABEL,
            points=("score: encoder-decoder", "score: one RNN"),
        ),
    )  # fmt: skip
    limits = (
        "The context is an input of every step; as the initial state only, it is worth much less: such an "
        "encoder-decoder learned 1 % of the dates in the same training (claim 4), fewer than one RNN. The encoder is "
        "bidirectional at small scale, which one RNN cannot be; that one has a wider state instead."
    )
    conditions: ClassVar = {
        "small": {"one RNN": SMALL_SINGLE_RNN, "encoder-decoder": SMALL_ENCODER_DECODER},
        "full": {"one RNN": ("multi30k-single-rnn",), "encoder-decoder": ("multi30k-plain",)},
    }
    metric: ClassVar = {"small": "exact", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": (), "full": FULL_RNN}
