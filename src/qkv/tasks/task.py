"""The interface between tasks and the training loop: tokenizer, batches, loss and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch

from qkv.datasets.registry import DataConfig, LoadedData
from qkv.metrics import Metric
from qkv.nn.text_encoder import TextEncoder
from qkv.tasks.train_tokenizer import train_tokenizer
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Tensor


@runtime_checkable
class Batch(Protocol):
    """The input of one training step."""

    @property
    def tokens(self) -> int:
        """Number of tokens the loss is averaged over."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the batch by name; every batch is a `TensorBatch` (qkv.datasets.tensor_batch)."""

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`."""


@runtime_checkable
class Settings(Protocol):
    """The keys of a recipe's `train` table that tasks read."""

    @property
    def batch_tokens(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def label_smoothing(self) -> float: ...
    @property
    def bpe_dropout(self) -> float: ...
    @property
    def valid_size(self) -> int: ...
    @property
    def shift(self) -> int: ...
    @property
    def mirror(self) -> bool: ...
    @property
    def cover(self) -> int: ...
    @property
    def whole_words(self) -> bool: ...
    @property
    def best_by(self) -> str: ...


class Task(ABC):
    """Data, loss and metrics of a task; all that the training loop uses."""

    title: ClassVar[str]  # name used in messages
    cli_command: ClassVar[str]  # CLI command that runs models trained on this task
    metrics: ClassVar[dict[str, Metric]]  # returned by `validate`; `train.best_by` names one of them
    model: ClassVar[type[Any]]  # base class of the models that can be trained on it
    learns_from: ClassVar[str | tuple[str, ...]]  # kind(s) of dataset in the registry
    from_data: ClassVar[tuple[str, ...]]  # model config keys that are set from the data

    unit: ClassVar[str] = "tok"  # unit of `Batch.tokens` in the progress display
    capturable: bool = False  # whether the loss can be captured in a CUDA graph

    tokenizer: Tokenizer | None  # None without text, and for models of characters
    notes: tuple[str, ...]  # messages for the user, e.g. about skipped examples

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """The kinds of dataset this task can be trained on."""
        return (cls.learns_from,) if isinstance(cls.learns_from, str) else cls.learns_from

    @classmethod
    def accepts_tokenizer(cls, name: str) -> bool:
        """Whether a tokenizer can be used: WordPiece lacks the <s> and </s> that decoders need."""
        return name != "wordpiece" or issubclass(cls.model, TextEncoder)

    @classmethod
    def train_tokenizer(cls, data: LoadedData, config: DataConfig, model: Any) -> Tokenizer | None:
        """Train a tokenizer on the training texts; None for data without text and for models of characters."""
        return train_tokenizer(data, config) if getattr(model, "max_characters", None) is None else None

    @classmethod
    def placeholder_sizes(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Placeholder values for the keys in `from_data`, to validate a recipe before the data is loaded."""
        return dict.fromkeys(cls.from_data, 1)

    @classmethod
    @abstractmethod
    def sizes(cls, data: LoadedData, tokenizer: Any) -> dict[str, Any]:
        """Values of the model config keys in `from_data`."""

    @classmethod
    @abstractmethod
    def prepare(cls, data: LoadedData, tokenizer: Any, model: Any, train: Settings, seed: int) -> "Task":
        """Encode the data for a model with the config `model`."""

    @abstractmethod
    def describe(self) -> str:
        """Size of the training data, e.g. "29,000 pairs"."""

    @abstractmethod
    def epoch(self, number: int) -> list[list[int]]:
        """Batches of an epoch as lists of example indices; determined by the seed and the epoch number."""

    @abstractmethod
    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> Batch:
        """Collate a batch of the epoch requested last; `padded_to_shape` pads it to one of a few fixed shapes."""

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> Float[Tensor, ""]:
        """Training loss: a mean over the batch's tokens."""

    @abstractmethod
    def validate(self, model: Any) -> dict[str, float]:
        """All metrics of the task on the validation data."""

    def notes_from_scratch(self) -> tuple[str, ...]:
        """Notes for a model trained from random weights."""
        return ()

    def carried_state(self) -> dict[str, Tensor]:
        """State carried between training steps, other than the weights; saved in checkpoints."""
        return {}

    def load_carried_state(self, model: Any, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027  (most tasks are stateless)
        """Restore what `carried_state` returned when the checkpoint was saved."""


class SplitScores(NamedTuple):
    """Metrics of a model on one split."""

    size: int  # number of examples
    unit: str  # e.g. "sentences"
    scores: dict[str, float]  # the task's metrics


class ScoredTask(Task):
    """A task whose metrics can be computed on any split of its data."""

    @classmethod
    @abstractmethod
    def splits(cls, data: LoadedData) -> list[str]:
        """The splits a model can be evaluated on."""

    @abstractmethod
    def evaluate(self, model: Any, data: LoadedData, split: str) -> SplitScores:
        """All metrics of the task on a whole split."""

    def notes_on(self, data: LoadedData, split: str) -> tuple[str, ...]:
        """Notes for the user about a split."""
        return ()
