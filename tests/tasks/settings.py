"""Prepare tasks and train tokenizers as a recipe does."""

from collections.abc import Sequence
from typing import Any

from qkv.registry import lookup
from qkv.tasks.base.task import Task
from qkv.tasks.base.train_config import TrainConfig


def prepare(task_class: type[Task], data: Any, tokenizer: Any, model: Any, seed: int = 0, **settings: Any) -> Any:
    """Prepare a task with settings of two tables: `task`, and `train` for those that the task does not have."""
    options = {key: value for key, value in settings.items() if key in task_class.config_class.model_fields}
    train = TrainConfig(**{key: value for key, value in settings.items() if key not in options})
    return task_class(data, tokenizer, model, task_class.config_class(**options), train, seed)


def tokenizer_of(texts: Sequence[str], name: str, vocab_size: int | None = None, *, lowercase: bool = False) -> Any:
    """Train a registered tokenizer."""
    options = {} if vocab_size is None else {"vocab_size": vocab_size}
    return lookup("tokenizer", name).train(texts, lowercase, **options)
