"""Claim 41: a captioner attends to the object that it names."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.experiments.claims.vision.pointing import measure_pointing
from qkv.experiments.claims.vision.shapes import SMALL_CAPTIONER
from qkv.experiments.sweep import MeasureFunction
from qkv.registry import register


@register("claim", "caption-pointing")
class CaptionPointing(SweepClaim):
    """Share of words whose largest attention weight is in the object that they name, and in another object."""

    number = 41
    title = "A captioner attends to the object that it names"
    statement = "The attention of a captioner shows the object that the current word is about."
    notes = (Note("003", "Image captioning results"),)
    equation = "peak_t = argmax_i a_ti;   pointing = share of words t of an object with peak_t in its box"
    source = (
        "src/qkv/models/show_attend_tell.py::ShowAttendTell",
        "src/qkv/experiments/claims/vision/pointing.py::rotate_boxes",
    )
    hypothesis = (
        "In scenes with two or three objects, the peak of the attention is inside the box of the named object for more "
        "than half of the words, and at least 30 points more often than inside that of another object of the scene. "
        "A box has 5 % of the area of the image on average."
    )
    criteria = (
        Mean("peak inside: named object", low=50.0),
        Difference("peak inside: named object", "peak inside: other object", low=30.0),
    )
    figure = (
        Panel(
            "Largest attention weight of the words of an object", "share of words, %",
            points=("peak inside: named object", "peak inside: other object"),
        ),
    )  # fmt: skip
    limits = (
        "The features of a position depend on its neighborhood, so that a peak next to the box can also carry the "
        "object. A deeper image encoder has less exact positions. At small scale the training has 12 epochs, chosen "
        "after one of three seeds of caption-attention had not converged in 8."
    )
    recipe: ClassVar = {"small": "shapes-attend", "full": "shapes-attend"}
    factors: ClassVar = {"model.decoder": ("attend",)}
    labels: ClassVar = {"decoder=attend": "with attention"}
    overrides: ClassVar = {"small": (*SMALL_CAPTIONER, "train.epochs=12"), "full": ()}

    @classmethod
    def measure_function(cls, scale: Scale) -> MeasureFunction:
        return measure_pointing

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        (result,) = self.run_sweeps(scale, seeds, folder, device).values()
        names, outcomes = ("named object", "other object"), result.outcomes
        return Measurements(
            tuple(seeds), {f"peak inside: {name}": tuple(100 * o.scores[name] for o in outcomes) for name in names}
        )
