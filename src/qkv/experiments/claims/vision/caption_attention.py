"""Claim 42: attention over the picture gives better captions than a single vector of it."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.verdict import Difference
from qkv.experiments.claims.vision.shapes import SMALL_CAPTIONER
from qkv.registry import register


@register("claim", "caption-attention")
class CaptionAttention(SweepClaim):
    """Quality of captions with attention over image positions, and with the mean of them as the first input."""

    number = 42
    title = "Attention over the picture gives better captions"
    statement = (
        "A captioner that attends to positions of the image for each word (Show, attend and tell) describes scenes "
        "better than one that gets the image once, as a single vector (Show and tell)."
    )
    notes = (Note("003", "Image captioning"), Note("002", "Attention in computer vision"))
    equation = "attend: z_t = b_t sum_i a_ti a_i for each word t;   tell: x_{-1} = V mean_i a_i once"
    source = (
        "src/qkv/models/show_attend_tell.py::ShowAttendTell",
        "src/qkv/nn/encoders/image_encoder.py::Convolutions",
    )
    hypothesis = (
        "With the same scenes of colored shapes, seeds and training settings, the captions with attention are better: "
        "higher BLEU at small scale, after a short training, and more exact captions at full scale."
    )
    criteria = (Difference("score: with attention", "score: single vector", low=0.0),)
    figure = (
        Panel(
            "Captions of scenes with and without attention", {"small": "BLEU", "full": "exact match, %"},
            points=("score: with attention", "score: single vector"),
        ),
    )  # fmt: skip
    limits = (
        "Longer training or more seeds: after the short training of the small scale, one of three seeds has not yet "
        "learned where to attend, which makes the interval wide. Scenes with one object, or a vector that is wide "
        "enough for all of them, reduce the gap. Real photographs with short captions mention fewer objects than "
        "these scenes have."
    )
    recipe: ClassVar = {"small": "shapes-attend", "full": "shapes-attend"}
    factors: ClassVar = {"model.decoder": ("attend", "tell")}
    labels: ClassVar = {"decoder=attend": "with attention", "decoder=tell": "single vector"}
    metric: ClassVar = {"small": "bleu", "full": "exact"}
    quantity = "score"
    overrides: ClassVar = {"small": (*SMALL_CAPTIONER, "train.epochs=8"), "full": ()}
