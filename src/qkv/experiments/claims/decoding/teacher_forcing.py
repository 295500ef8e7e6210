"""Claim 52: teacher forcing speeds up and stabilizes learning."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.dates import SMALL_GRU
from qkv.experiments.claims.multi30k import FULL_RNN, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "teacher-forcing")
class TeacherForcing(SweepClaim):
    """Quality after the same training with given target words, and with the model's own words as inputs."""

    number = 52
    title = "Teacher forcing speeds up learning"
    statement = (
        "A decoder that gets the correct previous word during training learns faster than one that gets the word that "
        "it predicted itself."
    )
    notes = (Note("002", "Sequence to sequence and attention"), Note("004", "Seq-to-seq with RNN"))
    equation = "teacher forcing: s_t = f(s_{t-1}, y_{t-1}, c_t);   free running: s_t = f(s_{t-1}, argmax p_{t-1}, c_t)"
    source = ("src/qkv/models/rnn_seq2seq.py::RNNSeq2Seq",)
    hypothesis = (
        "After the same number of training steps, the score with teacher forcing is higher than with free running: "
        "exact match of dates at small scale, BLEU of Multi30k at full scale."
    )
    criteria = (Difference("score: teacher forcing", "score: free running", low=0.0),)
    figure = (
        Panel(
            "Training with given or with own words", SCORE_LABEL,
            points=("score: teacher forcing", "score: free running"),
        ),
    )  # fmt: skip
    limits = (
        "Free running trains the decoder for its own mistakes (exposure bias): after long training, or with a schedule "
        "from given to own words, it can be the better one. Time per step is not compared."
    )
    recipe: ClassVar = {"small": "dates-gru", "full": "multi30k-bahdanau"}
    factors: ClassVar = {"model.scheduled_sampling": ("0.0", "1.0")}
    labels: ClassVar = {
        "scheduled_sampling=0.0": "teacher forcing",
        "scheduled_sampling=1.0": "free running",
    }
    metric: ClassVar = {"small": "exact", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL_GRU, "full": FULL_RNN}
