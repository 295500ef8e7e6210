"""Where the attention of a captioner points, for named objects and for others."""

from collections.abc import Mapping
from dataclasses import replace

from qkv.datasets.examples.captions import Captions, Named
from qkv.hub import load
from qkv.training.run import Run

EXAMPLES = 500  # of the validation split


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
    return Captions(
        scenes.images[rows], tuple(scenes.texts[row] for row in rows), tuple(scenes.objects[row] for row in rows)
    )


def rotate_boxes(scenes: Captions) -> Captions:
    """Return the scenes with the box of each object replaced by that of the next one."""
    rotated = [
        tuple(Named(other.box, item.words) for item, other in zip(objects, (*objects[1:], objects[0]), strict=True))
        for objects in scenes.objects
    ]
    return replace(scenes, objects=tuple(rotated))
