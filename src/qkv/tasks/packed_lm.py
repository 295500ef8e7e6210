"""Language modeling of packed documents: predict the next token within each document.

Documents are packed into rows of one length (`qkv.datasets.packing`) with hardly any padding, and a mask keeps them
apart (`qkv.attention.Documents`). Each document ends with an end token.
"""

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional as F

from qkv.config import Rate
from qkv.datasets.columns import PERPLEXITY, Column
from qkv.datasets.dataset import Dataset, LabeledTextDataset, TextDataset
from qkv.datasets.packing import IGNORE_INDEX, Packed, pack, packed_rows
from qkv.datasets.shards.large_text import LargeText
from qkv.datasets.shards.permutation import permuted_batches
from qkv.datasets.shards.token_shards import TokenShards
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.models.gpt2 import GPT2
from qkv.nn.losses import linear_cross_entropy, token_cross_entropy
from qkv.registry import register
from qkv.tasks.base.samples import continuations
from qkv.tasks.base.task import LOSS, Sample, Task, TaskConfig, perplexity
from qkv.tasks.base.tokenized_text import TokenizedText
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.trained import PAD
from qkv.types import Float, Int, Tensor

Document = Sequence[int]  # token ids


@dataclass(frozen=True)
class PackedBatch(TensorBatch):
    """Rows of packed documents."""

    inputs: Int[Tensor, "rows length"]
    documents: Int[Tensor, "rows length"]  # index of the document of each token
    targets: Int[Tensor, "rows length"]  # the next token of the same document, or IGNORE_INDEX
    tokens: int  # number of targets

    def count_tokens(self) -> int:
        return int((self.targets != IGNORE_INDEX).sum())


class PackedLMConfig(TaskConfig):
    """Options of the task."""

    length: Annotated[int, Field(ge=2, le=2**30)] = 256  # tokens of a row
    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy


