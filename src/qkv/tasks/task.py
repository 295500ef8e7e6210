"""What training needs to know of a task: its vocabulary, batches, loss, and how good a model is at it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch

from qkv.data.characters import Characters
from qkv.data.registry import DataConfig, LoadedData, learn_vocabulary
from qkv.metrics import Metric
from qkv.nn.text_encoder import TextEncoder
from qkv.types import Float, Tensor


@runtime_checkable
class Batch(Protocol):
    """What one step of training looks at."""

    @property
    def tokens(self) -> int:
        """How many tokens the loss is the mean of."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a step looks at, by name: every batch is a `TensorBatch` (qkv.data.tensor_batch)."""

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""


@runtime_checkable
class Settings(Protocol):
    """What a task has to know of how it will be trained: a part of the recipe's `train` table."""

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
    """Something to learn. The training loop knows tasks only by this."""

    title: ClassVar[str]  # what it is called in a sentence
    command: ClassVar[str]  # of `qkv`, by which a model that has learned it is put to use
    metrics: ClassVar[dict[str, Metric]]  # what `validate` gives; `train.best_by` names one of them
    model: ClassVar[type[Any]]  # the kind of model that can learn it
    learns_from: ClassVar[str | tuple[str, ...]]  # the kind of data it needs, as the registry calls it, or several
    from_data: ClassVar[tuple[str, ...]]  # keys of such a model's config that the data decide

    unit: ClassVar[str] = "tok"  # of which a batch has so many `tokens`
    capturable: bool = False  # whether the loss of a batch looks at tensors alone, as a CUDA graph would

    vocabulary: Any  # AnyVocabulary, or None where there is no text
    notes: tuple[str, ...]  # for the user, about what was passed over

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """The kinds of data that it can be learned from."""
        return (cls.learns_from,) if isinstance(cls.learns_from, str) else cls.learns_from

    @classmethod
    def reads(cls, kind: str) -> bool:
        """Whether it can be learned with a kind of vocabulary: word pieces have no <s> and </s>, as decoders need."""
        return kind != "wordpiece" or issubclass(cls.model, TextEncoder)

    @classmethod
    def learn_vocabulary(cls, data: LoadedData, config: DataConfig, model: Any) -> Any:
        """Learn the vocabulary of the training texts, if a model with such a config needs one; None without texts."""
        characters = getattr(model, "max_characters", None)  # of a word, which some read instead
        return learn_vocabulary(data, config) if characters is None else Characters(characters)

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Values for the keys `from_data` that let a recipe's model table be checked before there are data."""
        return dict.fromkeys(cls.from_data, 1)

    @classmethod
    @abstractmethod
    def sizes(cls, data: LoadedData, vocabulary: Any) -> dict[str, Any]:
        """The values of the keys `from_data`."""

    @classmethod
    @abstractmethod
    def prepare(cls, data: LoadedData, vocabulary: Any, model: Any, train: Settings, seed: int) -> "Task":
        """Make the data ready for a model with the config `model`."""

    @abstractmethod
    def describe(self) -> str:
        """What there is to learn from, in a few words: "29,000 pairs"."""

    @abstractmethod
    def epoch(self, number: int) -> list[list[int]]:
        """The batches of an epoch, as lists of example numbers; the seed and the number decide them alone."""

    @abstractmethod
    def batch(self, rows: Sequence[int], *, filled: bool = False) -> Batch:
        """One of the batches of the epoch that was asked for last; `filled` up with padding to one of few shapes."""

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> Float[Tensor, ""]:
        """What to make smaller: a mean over the batch's tokens."""

    @abstractmethod
    def validate(self, model: Any) -> dict[str, float]:
        """Every metric of the task, on data that the model does not learn from."""

    def notes_from_scratch(self) -> tuple[str, ...]:
        """Notes for a model that is trained from random weights."""
        return ()

    def carried(self) -> dict[str, Tensor]:
        """What goes over from one step of training to the next, besides the weights; checkpoints keep it."""
        return {}

    def carry(self, model: Any, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027  (most tasks carry nothing)
        """Go on with what `carried` gave when a checkpoint was written."""


class Examined(NamedTuple):
    """How good a model is on a split."""

    size: int  # how many examples were looked at
    unit: str  # what they are called: "sentences"
    scores: dict[str, float]  # the task's metrics


class ScoredTask(Task):
    """A task whose metrics can be taken on any split of its data as they are on the validation data."""

    @classmethod
    @abstractmethod
    def splits(cls, data: LoadedData) -> list[str]:
        """The splits that there are, of those that a model can be scored on."""

    @abstractmethod
    def examine(self, model: Any, data: LoadedData, split: str) -> Examined:
        """Every metric of the task, on all of a split."""

    def notes_on(self, data: LoadedData, split: str) -> tuple[str, ...]:
        """What a user should know of a split before its scores."""
        return ()
