"""Base class of tasks on independent examples."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from qkv.datasets.tensor_batch import NamedTensors
from qkv.tasks.base.task import Task, random_batches
from qkv.types import Tensor


class ExampleTask(Task):
    """A task on independent examples: a subclass defines `encode`, `collate` and `loss`, and may define `scores`.

    The examples of each epoch are shuffled; every batch has `train.batch_size` of them.
    """

    unit = "examples"
    batch_units = ("examples",)

    def setup(self, data: Any) -> None:
        self.train = self.encode(data.splits["train"])
        self.valid = self.encode(data.splits["valid"][: self.train_config.valid_size])

    @abstractmethod
    def encode(self, examples: Any) -> list[Any]:
        """Prepare the examples of a split, e.g. convert texts to token ids."""

    @abstractmethod
    def collate(self, examples: list[Any]) -> Mapping[str, Tensor]:
        """Return the tensors of a batch of prepared examples."""

    def scores(self, model: Any, batch: NamedTensors) -> Mapping[str, Tensor]:
        """Return all metrics of a batch, each a mean over its examples."""
        return {"loss": self.loss(model, batch)}

    def describe(self) -> str:
        return f"{len(self.train):,} examples"

    def epoch(self, number: int) -> list[list[int]]:
        return random_batches(len(self.train), self.train_config.batch_size, self.seed, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> NamedTensors:
        return NamedTensors(self.collate([self.train[row] for row in rows]))

    def examples(self, data: Any, split: str) -> list[Any]:
        return self.encode(data.splits[split])

    @torch.inference_mode()
    def score_examples(self, model: Any, examples: list[Any]) -> dict[str, float]:
        """Return the mean of each metric over all examples."""
        totals = dict.fromkeys(self.metrics, 0.0)
        size = self.train_config.batch_size
        for begin in range(0, len(examples), size):
            batch = NamedTensors(self.collate(examples[begin : begin + size])).to(model.device)
            for name, value in self.scores(model, batch).items():
                totals[name] += float(value) * batch.tokens
        return {name: total / len(examples) if examples else math.nan for name, total in totals.items()}