@register("task", "packed_lm")
class PackedLMTask(Task):
    """Language modeling of documents, packed in a new order in each epoch so that row boundaries vary."""

    title = "language modeling of documents"
    cli_command = "generate"
    metrics: ClassVar = {
        "loss": LOSS,  # nats per token
        "perplexity": Metric("perplexity", higher_is_better=False),  # exp(loss)
    }
    model = GPT2
    datasets: ClassVar[tuple[type[Dataset[Any]], ...]] = (TextDataset, LabeledTextDataset)
    config_class = PackedLMConfig
    model_options: ClassVar = {"has_end_token": True}
    columns: ClassVar[tuple[Column, ...]] = (PERPLEXITY,)
    from_data = ("vocab_size",)
    evaluation_unit = "documents"
    evaluates_train = False
    capturable = True
    shard_unit = "documents"

    def setup(self, data: Dataset[Any]) -> None:
        options, train, max_length = self.options, self.train_config, self.model_config.max_length
        if train.batching.rows(options.length) < 1:
            raise InputError(
                f"train.batch_size = {train.batch_size} is less than one row of task.length = {options.length} tokens"
            )
        if options.length > max_length:
            raise InputError(f"task.length = {options.length} exceeds the model's context of {max_length} tokens")
        self.shards = (
            TokenizedText(data, self.tokenizer.target, "documents").open() if isinstance(data, LargeText) else None
        )
        if self.shards is not None and len(self.shards) < self._batch_rows * options.length + options.length:
            raise InputError(
                f"the training text has {len(self.shards):,} tokens, too few for a batch: lower train.batch_size"
            )
        self.train = self.examples(data, "train") if self.shards is None else []
        self.valid = self.encode(data.documents("valid")[: train.valid_size])
        examples = (self.valid,) if self.shards is not None else (self.train, self.valid)
        if not all(any(len(text) > 1 for text in texts) for texts in examples):
            raise InputError("there are no documents with two tokens or more to train or to validate on")
        self.rows: Packed | None = None  # of the current epoch
        self.offset = 0  # of the rows of the current epoch in the shards

    def describe(self) -> str:
        if self.shards is not None:
            documents = sum(shard.documents for shard in self.shards.index.shards)
            return f"{documents:,} documents, {len(self.shards):,} tokens"
        return f"{len(self.train):,} documents, {sum(map(len, self.train)):,} tokens"

    def epoch(self, number: int) -> Sequence[list[int]]:
        """Rows of documents in a new order; those of shards are in the order of the text, cut at varying points."""
        if self.shards is not None:
            self.offset = random.Random(f"{self.seed} {number}").randrange(self.options.length)
            count = (len(self.shards) - self.offset) // self.options.length
            return permuted_batches(count, self._batch_rows, f"{self.seed} {number}")
        order = random.Random(f"{self.seed} {number}").sample(self.train, len(self.train))
        self.rows = pack(order, self.options.length, PAD)
        return [*_consecutive(len(self.rows.tokens), self._batch_rows)]

    def samples(self, model: GPT2, count: int) -> list[Sample]:
        return continuations(model, self.tokenizer, self.valid[:count])

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> PackedBatch:
        if self.shards is not None:
            return _batch(self._read_rows(self.shards, rows), range(len(rows)))
        if self.rows is None:
            raise InputError("call epoch() before batch()")
        return _batch(self.rows, rows, self._batch_rows if padded_to_shape else 0)

    def _read_rows(self, shards: TokenShards, rows: Sequence[int]) -> Packed:
        """Read rows from shards, where an end token is the last of each document."""
        length = self.options.length
        starts = [self.offset + row * length for row in rows]
        tokens = torch.from_numpy(np.stack([shards[start : start + length] for start in starts]))
        ends = (tokens == self.tokenizer.target.special_tokens.end).long()
        return packed_rows(tokens, ends.cumsum(dim=1) - ends)

    @property
    def _batch_rows(self) -> int:
        """Number of rows per batch."""
        return self.train_config.batching.rows(self.options.length)

    def loss(self, model: GPT2, batch: PackedBatch) -> Float[Tensor, ""]:
        hidden = model.hidden_states(batch.inputs, documents=batch.documents)
        return linear_cross_entropy(hidden, model.readout, batch.targets, IGNORE_INDEX, self.options.label_smoothing)

    def examples(self, data: Dataset[Any], split: str) -> list[Document]:
        return self.encode(data.documents(split))

    def encode(self, texts: Sequence[str]) -> list[Document]:
        """Token ids of each document, with an end token if the vocabulary has one."""
        return encode_documents(self.tokenizer.target, texts)

    @torch.inference_mode()
    def score_examples(self, model: GPT2, examples: Sequence[Document]) -> dict[str, float]:
        """Metrics over every token but the first of each document, or of its part in a row."""
        packed = pack(examples, self.options.length, PAD)
        total, count = torch.zeros((), dtype=torch.float64, device=model.device), 0
        for rows in _consecutive(len(packed.tokens), self._batch_rows):
            batch = _batch(packed, rows).to(model.device)
            total += token_cross_entropy(model(batch.inputs, documents=batch.documents), batch.targets, IGNORE_INDEX)
            count += batch.tokens
        loss = float(total) / count
        return {"loss": loss, "perplexity": perplexity(loss)}


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Document]:
    """Token ids of each document, with an end token if the vocabulary has one."""
    end = tokenizer.special_tokens.end
    suffix = [] if end is None else [end]
    return [array("i", [*ids, *suffix]) for ids in tokenizer.encode(texts)]


def _consecutive(count: int, size: int) -> Iterator[list[int]]:
    for begin in range(0, count, size):
        yield [*range(begin, min(begin + size, count))]


def _batch(packed: Packed, rows: Sequence[int], min_rows: int = 0) -> PackedBatch:
    """Collate some of the rows, padded with empty ones to at least `min_rows`."""
    chosen = slice(rows[0], rows[-1] + 1)
    missing = (0, 0, 0, max(0, min_rows - len(rows)))
    targets = packed.targets[chosen]
    return PackedBatch(
        F.pad(packed.tokens[chosen], missing, value=PAD),
        F.pad(packed.texts[chosen], missing, value=IGNORE_INDEX),
        F.pad(targets, missing, value=IGNORE_INDEX),
        int((targets != IGNORE_INDEX).sum()),
    )
