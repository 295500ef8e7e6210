"""Warnings about user files that are probably mistakes: those of `qkv data check` that training prints, too."""

import math
from collections.abc import Iterator
from typing import Any

from qkv.datasets.dataset import Dataset, TaggedDataset
from qkv.datasets.inspection import Columns, find_problems
from qkv.datasets.user_files import UserFiles
from qkv.metrics.tag_metrics import are_entity_tags
from qkv.tasks.base.task import Task
from qkv.training.recipe import Recipe

FEW_EXAMPLES = 1000  # for training from random weights
PARAMETERS_PER_EXAMPLE = 10_000  # more are probably too many
FEW_STEPS, ENOUGH_STEPS = 100, 300  # of training from random weights
MANY_EXAMPLES = 100_000  # whose batches are not counted in advance


def data_warnings(recipe: Recipe, data: Dataset[Any], columns: Columns | None = None) -> Iterator[str]:
    """Yield warnings about the examples of user files; `columns` are those of `data`, if they have been read."""
    config = recipe.data
    if not isinstance(config, UserFiles) or data.size("train") is None:
        return
    yield from config.duplicates(data.splits)
    keys = [key for examples in data.splits.values() for key in config.keys(examples)] if config.unique else []
    yield from _best_by_accuracy(recipe, data)
    yield from find_problems(columns or Columns.read(data), keys, running_text=data.kind == "text")


def _best_by_accuracy(recipe: Recipe, data: Dataset[Any]) -> Iterator[str]:
    """Yield a warning if taggers of entities are selected by their accuracy, which words without an entity dominate."""
    if isinstance(data, TaggedDataset) and recipe.train.best_by == "accuracy":
        tags = [tag for sentence in data.splits["train"] for tag in sentence.tags]
        if are_entity_tags(tags) and set(tags) != {"O"}:
            yield (
                "the tags mark entities, but the best checkpoint is selected by the accuracy of single tags: select it "
                "by the F1 of entities with --set train.best_by=f1"
            )


def scratch_warnings(recipe: Recipe, data: Dataset[Any], task: Task, parameters: int) -> Iterator[str]:
    """Yield warnings about user files that are too few to train this many parameters from random weights."""
    size = data.size("train")
    if not isinstance(recipe.data, UserFiles) or size is None:
        return
    if data.kind != "text" and (size < FEW_EXAMPLES or parameters > PARAMETERS_PER_EXAMPLE * size):
        yield (
            f"few examples: {size:,} training {data.unit} for a model of {parameters / 1e6:.1f} M parameters with "
            "random weights; start from a pretrained model with --set init=FOLDER, or add data"
        )
    if size > MANY_EXAMPLES:
        return
    per_epoch = len(task.epoch(0))
    steps = per_epoch * recipe.train.epochs
    if steps < FEW_STEPS:
        epochs = math.ceil(ENOUGH_STEPS / max(1, per_epoch))
        yield (
            f"few steps: {steps:,} training step(s) with random weights; train longer with --set train.epochs={epochs}"
        )
