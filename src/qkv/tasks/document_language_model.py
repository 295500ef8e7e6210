"""Language modelling of documents as a task to learn: which token comes next, in texts that know nothing of each other.

Texts are laid one after the other in rows of one length (`qkv.data.packing`): hardly a place is lost on padding, and a
mask keeps each text to itself (`qkv.attention.Documents`). Each text ends with a token that says so.
"""

import math
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.data.packing import IGNORE_INDEX, Packed, pack
from qkv.data.registry import LoadedData
from qkv.data.tensor_batch import TensorBatch
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import END, PAD, Vocabulary
from qkv.errors import InputError
from qkv.interop.vocabularies import AnyTokenizer
from qkv.metrics import Metric
from qkv.models.gpt2 import GPT2
from qkv.objectives.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Int, Tensor

Text = Sequence[int]  # the tokens of a document


@dataclass(frozen=True)
class PackedBatch(TensorBatch):
    """Some rows."""

    read: Int[Tensor, "rows length"]
    texts: Int[Tensor, "rows length"]  # which text each token is of
    coming: Int[Tensor, "rows length"]  # the token after it in the same text, or IGNORE_INDEX
    count: int  # of the tokens that come

    @property
    def tokens(self) -> int:
        return self.count


@dataclass
class DocumentLanguageModelTask(ScoredTask):
    """The documents come in another order in each epoch, so that the ends of rows fall elsewhere."""

    title = "language modelling of documents"
    command = "generate"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),  # nats a token
        "perplexity": Metric("perplexity", higher_is_better=False),  # e to the loss
    }
    model = GPT2
    learns_from = ("text", "labelled")
    from_data = ("vocabulary_size", "ends")
    capturable = True

    vocabulary: AnyTokenizer
    train: list[Text]
    valid: list[Text]
    settings: Settings
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.rows: Packed | None = None  # of this epoch

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"vocabulary_size": 1, "ends": True}

    @classmethod
    def sizes(cls, data: LoadedData, vocabulary: AnyTokenizer) -> dict[str, Any]:
        return {"vocabulary_size": len(vocabulary.target), "ends": True}

    @classmethod
    def prepare(
        cls, data: LoadedData, vocabulary: AnyTokenizer, model: Any, train: Settings, seed: int
    ) -> "DocumentLanguageModelTask":
        if train.length < 2:
            raise InputError("train.length must be 2 at least: in a row of one token there is no next one")
        if train.length > train.batch_tokens:
            raise InputError(
                f"train.batch_tokens = {train.batch_tokens} is less than one row of train.length = {train.length}"
            )
        if train.length > model.max_length:
            raise InputError(
                f"train.length = {train.length} is more than the model can look at: {model.max_length} tokens"
            )
        texts = encoded(vocabulary.target, data.documents("train"))
        valid = encoded(vocabulary.target, data.documents("valid")[: train.valid_size])
        if not any(len(text) > 1 for text in texts) or not any(len(text) > 1 for text in valid):
            raise InputError("there are no documents to learn from, or none to validate with")
        return cls(vocabulary, texts, valid, train, seed, data.notes)

    def describe(self) -> str:
        return f"{len(self.train):,} documents, {sum(map(len, self.train)):,} tokens"

    def epoch(self, number: int) -> list[list[int]]:
        order = random.Random(f"{self.seed} {number}").sample(self.train, len(self.train))
        self.rows = pack(order, self.settings.length, PAD)
        return [*_in_turn(len(self.rows.tokens), self._together)]

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> PackedBatch:
        if self.rows is None:
            raise InputError("the rows of an epoch are laid when it begins: ask for one first")
        return _batch(self.rows, rows, self._together if filled else 0)

    @property
    def _together(self) -> int:
        """How many rows a batch has."""
        return self.settings.batch_tokens // self.settings.length

    def loss(self, model: GPT2, batch: PackedBatch) -> Float[Tensor, ""]:
        logits = model(batch.read, documents=batch.texts)
        return mean_cross_entropy(logits, batch.coming, IGNORE_INDEX, self.settings.label_smoothing, consume=True)

    def validate(self, model: GPT2) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: LoadedData) -> list[str]:
        return [split for split in data.texts or data.splits if split != "train"]

    def examine(self, model: GPT2, data: LoadedData, split: str) -> Examined:
        texts = encoded(self.vocabulary.target, data.documents(split))
        return Examined(len(texts), "documents", self._scores(model, texts))

    @torch.inference_mode()
    def _scores(self, model: GPT2, texts: Sequence[Text]) -> dict[str, float]:
        """Of every token but the first of each text, or of the part of it that is in a row."""
        packed = pack(texts, self.settings.length, PAD)
        total, count = torch.zeros((), dtype=torch.float64, device=model.device), 0
        for rows in _in_turn(len(packed.tokens), self._together):
            batch = _batch(packed, rows).to(model.device)
            total += token_cross_entropy(model(batch.read, documents=batch.texts), batch.coming, IGNORE_INDEX)
            count += batch.count
        loss = float(total) / count
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}  # more is no number any more


def encoded(vocabulary: Vocabulary | PretrainedTokenizer, texts: Sequence[str]) -> list[Text]:
    """The tokens of each text, and at its end the one that says so, where the vocabulary has one."""
    end = END if isinstance(vocabulary, Vocabulary) else vocabulary.special_tokens.end
    closed = [] if end is None else [end]
    return [array("i", [*ids, *closed]) for ids in vocabulary.encode_ids(texts)]


def _in_turn(count: int, together: int) -> Iterator[list[int]]:
    for begin in range(0, count, together):
        yield [*range(begin, min(begin + together, count))]


def _batch(packed: Packed, rows: Sequence[int], least: int = 0) -> PackedBatch:
    """Some of the rows, and as many with nothing in them as it takes to have so many at least."""
    here = slice(rows[0], rows[-1] + 1)
    missing = (0, 0, 0, max(0, least - len(rows)))
    coming = packed.targets[here]
    return PackedBatch(
        F.pad(packed.tokens[here], missing, value=PAD),
        F.pad(packed.texts[here], missing, value=IGNORE_INDEX),
        F.pad(coming, missing, value=IGNORE_INDEX),
        int((coming != IGNORE_INDEX).sum()),
    )
