"""The interface between tasks and the training loop: tokenizer, batches, loss and metrics."""

import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from pydantic import Field

from qkv.config import Config, Term
from qkv.datasets.columns import Column
from qkv.datasets.dataset import Dataset, DatasetConfig, PairConfig, PairDataset, TextDatasetConfig
from qkv.datasets.shards.large_text import LargeText
from qkv.metrics import Metric
from qkv.nn.interfaces import TextEncoder
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.tokenized_text import Unit, cached_tokenizer
from qkv.tasks.base.train_config import TrainConfig
from qkv.tokenizers import PairTokenizer, Tokenizer
from qkv.types import Float, Tensor

LOSS = Metric("loss", higher_is_better=False)
ACCURACY = Metric("accuracy", percent=True)
Pixels = Annotated[int, Field(ge=0, le=1024)]


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


class TaskConfig(Config):
    """Options of a task: the `task` table of a recipe."""


class Sample(NamedTuple):
    """An input of the validation data, the model's output for it, and the reference ("" if there is none)."""

    source: str
    output: str
    reference: str


class Task(ABC):
    """Data, loss and metrics of a task; all that the training loop and `qkv evaluate` use.

    `qkv.tasks.base.example_task.ExampleTask` is a simpler base class, for tasks on independent examples.
    """

    title: ClassVar[str]  # name used in messages; default: the name of the class in lower case
    cli_command: ClassVar[str] = ""  # CLI command that runs models trained on this task; "": none
    metrics: ClassVar[Mapping[str, Metric]] = {"loss": LOSS}  # of `validate`
    test_metrics: ClassVar[Mapping[str, Metric]] = {}  # returned by `evaluate` only
    searches: ClassVar[bool] = False  # whether `evaluate` takes search settings
    columns: ClassVar[tuple[Column, ...]] = ()  # of its result tables; empty: those of the dataset
    evaluates_train: ClassVar[bool] = True  # whether `evaluate` takes the training split
    model: ClassVar[type[Any]]  # base class of the models that can be trained on it
    model_options: ClassVar[Mapping[str, Any]] = {}  # model config keys that the task fixes
    from_data: ClassVar[tuple[str, ...]] = ()  # model config keys that are set from the data
    datasets: ClassVar[tuple[type[Dataset[Any]], ...]]  # types of dataset it can be trained on
    config_class: ClassVar[type[TaskConfig]] = TaskConfig
    batch_units: ClassVar[tuple[str, ...]] = ("tokens", "examples")  # valid values of train.batch_by

    shard_unit: ClassVar[Unit | None] = None  # what is tokenized if a text is read from shards; None: it is not
    unit: ClassVar[str] = "tok"  # unit of `Batch.tokens` in the progress display
    evaluation_unit: ClassVar[str] = "examples"  # unit of `Evaluation.size`
    capturable: bool = False  # whether the loss can be captured in a CUDA graph
    splittable: ClassVar[bool] = True  # whether the weighted losses of the parts of a batch sum to its loss

    valid: Any  # prepared validation examples

    def __init__(self, data: Any, tokenizer: Any, model: Any, options: Any, train: TrainConfig, seed: int) -> None:
        self.tokenizer = tokenizer  # None without text, and for models of characters
        self.model_config = model
        self.options = options
        self.train_config = train
        self.seed = seed
        self.notes: tuple[str, ...] = data.notes  # messages for the user, e.g. about skipped examples
        self.setup(data)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "title"):
            cls.title = re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__.removesuffix("Task")).lower()

    @classmethod
    def metric(cls, name: str) -> Metric:
        """Return the metric with a name that `validate` or `evaluate` returns."""
        return cls.test_metrics[name] if name in cls.test_metrics else cls.metrics[name]

    @classmethod
    def accepts_tokenizer(cls, name: str) -> bool:
        """Whether a tokenizer can be used: WordPiece lacks the <s> and </s> that decoders need, and only the tasks of
        dialogue have speakers.
        """
        return name != "dialogue" and (name != "wordpiece" or issubclass(cls.model, TextEncoder))

    @classmethod
    def check_recipe(cls, options: Any, data: Any, model: Any) -> None:
        """Raise ConfigError if the options, the dataset and the model config do not fit together."""
        return

    @classmethod
    def train_tokenizer(cls, data: Dataset[Any], config: DatasetConfig, model: Any) -> Tokenizer | None:
        """Train a tokenizer on the training texts; None for data without text and for models of characters."""
        return train_tokenizer(data, config) if getattr(model, "max_characters", None) is None else None

    @classmethod
    def sizes(cls, data: Any, tokenizer: Any) -> dict[str, Any]:
        """Values of the model config keys in `from_data`; by default the size of the vocabulary."""
        return {key: len(tokenizer) for key in cls.from_data}

    @classmethod
    def reader_options(cls, model: Any) -> dict[str, Any]:
        """Options of datasets of user files that follow from a model config, e.g. the size of images."""
        return {}

    @abstractmethod
    def setup(self, data: Any) -> None:
        """Prepare the training and validation examples."""

    @abstractmethod
    def describe(self) -> str:
        """Size of the training data, e.g. "29,000 pairs"."""

    @abstractmethod
    def epoch(self, number: int) -> Sequence[list[int]]:
        """Batches of an epoch as lists of example indices; determined by the seed and the epoch number.

        For a large corpus this is a `LazyBatches`, which takes the same time and memory for any number of batches.
        """

    @abstractmethod
    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> Batch:
        """Collate a batch of the epoch requested last; `padded_to_shape` pads it to one of a few fixed shapes."""

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> Float[Tensor, ""]:
        """Training loss: a mean over the batch's tokens."""

    def validate(self, model: Any) -> dict[str, float]:
        """All metrics of the task on the validation data."""
        return self.score_examples(model, self.valid)

    def samples(self, model: Any, count: int) -> list[Sample]:
        """Outputs for the first `count` validation examples, shown while training; none if the task has no outputs.

        No random numbers may be drawn from PyTorch's generators, since training continues with them.
        """
        return []

    def evaluate(self, model: Any, data: Any, split: str) -> Evaluation:
        """All metrics of the task on a whole split."""
        examples = self.examples(data, split)
        return Evaluation(len(examples), self.evaluation_unit, self.score_examples(model, examples))

    def examples(self, data: Any, split: str) -> Any:
        """The examples of a split, prepared for `score_examples`."""
        return data.splits[split]

    def score_examples(self, model: Any, examples: Any) -> dict[str, float]:
        """All metrics on prepared examples."""
        raise NotImplementedError

    @classmethod
    def splits(cls, data: Any) -> list[str]:
        """The splits a model can be evaluated on."""
        return [split for split in data.splits if split != "train" or cls.evaluates_train]

    @classmethod
    def for_evaluation(cls, data: Any, model: Any, options: Any, train: TrainConfig, seed: int) -> "Task":
        """Prepare the task to evaluate a model."""
        return cls(data, model.tokenizer, model.config, options, train, seed)

    def check_files(self, data: Any, split: str) -> None:  # noqa: B027  (most tasks have no labels)
        """Raise if the examples of user files, read as a split, cannot be scored with the model."""

    def notes_on(self, data: Any, split: str) -> tuple[str, ...]:
        """Notes for the user about a split."""
        return ()

    def carried_state(self) -> dict[str, Tensor]:
        """State carried between training steps, other than the weights; saved in checkpoints."""
        return {}

    def load_carried_state(self, model: Any, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027  (most tasks are stateless)
        """Restore what `carried_state` returned when the checkpoint was saved."""


def train_tokenizer(data: Dataset[Any], config: DatasetConfig) -> Tokenizer | None:
    """Train the tokenizer on the training texts (one per side with `target_tokenizer`); None for data without text."""
    if not isinstance(config, TextDatasetConfig):
        return None
    source_tokens = data.source_tokens if isinstance(data, PairDataset) else ()
    if isinstance(config, PairConfig) and config.target_tokenizer is not None and isinstance(data, PairDataset):
        return PairTokenizer(
            _train(config.tokenizer, data.source_texts(), config.lowercase or config.lowercase_source, source_tokens),
            _train(config.target_tokenizer, data.target_texts(), config.lowercase),
        )
    if isinstance(data, LargeText):
        return cached_tokenizer(data, config)
    return _train(config.tokenizer, data.training_texts(), config.lowercase, source_tokens)


def _train(term: Term, texts: Iterable[str], lowercase: bool, added_tokens: Sequence[str] = ()) -> Tokenizer:
    tokenizer: Tokenizer = term.cls.train(texts, lowercase=lowercase, **term.options)
    return tokenizer.with_tokens(added_tokens) if added_tokens else tokenizer


def random_batches(count: int, size: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of `size` of the numbers below `count`, in an order determined by the seed and the epoch."""
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return [order[begin : begin + size] for begin in range(0, count, size)]


def perplexity(loss: float) -> float:
    """exp(loss), of losses that do not overflow."""
    return math.exp(min(loss, 700.0))
