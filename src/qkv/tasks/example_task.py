"""Base class of tasks on independent examples."""

import math
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from qkv.datasets.tensor_batch import NamedTensors
from qkv.tasks.task import Evaluation, Task
from qkv.tasks.train_config import TrainConfig
from qkv.types import Float, Tensor


class ExampleTask(Task):
    """A task on independent examples: a subclass defines `encode`, `collate` and `loss`, and may define `scores`.

    The examples of each epoch are shuffled; every batch has `train.batch_size` of them.
    """

    unit = "examples"
    batch_units = ("examples",)

    def __init__(self, data: Any, tokenizer: Any, model: Any, options: Any, train: TrainConfig, seed: int) -> None:
        self.tokenizer = tokenizer
        self.model_config = model
        self.options = options
        self.train_config = train
        self.seed = seed
        self.notes = data.notes
        self.train = self.encode(data.splits["train"])
        self.valid = self.encode(data.splits["valid"][: train.valid_size])

    @abstractmethod
    def encode(self, examples: Any) -> list[Any]:
        """Prepare the examples of a split, e.g. convert texts to token ids."""

    @abstractmethod
    def collate(self, examples: list[Any]) -> Mapping[str, Tensor]:
        """Return the tensors of a batch of prepared examples."""

    def scores(self, model: Any, batch: NamedTensors) -> Mapping[str, Tensor]:
        """Return all metrics of a batch, each a mean over its examples."""
        return {"loss": self.loss(model, batch)}

    @classmethod
    def prepare(
        cls, data: Any, tokenizer: Any, model: Any, options: Any, train: TrainConfig, seed: int
    ) -> "ExampleTask":
        return cls(data, tokenizer, model, options, train, seed)

    def describe(self) -> str:
        return f"{len(self.train):,} examples"

    def epoch(self, number: int) -> list[list[int]]:
        rows = list(range(len(self.train)))
        random.Random(f"{self.seed} {number}").shuffle(rows)
        size = self.train_config.batch_size
        return [rows[begin : begin + size] for begin in range(0, len(rows), size)]

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> NamedTensors:
        return NamedTensors(self.collate([self.train[row] for row in rows]))

    def validate(self, model: Any) -> dict[str, float]:
        return self._mean_scores(model, self.valid)

    def evaluate(self, model: Any, data: Any, split: str) -> Evaluation:
        examples = self.encode(data.splits[split])
        return Evaluation(len(examples), self.unit, self._mean_scores(model, examples))

    @torch.inference_mode()
    def _mean_scores(self, model: Any, examples: list[Any]) -> dict[str, float]:
        """Return the mean of each metric over all examples."""
        totals = dict.fromkeys(self.metrics, 0.0)
        size = self.train_config.batch_size
        for begin in range(0, len(examples), size):
            batch = NamedTensors(self.collate(examples[begin : begin + size])).to(model.device)
            for name, value in self.scores(model, batch).items():
                totals[name] += float(value) * batch.tokens
        return {name: total / len(examples) if examples else math.nan for name, total in totals.items()}

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> Float[Tensor, ""]:
        """Training loss: a mean over the examples of the batch."""
