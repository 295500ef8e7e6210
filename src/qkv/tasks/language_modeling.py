"""Language modeling task: predict the next token of a running text."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch

from qkv.config import Budget, Rate
from qkv.datasets.batching import IGNORE
from qkv.datasets.dataset import TextDataset
from qkv.datasets.shards.large_text import LargeText
from qkv.datasets.shards.permutation import LazyBatches, permuted_batches
from qkv.datasets.shards.token_shards import TokenShards
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import CheckpointError, InputError
from qkv.metrics import Metric
from qkv.nn.interfaces import LanguageModel, detach_state, replace_tensors, select, state_tensors
from qkv.nn.losses import linear_cross_entropy, token_cross_entropy
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.samples import continuations
from qkv.tasks.base.task import LOSS, Sample, Task, TaskConfig, perplexity
from qkv.tasks.base.tokenized_text import TokenizedText
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Int, Tensor

PARTS = 16  # the validation text is split into, evaluated side by side
Tokens = np.ndarray | TokenShards  # of the training text; a slice of either is an array
MIN_PART = 1024  # tokens; shorter parts would mostly measure tokens with little context


@dataclass(frozen=True)
class Chunk(TensorBatch):
    """The next `length` tokens of every stream, and the token after each."""

    inputs: Int[Tensor, "streams length"]
    targets: Int[Tensor, "streams length"]
    starts_stream: bool  # whether the streams begin here
    first_stream: int = 0  # number of its first stream

    @property
    def tokens(self) -> int:
        return self.inputs.numel()

    def split(self, count: int) -> list[tuple["Chunk", float]]:
        streams = len(self.inputs)
        if streams < count:
            raise InputError(
                f"a batch of {streams} stream(s) cannot be split into {count} parts: raise train.batch_size or lower "
                "train.accumulate or the number of processes"
            )
        parts = super().split(count)
        starts = accumulate((len(part.inputs) for part, _ in parts), initial=0)
        return [
            (replace(part, first_stream=start), fraction)
            for start, (part, fraction) in zip(starts, parts, strict=False)
        ]


class LanguageModelingConfig(TaskConfig):
    """Options of the task."""

    length: Budget = 256  # tokens of truncated back-propagation through time
    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy
    shuffle: bool | None = None  # chunks in random order; unset: if text is in shards and the model's context bounded


@register("task", "language_model")
class LanguageModelingTask(Task):
    """The text is split into parallel streams, processed a chunk at a time (truncated back-propagation through time).

    The state is carried from chunk to chunk, the gradient is not; a model with a bounded context starts afresh in each
    chunk. The streams of each epoch start at a different offset in the text, so that the chunk boundaries vary.
    With `shuffle`, for models with a bounded context, a batch has chunks from anywhere in the text.
    """

    title = "language modeling"
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
    shard_unit = "text"

    def setup(self, data: TextDataset) -> None:
        options, train = self.options, self.train_config
        if train.batching.rows(options.length) < 1:
            raise InputError(
                f"train.batch_size = {train.batch_size} is less than one chunk of task.length = {options.length} tokens"
            )
        self.max_length: int | None = getattr(self.model_config, "max_length", None)  # None if unbounded
        if self.max_length is not None and options.length > self.max_length:
            raise InputError(f"task.length = {options.length} exceeds the model's context of {self.max_length} tokens")
        sharded = isinstance(data, LargeText)
        self.shuffled = sharded and self.max_length is not None if options.shuffle is None else options.shuffle
        if self.shuffled and self.max_length is None:
            raise InputError("task.shuffle = true requires a model with a bounded context: this one carries its state")
        self.text: Tokens = self._train_tokens(data)
        self.data = data
        if len(self.text) <= self.streams * options.length:
            raise InputError(
                f"the training text has {len(self.text):,} tokens, too few for {self.streams} streams of "
                f"{options.length} tokens and one more: lower train.batch_size or task.length"
            )
        if not sharded and len(self.valid.tokens) < 2:
            raise InputError("the validation text has fewer than two tokens")
        self.capturable = self.max_length is not None  # no state is carried between steps
        self.offset = 0  # of this epoch's streams in the text
        self.states: dict[int, Any] = {}  # model states at the end of the last chunk, by their first stream
        self.restored: Any = None  # state of all streams, from a checkpoint

    @cached_property
    def valid(self) -> "EncodedText":
        """The validation text; that of a text in shards is tokenized when it is first used."""
        return self.examples(self.data, "valid")

    @property
    def streams(self) -> int:
        """Number of parallel streams."""
        return self.train_config.batching.rows(self.options.length)

    def describe(self) -> str:
        return f"{len(self.text):,} tokens"

    def _train_tokens(self, data: TextDataset) -> "Tokens":
        if isinstance(data, LargeText):
            return TokenizedText(data, self.tokenizer.target, "text").open()
        return self.examples(data, "train").tokens.numpy()

    def epoch(self, number: int) -> LazyBatches:
        """Each batch is one chunk of all streams, or, with `shuffle`, as many chunks of the whole text."""
        length = self.options.length
        max_offset = min(length, len(self.text) - self.streams * length)
        self.offset = random.Random(f"{self.seed} {number}").randrange(max_offset)
        tokens = len(self.text) - 1 - self.offset
        if self.shuffled:
            return permuted_batches(tokens // length, self.streams, f"{self.seed} {number}")
        return LazyBatches(tokens // self.streams // length, lambda chunk: [chunk])

    def samples(self, model: LanguageModel[Any], count: int) -> list[Sample]:
        length = len(self.valid) // count
        return continuations(model, self.tokenizer, [self.valid.tokens[n * length :] for n in range(count)])

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> Chunk:
        """Return a chunk of each stream; they all have the same shape."""
        length = self.options.length
        stream_length = (len(self.text) - 1 - self.offset) // self.streams
        if self.shuffled:
            starts = [self.offset + row * length for row in rows]
        else:
            (chunk,) = rows
            starts = [self.offset + stream * stream_length + chunk * length for stream in range(self.streams)]
        tokens = torch.from_numpy(np.stack([self.text[start : start + length + 1] for start in starts]))
        return Chunk(tokens[:, :-1], tokens[:, 1:], starts_stream=self.shuffled or rows[0] == 0)

    def loss(self, model: LanguageModel[Any], batch: Chunk) -> Float[Tensor, ""]:
        """Mean cross-entropy of the chunk in nats; keeps the state for the next chunk if the context is unbounded."""
        if self.max_length is not None:
            hidden = model.hidden_states(batch.inputs)
        else:
            state = model.init_state(len(batch.inputs)) if batch.starts_stream else self._state(batch)
            hidden, state = model.hidden_from(batch.inputs, state)
            self.states = {**self.states, batch.first_stream: detach_state(state)}
        return linear_cross_entropy(hidden, model.readout, batch.targets, IGNORE, self.options.label_smoothing)

    def _state(self, batch: Chunk) -> Any:
        """State of the streams of a batch: that of the last chunk, or the restored one."""
        first, device = batch.first_stream, batch.inputs.device
        if first in self.states:
            return self.states[first]
        return select(self.restored, torch.arange(first, first + len(batch.inputs), device=device))

    def examples(self, data: TextDataset, split: str) -> "EncodedText":
        return EncodedText.from_text(self.tokenizer.target, data.splits[split])

    def score_examples(self, model: LanguageModel[Any], examples: "EncodedText") -> dict[str, float]:
        return examples.scores(model, self.train_config.batching.size, self.options.length)

    def evaluate(self, model: LanguageModel[Any], data: TextDataset, split: str) -> Evaluation:
        return replace(super().evaluate(model, data, split), size=len(data.splits[split]))

    def carried_state(self) -> dict[str, Tensor]:
        states = [state_tensors(self.states[first]) for first in sorted(self.states)]
        if len(states) < 2:
            return states[0] if states else state_tensors(self.restored)
        return {name: torch.cat([state[name] for state in states]) for name in states[0]}

    def load_carried_state(self, model: LanguageModel[Any], tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            return
        fresh = model.init_state(self.streams)
        if state_tensors(fresh).keys() != tensors.keys():
            raise CheckpointError(f"the checkpoint's state ({', '.join(tensors)}) does not match this model")
        self.states = {}
        self.restored = replace_tensors(fresh, {name: tensor.to(model.device) for name, tensor in tensors.items()})


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
        """Metrics of language modeling: -log p of every token but the first, averaged.

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
