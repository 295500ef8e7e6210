"""Claim 4: the context at every step keeps memory better than as the initial state only."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_PLAIN
from qkv.experiments.claims.multi30k import FULL_RNN, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "context-every-step")
class ContextEveryStep(SweepClaim):
    """Quality of a decoder without attention that gets the context once, and at every step."""

    number = 4
    title = "The context at every step is better than as the initial state only"
    statement = (
        "A decoder that gets the context vector only as its initial state forgets it; one with the context as an input "
        "of every step, with weights of its own, keeps it."
    )
    notes = (Note("002", "Sequence to sequence and attention"),)
    equation = "initial: s_0 = tanh(B c), s_t = f(s_{t-1}, y_{t-1});   every step: also s_t = f(s_{t-1}, [y_{t-1} ; c])"
    source = ("src/qkv/models/rnn_seq2seq.py::PlainDecoder",)
    hypothesis = (
        "With the same data, seeds, training settings and initial state, the score with the context as an input of "
        "every step is higher: exact match of dates at small scale, BLEU of Multi30k at full scale."
    )
    criteria = (Difference("score: every step", "score: initial state only", low=0.0),)
    figure = (
        Panel(
            "Decoders without attention", SCORE_LABEL,
            points=("score: every step", "score: initial state only"),
        ),
    )  # fmt: skip
    limits = (
        "The context at every step adds weights to the decoder. Targets of ten characters leave little time to forget; "
        "longer targets can profit more."
    )
    recipe: ClassVar = {"small": "dates-gru", "full": "multi30k-plain"}
    factors: ClassVar = {"model.context": ("both", "initial")}
    labels: ClassVar = {"context=both": "every step", "context=initial": "initial state only"}
    metric: ClassVar = {"small": "exact", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": (*SMALL_PLAIN, "model.decoder=plain"), "full": FULL_RNN}
