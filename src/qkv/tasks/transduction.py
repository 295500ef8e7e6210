"""Answering sequences of bits as a task to learn: everything is read first, and then asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.config import nearest
from qkv.data.algorithmic import Copy, Puzzle, Recall, RepeatCopy, Sequences, Size, Stream, format_size
from qkv.data.registry import DataConfig, LoadedData
from qkv.data.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.nn.transducer import Transducer
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Tensor

STEPS = 8  # a CUDA graph reads batches of so many steps, or a multiple: some silent steps cost less than more graphs
PUZZLES: tuple[type[Puzzle], ...] = (Copy, RepeatCopy, Recall)


@dataclass(frozen=True)
class SequenceBatch(TensorBatch):
    """Some sequences of one size."""

    inputs: Float[Tensor, "batch steps channels"]
    targets: Float[Tensor, "batch steps outputs"]
    asked: Float[Tensor, "steps"]  # 1 at the steps of the answer, 0 elsewhere
    tokens: int  # how many bits are asked for in all

    @classmethod
    def of(cls, sequences: Sequences, *, filled: bool = False) -> "SequenceBatch":
        """Sequences as tensors, `filled` up at their end to a multiple of so many steps, at which nothing is asked."""
        inputs, targets, asked = map(torch.from_numpy, (sequences.inputs, sequences.targets, sequences.answer_mask))
        tokens = len(targets) * targets.shape[-1] * int(sequences.answer_mask.sum())
        if missing := -len(asked) % STEPS if filled else 0:
            inputs, targets = (F.pad(one, (0, 0, 0, missing)) for one in (inputs, targets))
            asked = F.pad(asked, (0, missing))
        return cls(inputs, targets, asked, tokens)


def bits_at(size: Size) -> str:
    """What the metric of a size is called: bits_at_120."""
    return f"bits_at_{format_size(size)}"


@dataclass
class TransductionTask(ScoredTask):
    """A stream of sequences without end, of which each batch has another part, all of one size that is drawn for it.

    How good a model is says how many bits of an answer it gets wrong: `bits`, over all sizes that are trained on alike,
    and `bits_at` some sizes, most of them larger than any that it has met.
    """

    title = "answering sequences"
    command = "view"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "bits": Metric("wrong bits", higher_is_better=False),
        **{
            bits_at(size): Metric(f"wrong bits at {format_size(size)}", higher_is_better=False)
            for puzzle in PUZZLES
            for size in puzzle.eval_sizes
        },
    }
    model = Transducer
    learns_from = "sequences"
    from_data = ("inputs", "outputs")
    capturable = True

    train: Stream
    valid: Stream
    settings: Settings
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.vocabulary = None
        known = ["loss", "bits", *map(bits_at, self.train.puzzle.eval_sizes)]
        if self.settings.best_by not in known:
            raise InputError(
                f"train.best_by {self.settings.best_by!r} is not measured here{nearest(self.settings.best_by, known)}"
            )

    @classmethod
    def learn_vocabulary(cls, data: LoadedData, config: DataConfig, model: Any) -> None:
        return None

    @classmethod
    def sizes(cls, data: LoadedData, vocabulary: None) -> dict[str, Any]:
        puzzle = data.sequences["train"].puzzle
        return {"inputs": puzzle.channels, "outputs": puzzle.outputs}

    @classmethod
    def prepare(cls, data: LoadedData, vocabulary: None, model: Any, train: Settings, seed: int) -> "TransductionTask":
        return cls(data.sequences["train"], data.sequences["valid"], train, seed, data.notes)

    def describe(self) -> str:
        return f"{self.train.count:,} sequences an epoch"

    def epoch(self, number: int) -> list[list[int]]:
        """Batches that are full: there are always more sequences."""
        size = self.settings.batch_tokens
        batches = -(-self.train.count // size)
        begin = number * batches * size
        return [list(range(first, first + size)) for first in range(begin, begin + batches * size, size)]

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> SequenceBatch:
        return SequenceBatch.of(self.train.sample(self.seed, rows[0], len(rows)), filled=filled)

    def loss(self, model: Transducer[Any], batch: SequenceBatch) -> Float[Tensor, ""]:
        """The cross-entropy of a bit, on average over those that are asked for."""
        return _costs(model(batch.inputs), batch).sum() / (batch.asked.sum() * batch.targets[:, 0].numel())

    def validate(self, model: Transducer[Any]) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: LoadedData) -> list[str]:
        return [split for split in data.sequences if split != "train"]  # of training, there is no end

    def examine(self, model: Transducer[Any], data: LoadedData, split: str) -> Examined:
        stream = data.sequences[split]
        sizes = {*stream.puzzle.train_sizes, *stream.puzzle.eval_sizes}
        return Examined(stream.count * len(sizes), "sequences", self._scores(model, stream))

    @torch.inference_mode()
    def _scores(self, model: Transducer[Any], stream: Stream) -> dict[str, float]:
        puzzle = stream.puzzle
        found = {
            size: _judged(model, SequenceBatch.of(stream.of_size(size)))
            for size in dict.fromkeys((*puzzle.train_sizes, *puzzle.eval_sizes))
        }
        losses, bits = zip(*(found[size] for size in puzzle.train_sizes), strict=True)
        return {
            "loss": sum(losses) / len(losses),
            "bits": sum(bits) / len(bits),
            **{bits_at(size): found[size][1] for size in puzzle.eval_sizes},
        }


def _costs(logits: Tensor, batch: SequenceBatch) -> Float[Tensor, "batch steps outputs"]:
    """The cross-entropy of each bit; 0 where nothing is asked."""
    each = F.binary_cross_entropy_with_logits(logits.float(), batch.targets, reduction="none")
    return each * batch.asked[:, None]


def _judged(model: Transducer[Any], batch: SequenceBatch) -> tuple[float, float]:
    """The cross-entropy of a bit, and how many bits of a sequence are wrong, on average."""
    batch = batch.to(model.device)
    logits = model(batch.inputs)
    wrong = ((logits > 0) != (batch.targets > 0.5)) * batch.asked[:, None]
    return float(_costs(logits, batch).sum()) / batch.tokens, float(wrong.sum()) / len(batch.inputs)
