"""Bidirectional language modeling task (Peters et al. 2018): predict the next and the previous word.

    loss = -1/2 mean_t [log p(w_{t+1} | w_0 .. w_t) + log p(w_t | w_{t+1} .. w_{n+1})],   t = 0 .. n

with w_0 and w_{n+1} the sentence boundaries. The inputs are the characters of arbitrary words; the targets are the most
frequent words, and the unknown token for all others.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from qkv.config import Budget, Rate
from qkv.datasets.batching import BatchSize, batch_by_length, round_up, shuffled_batches
from qkv.datasets.columns import PERPLEXITY
from qkv.datasets.dataset import Dataset, LabeledTextDataset, TextDataset
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.models.elmo import Elmo
from qkv.nn.losses import linear_cross_entropy, token_cross_entropy
from qkv.pipelines.inputs.text_inputs import WordExampleEncoder
from qkv.registry import register
from qkv.tasks.base.task import LOSS, Task, TaskConfig, perplexity
from qkv.tokenizers import Tokenizer, WordTokenizer
from qkv.tokenizers.sentences import split_sentences
from qkv.tokenizers.trained import BEGIN, END, PAD, UNK
from qkv.types import Float, Int, Tensor


@dataclass(frozen=True)
class SentenceBatch(TensorBatch):
    """Sentences of similar length as word ids, with the targets of both directions."""

    words: Int[Tensor, "batch length"]
    lengths: Int[Tensor, "batch"]
    forward_targets: Int[Tensor, "batch positions"]  # w_{t+1}, for t = 0 .. n
    backward_targets: Int[Tensor, "batch positions"]  # w_t
    tokens: int  # number of positions

    def count_tokens(self) -> int:
        return int((self.forward_targets != PAD).sum())


class SentenceSet:
    """The sentences of texts as word ids, split at `max_length` words."""

    def __init__(
        self, texts: Iterable[str], encoder: WordExampleEncoder, tokenizer: Tokenizer, max_length: int
    ) -> None:
        self.encoder = encoder
        words, lengths = array("i"), array("i")
        for text in texts:
            for sentence in encoder.encode(split_sentences(text)):
                words.extend(sentence)
                full, rest = divmod(len(sentence), max_length)
                lengths.extend([max_length] * full + [rest] * (rest > 0))
        self.words = torch.from_numpy(np.array(words, dtype=np.int64))
        self.lengths = torch.from_numpy(np.array(lengths, dtype=np.int64))
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.targets = _target_ids(tokenizer, encoder)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Sequence[int], count: int = 0, width: int = 0) -> SentenceBatch:
        """Collate sentences into a batch of at least `count` x `width`; padding rows are empty."""
        indices = torch.tensor(rows)
        lengths = self.lengths[indices]
        width = max(width, int(lengths.max()))
        position = torch.arange(width)
        inside = position < lengths[:, None]
        words = self.words[(self.starts[indices, None] + position).clamp_(max=len(self.words) - 1)].where(inside, 0)
        targets = self.targets[words]
        forward_targets = F.pad(targets, (0, 1), value=PAD).scatter_(1, lengths[:, None], END)
        backward_targets = F.pad(targets, (1, 0), value=BEGIN)
        missing = (0, 0, 0, max(0, count - len(rows)))
        return SentenceBatch(
            F.pad(words, missing),
            F.pad(lengths, missing[2:]),
            F.pad(forward_targets, missing, value=PAD),
            F.pad(backward_targets, missing, value=PAD),
            int(lengths.sum()) + len(rows),
        )

    def batches(self, batch_size: BatchSize) -> Iterator[SentenceBatch]:
        """Yield all sentences in batches of similar length."""
        for rows in batch_by_length(self.lengths.tolist(), batch_size):
            yield self.batch(rows)


class BiLMConfig(TaskConfig):
    """Options of the task."""

    length: Budget = 256  # maximum words of a sentence
    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy


@register("task", "bilm")
class BiLMTask(Task):
    """Bidirectional language modeling of single sentences."""

    title = "bidirectional language modeling"
    cli_command = "embed"
    metrics: ClassVar = {
        "loss": LOSS,  # nats per word, the mean of both directions
        "perplexity": Metric("perplexity", higher_is_better=False),  # exp(loss)
    }
    model = Elmo
    datasets = (TextDataset, LabeledTextDataset)
    config_class = BiLMConfig
    model_options: ClassVar = {"head": "language_model"}
    columns = (PERPLEXITY,)
    from_data = ("vocab_size",)
    evaluation_unit = "sentences"
    capturable = True

    @classmethod
    def accepts_tokenizer(cls, name: str) -> bool:
        return name == "word"

    @classmethod
    def train_tokenizer(cls, data: Dataset[Any], config: Any, model: Any) -> Tokenizer:
        """Return the most frequent words of the training texts."""
        encoder = WordExampleEncoder(model.max_characters)
        word_ids = array("i")
        for text in data.documents("train"):
            word_ids.extend(encoder.encode([text])[0])
        counts = np.bincount(np.array(word_ids, dtype=np.int64), minlength=len(encoder.table)).tolist()
        words = {word: counts[number] for word, number in encoder.table.ids.items()}
        return WordTokenizer.from_counts(words, lowercase=config.lowercase, **config.tokenizer.options)

    @classmethod
    def sizes(cls, data: Dataset[Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
        if tokenizer is None:
            raise InputError(
                "init: this ELMo was released without its output vocabulary, so it cannot be trained further"
            )
        return {"vocab_size": len(tokenizer)}

    def setup(self, data: Dataset[Any]) -> None:
        self.valid = self._sentences(data.documents("valid")[: self.train_config.valid_size])
        self.train = self.examples(data, "train")
        if not len(self.train) or not len(self.valid):
            raise InputError("there are no sentences to train or to validate on")

    def examples(self, data: Dataset[Any], split: str) -> SentenceSet:
        return self._sentences(data.documents(split))

    def _sentences(self, texts: Sequence[str]) -> SentenceSet:
        encoder = WordExampleEncoder(self.model_config.max_characters)
        return SentenceSet(texts, encoder, self.tokenizer, self.options.length)

    def describe(self) -> str:
        return f"{len(self.train):,} sentences, {len(self.train.words):,} words"

    def epoch(self, number: int) -> list[list[int]]:
        return shuffled_batches(self.train.lengths.tolist(), self.train_config.batching, self.seed, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> SentenceBatch:
        if not padded_to_shape:
            return self.train.batch(rows)
        width = min(round_up(int(self.train.lengths[torch.tensor(rows)].max())), self.options.length)
        return self.train.batch(rows, self.train_config.batching.rows(width), width)

    def loss(self, model: Elmo, batch: SentenceBatch) -> Float[Tensor, ""]:
        assert model.readout is not None
        forward, backward = model.bilm_hidden(self.train.encoder.lookup(batch.words), batch.lengths)
        smoothing = self.options.label_smoothing
        return 0.5 * (
            linear_cross_entropy(forward, model.readout, batch.forward_targets, PAD, smoothing)
            + linear_cross_entropy(backward, model.readout, batch.backward_targets, PAD, smoothing)
        )

    @torch.inference_mode()
    def score_examples(self, model: Elmo, examples: SentenceSet) -> dict[str, float]:
        total, positions = torch.zeros((), dtype=torch.float64, device=model.device), 0
        for batch in examples.batches(self.train_config.batching):
            batch = batch.to(model.device)
            forward_logits, backward_logits = model.bilm_logits(examples.encoder.lookup(batch.words), batch.lengths)
            total += token_cross_entropy(forward_logits, batch.forward_targets, PAD) + token_cross_entropy(
                backward_logits, batch.backward_targets, PAD
            )
            positions += batch.tokens
        loss = float(total) / (2 * positions)
        return {"loss": loss, "perplexity": perplexity(loss)}


def _target_ids(tokenizer: Tokenizer, encoder: WordExampleEncoder) -> Int[Tensor, "words"]:
    """The target id of each row of the word table: padding for row 0, unknown for words not predicted."""
    encoded = tokenizer.encode(list(encoder.table.ids))
    return torch.tensor([PAD, *(ids[0] if len(ids) == 1 else UNK for ids in encoded)])
