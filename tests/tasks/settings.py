"""Prepare a task with settings from two tables of a recipe: `task` and `train`."""

from typing import Any

from qkv.tasks.task import Task
from qkv.tasks.train_config import TrainConfig


def prepare(task_class: type[Task], data: Any, tokenizer: Any, model: Any, seed: int = 0, **settings: Any) -> Any:
    """Prepare a task; settings that the task does not have are those of `TrainConfig`."""
    options = {key: value for key, value in settings.items() if key in task_class.config_class.model_fields}
    train = TrainConfig(**{key: value for key, value in settings.items() if key not in options})
    return task_class.prepare(data, tokenizer, model, task_class.config_class(**options), train, seed)
