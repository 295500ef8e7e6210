"""Language modelling task: predict the next token of a running text."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from qkv.config import Budget, Rate
from qkv.datasets.batching import IGNORE
from qkv.datasets.dataset import TextDataset
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import CheckpointError, InputError
from qkv.metrics import Metric
from qkv.nn.interfaces import LanguageModel, detach_state, replace_tensors, select, state_tensors
from qkv.nn.losses import mean_cross_entropy, token_cross_entropy
from qkv.registry import register
from qkv.tasks.task import LOSS, Evaluation, Task, TaskConfig, perplexity
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Int, Tensor

PARTS = 16  # the validation text is split into, evaluated side by side
MIN_PART = 1024  # tokens; shorter parts would mostly measure tokens with little context


@dataclass(frozen=True)
class Chunk(TensorBatch):
    """The next `length` tokens of every stream, and the token after each."""

    inputs: Int[Tensor, "streams length"]
    targets: Int[Tensor, "streams length"]
    starts_stream: bool  # whether the streams begin here

    @property
    def tokens(self) -> int:
        return self.inputs.numel()


class LanguageModelingConfig(TaskConfig):
    """Options of the task."""

    length: Budget = 256  # tokens of truncated back-propagation through time
    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy


@register("task", "language_model")
class LanguageModelingTask(Task):
    """The text is split into parallel streams, processed a chunk at a time (truncated back-propagation through time).

    The state is carried from chunk to chunk, the gradient is not; a model with a bounded context starts afresh in each
    chunk. The streams of each epoch start at a different offset in the text, so that the chunk boundaries vary.
    """

    title = "language modelling"
    cli_command = "generate"
    metrics: ClassVar = {
        "loss": LOSS,  # nats per token
        "perplexity": Metric("perplexity", higher_is_better=False),  # exp(loss)
        "nats": Metric("nats", higher_is_better=False),  # per character
        "bits": Metric("bits", higher_is_better=False),  # per character
    }
    model = LanguageModel
    datasets = (TextDataset,)
    config_class = LanguageModelingConfig
    from_data = ("vocab_size",)
    evaluation_unit = "characters"
    evaluates_train = False

    def setup(self, data: TextDataset) -> None:
        options, train = self.options, self.train_config
        if train.batching.rows(options.length) < 1:
            raise InputError(
                f"train.batch_size = {train.batch_size} is less than one chunk of task.length = {options.length} tokens"
            )
        self.max_length: int | None = getattr(self.model_config, "max_length", None)  # None if unbounded
        if self.max_length is not None and options.length > self.max_length:
            raise InputError(f"task.length = {options.length} exceeds the model's context of {self.max_length} tokens")
        self.text = self.examples(data, "train").tokens
        self.valid = self.examples(data, "valid")
        if len(self.text) <= self.streams * options.length:
            raise InputError(
                f"the training text has {len(self.text):,} tokens, too few for {self.streams} streams of "
                f"{options.length} tokens and one more: lower train.batch_size or task.length"
            )
        if len(self.valid.tokens) < 2:
            raise InputError("the validation text has fewer than two tokens")
        self.capturable = self.max_length is not None  # no state is carried between steps
        self.offset = 0  # of this epoch's streams in the text
        self.state: Any = None  # model state at the end of the last chunk

    @property
    def streams(self) -> int:
        """Number of parallel streams."""
        return self.train_config.batching.rows(self.options.length)

    def describe(self) -> str:
        return f"{len(self.text):,} tokens"

    def epoch(self, number: int) -> list[list[int]]:
        """Each batch is one chunk of all streams."""
        length = self.options.length
        max_offset = min(length, len(self.text) - self.streams * length)
        self.offset = random.Random(f"{self.seed} {number}").randrange(max_offset)
        return [[chunk] for chunk in range((len(self.text) - 1 - self.offset) // self.streams // length)]

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> Chunk:
        """Return a chunk; they all have the same shape."""
        (chunk,) = rows
        length = self.options.length
        stream_length = (len(self.text) - 1 - self.offset) // self.streams
        inputs, targets = (
            self.text[begin : begin + self.streams * stream_length].view(self.streams, stream_length)
            for begin in (self.offset, self.offset + 1)
        )
        columns = slice(chunk * length, (chunk + 1) * length)
        return Chunk(inputs[:, columns], targets[:, columns], starts_stream=chunk == 0)

    def loss(self, model: LanguageModel[Any], batch: Chunk) -> Float[Tensor, ""]:
        """Mean cross-entropy of the chunk in nats; keeps the state for the next chunk if the context is unbounded."""
        fresh = batch.starts_stream or self.max_length is not None
        logits, state = model.forward_from(batch.inputs, model.init_state(len(batch.inputs)) if fresh else self.state)
        if self.max_length is None:
            self.state = detach_state(state)
        return mean_cross_entropy(logits, batch.targets, IGNORE, self.options.label_smoothing, consume=True)

    def examples(self, data: TextDataset, split: str) -> "EncodedText":
        return EncodedText.from_text(self.tokenizer.target, data.splits[split])

    def score_examples(self, model: LanguageModel[Any], examples: "EncodedText") -> dict[str, float]:
        return examples.scores(model, self.train_config.batching.size, self.options.length)

    def evaluate(self, model: LanguageModel[Any], data: TextDataset, split: str) -> Evaluation:
        return replace(super().evaluate(model, data, split), size=len(data.splits[split]))

    def carried_state(self) -> dict[str, Tensor]:
        return state_tensors(self.state)

    def load_carried_state(self, model: LanguageModel[Any], tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            return
        fresh = model.init_state(self.streams)
        if state_tensors(fresh).keys() != tensors.keys():
            raise CheckpointError(f"the checkpoint's state ({', '.join(tensors)}) does not match this model")
        self.state = replace_tensors(fresh, {name: tensor.to(model.device) for name, tensor in tensors.items()})


@dataclass(frozen=True)
class EncodedText:
    """Token ids of a running text."""

    tokens: Int[Tensor, "tokens"]
    characters: int  # number of predicted characters: all but those of the first token

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def from_text(cls, tokenizer: Tokenizer, text: str) -> "EncodedText":
        ids = tokenizer.encode(text)
        first = len(tokenizer.decode(ids[:1]))
        return cls(torch.tensor(ids, dtype=torch.long), len(tokenizer.normalize(text)) - first)

    @torch.inference_mode()
    def scores(self, model: LanguageModel[Any], budget: int, length: int) -> dict[str, float]:
        """Metrics of language modelling: -log p of every token but the first, averaged.

        The text is split into PARTS (fewer if it is short), each processed from a fresh state, `budget` tokens at a
        time; the first tokens of each part have less context. A model with a bounded context is evaluated on chunks of
        `length` tokens, or as long as it allows, each from a fresh state.
        """
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        if model.max_length is None:
            batches = self._stateful_logits(model, budget, max(1, min(PARTS, len(self.tokens) // MIN_PART)))
        else:
            batches = self._chunk_logits(model, budget, min(model.max_length, length))
        for logits, targets in batches:
            total += token_cross_entropy(logits, targets, IGNORE)
        nats, tokens = float(total), len(self.tokens) - 1
        loss, per_character = nats / tokens, nats / max(1, self.characters)
        return {
            "loss": loss,
            "perplexity": perplexity(loss),
            "nats": per_character,
            "bits": per_character / math.log(2),
        }

    def _stateful_logits(
        self, model: LanguageModel[Any], budget: int, parts: int
    ) -> Iterator[tuple[Float[Tensor, "parts length vocabulary"], Int[Tensor, "parts length"]]]:
        """Yield the logits for every token but the first, with their targets, carrying the state along."""
        text = self.tokens.to(model.device)
        part_length = (len(text) - 1) // parts
        inputs, targets = (text[begin : begin + parts * part_length].view(parts, part_length) for begin in (0, 1))
        state, length = model.init_state(parts), max(1, budget // parts)
        for begin in range(0, part_length, length):
            logits, state = model.forward_from(inputs[:, begin : begin + length], state)
            yield logits, targets[:, begin : begin + length]
        if parts * part_length < len(text) - 1:  # the remainder continues the last part
            last = select(state, torch.full((1,), parts - 1, device=model.device))
            logits, _ = model.forward_from(text[None, parts * part_length : -1], last)
            yield logits, text[None, parts * part_length + 1 :]

    def _chunk_logits(
        self, model: LanguageModel[Any], budget: int, length: int
    ) -> Iterator[tuple[Float[Tensor, "chunks length vocabulary"], Int[Tensor, "chunks length"]]]:
        """Yield logits and targets chunk by chunk, each from a fresh state; the remainder is a shorter chunk."""
        text = self.tokens.to(model.device)
        count = (len(text) - 1) // length
        inputs, targets = (text[begin : begin + count * length].view(count, length) for begin in (0, 1))
        for rows in torch.arange(count, device=text.device).split(max(1, budget // length)):
            yield model(inputs[rows]), targets[rows]
        if count * length < len(text) - 1:
            yield model(text[None, count * length : -1]), text[None, count * length + 1 :]
