"""Language modelling of packed documents: predict the next token within each document.

Documents are packed into rows of one length (`qkv.datasets.packing`) with hardly any padding, and a mask keeps them
apart (`qkv.attention.Documents`). Each document ends with an end token.
"""

import math
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.datasets.packing import IGNORE_INDEX, Packed, pack
from qkv.datasets.registry import LoadedData
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.models.gpt2 import GPT2
from qkv.nn.losses.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.tasks.task import ScoredTask, Settings, SplitScores
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
    count: int  # number of targets

    @property
    def tokens(self) -> int:
        return self.count


@dataclass
class DocumentLanguageModelTask(ScoredTask):
    """Language modelling of documents, packed in a new order in each epoch so that row boundaries vary."""

    title = "language modelling of documents"
    cli_command = "generate"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),  # nats per token
        "perplexity": Metric("perplexity", higher_is_better=False),  # exp(loss)
    }
    model = GPT2
    learns_from = ("text", "labelled")
    from_data = ("vocabulary_size", "ends")
    capturable = True

    tokenizer: Tokenizer
    train: list[Document]
    valid: list[Document]
    settings: Settings
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.rows: Packed | None = None  # of the current epoch

    @classmethod
    def placeholder_sizes(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"vocabulary_size": 1, "ends": True}

    @classmethod
    def sizes(cls, data: LoadedData, tokenizer: Tokenizer) -> dict[str, Any]:
        return {"vocabulary_size": len(tokenizer.target), "ends": True}

    @classmethod
    def prepare(
        cls, data: LoadedData, tokenizer: Tokenizer, model: Any, train: Settings, seed: int
    ) -> "DocumentLanguageModelTask":
        if train.length < 2:
            raise InputError("train.length must be at least 2: a row of one token has no next token")
        if train.length > train.batch_tokens:
            raise InputError(
                f"train.batch_tokens = {train.batch_tokens} is less than one row of train.length = {train.length}"
            )
        if train.length > model.max_length:
            raise InputError(f"train.length = {train.length} exceeds the model's context of {model.max_length} tokens")
        texts = encode_documents(tokenizer.target, data.documents("train"))
        valid = encode_documents(tokenizer.target, data.documents("valid")[: train.valid_size])
        if not any(len(text) > 1 for text in texts) or not any(len(text) > 1 for text in valid):
            raise InputError("there are no documents with two tokens or more to train or to validate on")
        return cls(tokenizer, texts, valid, train, seed, data.notes)

    def describe(self) -> str:
        return f"{len(self.train):,} documents, {sum(map(len, self.train)):,} tokens"

    def epoch(self, number: int) -> list[list[int]]:
        order = random.Random(f"{self.seed} {number}").sample(self.train, len(self.train))
        self.rows = pack(order, self.settings.length, PAD)
        return [*_consecutive(len(self.rows.tokens), self._batch_rows)]

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> PackedBatch:
        if self.rows is None:
            raise InputError("call epoch() before batch()")
        return _batch(self.rows, rows, self._batch_rows if padded_to_shape else 0)

    @property
    def _batch_rows(self) -> int:
        """Number of rows per batch."""
        return self.settings.batch_tokens // self.settings.length

    def loss(self, model: GPT2, batch: PackedBatch) -> Float[Tensor, ""]:
        logits = model(batch.inputs, documents=batch.documents)
        return mean_cross_entropy(logits, batch.targets, IGNORE_INDEX, self.settings.label_smoothing, consume=True)

    def validate(self, model: GPT2) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: LoadedData) -> list[str]:
        return [split for split in data.texts or data.splits if split != "train"]

    def evaluate(self, model: GPT2, data: LoadedData, split: str) -> SplitScores:
        texts = encode_documents(self.tokenizer.target, data.documents(split))
        return SplitScores(len(texts), "documents", self._scores(model, texts))

    @torch.inference_mode()
    def _scores(self, model: GPT2, texts: Sequence[Document]) -> dict[str, float]:
        """Metrics over every token but the first of each document, or of its part in a row."""
        packed = pack(texts, self.settings.length, PAD)
        total, count = torch.zeros((), dtype=torch.float64, device=model.device), 0
        for rows in _consecutive(len(packed.tokens), self._batch_rows):
            batch = _batch(packed, rows).to(model.device)
            total += token_cross_entropy(model(batch.inputs, documents=batch.documents), batch.targets, IGNORE_INDEX)
            count += batch.count
        loss = float(total) / count
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}  # avoid overflow


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
