"""Claim 41: a captioner attends to the object that it names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from qkv.datasets.examples.captions import Captions, Named
from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.experiments.claims.vision.shapes import SMALL_CAPTIONER
from qkv.experiments.sweep import Sweep
from qkv.hub import load
from qkv.registry import register
from qkv.training.run import Run

EXAMPLES = 500  # of the validation split


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
        "src/qkv/experiments/claims/vision/caption_pointing.py::rotate_boxes",
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
        "The features of a position depend on its neighbourhood, so that a peak beside the box can also carry the "
        "object. A deeper image encoder has less exact positions."
    )
    recipe: ClassVar = {"small": "shapes-attend", "full": "shapes-attend"}
    factors: ClassVar = {"model.decoder": ("attend",)}
    labels: ClassVar = {"decoder=attend": "with attention"}
    overrides: ClassVar = {"small": SMALL_CAPTIONER, "full": ()}

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        sweep = Sweep(self.recipe[scale], self.factors, seeds, self.overrides[scale], measure_pointing)
        outcomes = self.completed(sweep.run(folder, device=device)).outcomes
        names = ("named object", "other object")
        return Measurements(
            tuple(seeds), {f"peak inside: {name}": tuple(100 * o.scores[name] for o in outcomes) for name in names}
        )


def measure_pointing(run: Run, device: str) -> Mapping[str, float]:
    """Return the pointing accuracy for the named objects, and for other objects of the same scenes."""
    recipe, data = run.recipe, run.data()
    model = load(run.folder, device=device)
    task = recipe.task_class.for_evaluation(data, model, recipe.task, recipe.train, recipe.seed)
    scenes = with_several_objects(data.splits["valid"][:EXAMPLES])
    return {
        name: task.score_examples(model, examples)["pointing"]
        for name, examples in (("named object", scenes), ("other object", rotate_boxes(scenes)))
    }


def with_several_objects(scenes: Captions) -> Captions:
    """Return the scenes that have more than one object."""
    rows = [row for row, objects in enumerate(scenes.objects) if len(objects) > 1]
    texts, objects = (tuple(column[row] for row in rows) for column in (scenes.texts, scenes.objects))
    return Captions(scenes.images[rows], texts, objects)


def rotate_boxes(scenes: Captions) -> Captions:
    """Return the scenes with the box of each object replaced by that of the next one."""
    rotated = [
        tuple(Named(other.box, item.words) for item, other in zip(objects, (*objects[1:], objects[0]), strict=True))
        for objects in scenes.objects
    ]
    return replace(scenes, objects=tuple(rotated))
