"""Claim 16: attention is a weighted average, better than mean pooling."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register


@register("claim", "attention-pooling")
class AttentionPooling(SweepClaim):
    """Accuracy of a text classifier with attention pooling, mean pooling and the last states."""

    number = 16
    title = "A weighted average is better than the mean or the last state"
    statement = (
        "Attention is like mean pooling, but with weights: it selects what is relevant. A classifier of texts is "
        "therefore better with attention pooling than with the mean or the last state."
    )
    notes = (Note("001", "Mean-pooling"), Note("001", "Weighted-averaging"))
    equation = "attention: sum_t a_t h_t, a = softmax_t(q . tanh(V h_t + b));   mean: sum_t h_t / n;   last: h_n"
    source = ("src/qkv/models/rnn_text.py::RNNText",)
    hypothesis = (
        "With the same data, seeds and training settings, the accuracy of a bidirectional LSTM on the polarity of "
        "sentences is higher with attention pooling than with the mean, and than with the last states."
    )
    criteria = (
        Difference("accuracy: attention", "accuracy: mean", low=0.0),
        Difference("accuracy: attention", "accuracy: last states", low=0.0),
    )
    figure = (
        Panel(
            "Polarity of sentences by pooling", "accuracy, %",
            points=("accuracy: attention", "accuracy: mean", "accuracy: last states"),
        ),
    )  # fmt: skip
    limits = "Sentences of about 20 words: in longer texts, less is relevant, and weights can matter more."
    recipe: ClassVar = {"small": "polarity-lstm-attention", "full": "polarity-lstm-attention"}
    factors: ClassVar = {"model.pooling": ("attention", "mean", "last")}
    labels: ClassVar = {"pooling=attention": "attention", "pooling=mean": "mean", "pooling=last": "last states"}
    metric: ClassVar = {"small": "accuracy", "full": "accuracy"}
    quantity = "accuracy"
    overrides: ClassVar = {
        "small": ("model.embedding_dim=64", "model.hidden_dim=32", "train.epochs=3", "train.lr=5e-3"),
        "full": (),
    }
