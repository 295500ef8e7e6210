"""Algorithmic sequence tasks: read an input sequence of bits, then produce the output sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.config import Rate
from qkv.datasets.batching import numbered_batches
from qkv.datasets.corpora.synthetic.bit_sequences import (
    Copy,
    Puzzle,
    Recall,
    RepeatCopy,
    Sequences,
    Size,
    Stream,
    format_size,
)
from qkv.datasets.dataset import SequenceDataset
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.nn.interfaces import SequenceModel
from qkv.registry import nearest, register
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.task import LOSS, Task, TaskConfig
from qkv.types import Float, Tensor

STEPS = 8  # pad sequences to a multiple of this for CUDA graphs: a few extra steps cost less than more graphs
PUZZLES: tuple[type[Puzzle], ...] = (Copy, RepeatCopy, Recall)


@dataclass(frozen=True)
class SequenceBatch(TensorBatch):
    """Sequences of one size."""

    inputs: Float[Tensor, "batch steps channels"]
    targets: Float[Tensor, "batch steps outputs"]
    answer_mask: Float[Tensor, "steps"]  # 1 at the steps of the answer, 0 elsewhere
    tokens: int  # number of target bits

    shared: ClassVar = ("answer_mask",)

    def count_tokens(self) -> int:
        return len(self.targets) * self.targets.shape[-1] * int(self.answer_mask.sum())

    @classmethod
    def from_sequences(cls, sequences: Sequences, *, padded_to_shape: bool = False) -> "SequenceBatch":
        """Convert sequences to tensors; `padded_to_shape` pads them to a multiple of STEPS without targets."""
        inputs, targets, answer_mask = map(
            torch.from_numpy, (sequences.inputs, sequences.targets, sequences.answer_mask)
        )
        tokens = len(targets) * targets.shape[-1] * int(sequences.answer_mask.sum())
        if missing := -len(answer_mask) % STEPS if padded_to_shape else 0:
            inputs, targets = (F.pad(tensor, (0, 0, 0, missing)) for tensor in (inputs, targets))
            answer_mask = F.pad(answer_mask, (0, missing))
        return cls(inputs, targets, answer_mask, tokens)


def bits_at(size: Size) -> str:
    """Name of the metric of a size: bits_at_120."""
    return f"bits_at_{format_size(size)}"


class AlgorithmicConfig(TaskConfig):
    """Options of the task."""

    curriculum: Rate = 0.0  # fraction of the training in which the largest size grows from the smallest to the full one


@register("task", "algorithmic")
class AlgorithmicTask(Task):
    """An endless stream of sequences; each batch has new ones of one random size, first of small ones (`curriculum`).

    The metrics count wrong bits per sequence: `bits` averages over the training sizes, `bits_at` measures
    generalization to single sizes, most of them larger than in training.
    """

    title = "algorithmic sequences"
    cli_command = "view"
    metrics: ClassVar = {
        "loss": LOSS,
        "bits": Metric("wrong bits", higher_is_better=False),
        **{
            bits_at(size): Metric(f"wrong bits at {format_size(size)}", higher_is_better=False)
            for puzzle in PUZZLES
            for size in puzzle.eval_sizes
        },
    }
    model = SequenceModel
    datasets = (SequenceDataset,)
    batch_units = ("examples",)
    config_class = AlgorithmicConfig
    from_data = ("input_dim", "output_dim")
    evaluates_train = False  # it is endless
    capturable = True

    @classmethod
    def sizes(cls, data: SequenceDataset, tokenizer: None) -> dict[str, Any]:
        puzzle = data.splits["train"].puzzle
        return {"input_dim": puzzle.channels, "output_dim": puzzle.outputs}

    def setup(self, data: SequenceDataset) -> None:
        self.train, self.valid = data.splits["train"], data.splits["valid"]
        metrics, best_by = ["loss", "bits", *map(bits_at, self.train.puzzle.eval_sizes)], self.train_config.best_by
        if best_by not in metrics:
            raise InputError(f"unknown metric train.best_by {best_by!r}{nearest(best_by, metrics)}")

    def describe(self) -> str:
        return f"{self.train.count:,} sequences an epoch"

    def epoch(self, number: int) -> list[list[int]]:
        return numbered_batches(self.train.count, self.train_config.batch_size, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> SequenceBatch:
        sequences = self.train.sample(self.seed, rows[0], len(rows), fraction=self._size_fraction(rows[0]))
        return SequenceBatch.from_sequences(sequences, padded_to_shape=padded_to_shape)

    def _size_fraction(self, first: int) -> float:
        """Fraction of the range of sizes that a batch is drawn from, given its position in the training."""
        if not (curriculum := self.options.curriculum):
            return 1.0
        done = first / (self.train_config.epochs * self.train.count)
        return min(1.0, done / curriculum)

    def loss(self, model: SequenceModel[Any], batch: SequenceBatch) -> Float[Tensor, ""]:
        """Cross-entropy per target bit."""
        return _bit_losses(model(batch.inputs), batch).sum() / (batch.answer_mask.sum() * batch.targets[:, 0].numel())

    def evaluate(self, model: SequenceModel[Any], data: SequenceDataset, split: str) -> Evaluation:
        stream = data.splits[split]
        sizes = {*stream.puzzle.train_sizes, *stream.puzzle.eval_sizes}
        return Evaluation(stream.count * len(sizes), "sequences", self.score_examples(model, stream))

    @torch.inference_mode()
    def score_examples(self, model: SequenceModel[Any], examples: Stream) -> dict[str, float]:
        puzzle = examples.puzzle
        results = {
            size: _loss_and_errors(model, SequenceBatch.from_sequences(examples.of_size(size)))
            for size in dict.fromkeys((*puzzle.train_sizes, *puzzle.eval_sizes))
        }
        losses, bits = zip(*(results[size] for size in puzzle.train_sizes), strict=True)
        return {
            "loss": sum(losses) / len(losses),
            "bits": sum(bits) / len(bits),
            **{bits_at(size): results[size][1] for size in puzzle.eval_sizes},
        }


def _bit_losses(logits: Tensor, batch: SequenceBatch) -> Float[Tensor, "batch steps outputs"]:
    """Cross-entropy of each bit; 0 outside the answer."""
    losses = F.binary_cross_entropy_with_logits(logits.float(), batch.targets, reduction="none")
    return losses * batch.answer_mask[:, None]


def _loss_and_errors(model: SequenceModel[Any], batch: SequenceBatch) -> tuple[float, float]:
    """Mean cross-entropy per bit, and mean number of wrong bits per sequence."""
    batch = batch.to(model.device)
    logits = model(batch.inputs)
    wrong = ((logits > 0) != (batch.targets > 0.5)) * batch.answer_mask[:, None]
    return float(_bit_losses(logits, batch).sum()) / batch.tokens, float(wrong.sum()) / len(batch.inputs)
