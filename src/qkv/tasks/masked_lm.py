"""Masked language modeling task: BERT's pre-training on documents (Devlin et al. 2019).

    [CLS] the film [MASK] long [SEP] but i ##s [MASK] it [SEP]

    loss = mean over masked tokens of -log p(token | all unmasked tokens) - log p(second passage follows the first)

The second term is added for the head "pretraining", not for "masked_lm".
"""

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import model_validator
from torch.nn import functional as F

from qkv.config import Budget, Probability, Rate, require
from qkv.datasets.columns import PERPLEXITY, Column
from qkv.datasets.dataset import Dataset, LabeledTextDataset, TextDataset
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.models.bert import MLM_HEADS, Bert, Pretraining
from qkv.nn.losses import mean_cross_entropy, token_cross_entropy
from qkv.registry import register
from qkv.tasks.base.masking import IGNORE, MASK_SHARE, RANDOM_SHARE, mask_tokens, sentence_pairs
from qkv.tasks.base.task import ACCURACY, LOSS, Task, TaskConfig, perplexity
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.sentences import split_sentences
from qkv.tokenizers.wordpiece import CONTINUATION
from qkv.types import Float, Int, Tensor

MASK_PROB = 0.15  # fraction of tokens that are masked
MIN_LENGTH = 5  # [CLS] a [SEP] b [SEP]
ENCODE_BATCH = 2**14  # sentences encoded at a time
MASK_BATCH = 2**10  # validation rows masked at a time
VALID_SEED = "the validation data are masked the same way in every run"


@dataclass(frozen=True)
class MaskedBatch(TensorBatch):
    """Rows of one length with tokens masked, and the same number of predicted positions in every row."""

    token_ids: Int[Tensor, "rows length"]
    segments: Int[Tensor, "rows length"]
    lengths: Int[Tensor, "rows"]
    positions: Int[Tensor, "rows predicted"]  # the first is that of [CLS], the last may be padding
    targets: Int[Tensor, "rows predicted"]  # the original token, or IGNORE
    next_sentence: Int[Tensor, "rows"]  # 0: the second passage follows the first; 1: it does not; IGNORE: there is none
    tokens: int  # number of masked tokens
    next_sentence_weight: float = 1.0  # of the loss of the next sentence; in a part of a batch, see `split`

    def count_tokens(self) -> int:
        return int((self.targets != IGNORE).sum())

    @property
    def pairs(self) -> int:
        """Number of rows with a second passage."""
        return int((self.next_sentence != IGNORE).sum())

    def split(self, count: int) -> list[tuple["MaskedBatch", float]]:
        """Weight the loss of the next sentence, a mean over rows, by each part's fraction of the rows."""
        pairs = self.pairs
        return [
            (replace(part, next_sentence_weight=part.pairs / pairs / fraction if pairs and fraction else 1.0), fraction)
            for part, fraction in super().split(count)
        ]

    def pad_rows(self, rows: int) -> "MaskedBatch":
        """Return the batch padded to `rows` rows without targets."""
        padding = (0, rows - len(self.lengths))
        fills = {"lengths": 1, "targets": IGNORE, "next_sentence": IGNORE}
        padded = {
            name: F.pad(tensor, padding if tensor.dim() == 1 else (0, 0, *padding), value=fills.get(name, 0))
            for name, tensor in self.tensors.items()
        }
        return self.with_tensors(padded)

    def chunks(self, rows: int) -> Iterator["MaskedBatch"]:
        """Yield the batch in parts of `rows` rows."""
        for begin in range(0, len(self.lengths), rows):
            part = {name: tensor[begin : begin + rows] for name, tensor in self.tensors.items()}
            chunk = self.with_tensors(part)
            yield replace(chunk, tokens=chunk.count_tokens())


@dataclass(frozen=True)
class TokenizedCorpus:
    """Concatenated token ids of documents, and the sentence boundaries of each."""

    tokens: Int[Tensor, "tokens"]
    documents: list[list[int]]

    def __len__(self) -> int:
        return len(self.documents)

    @classmethod
    def from_texts(cls, texts: Sequence[str], tokenizer: Tokenizer) -> "TokenizedCorpus":
        split = [split_sentences(text) for text in texts]
        sentences = _encode_sentences([sentence for text in split for sentence in text], tokenizer)
        tokens, documents = array("i"), []
        for text in split:
            bounds = [len(tokens)]
            for _ in text:
                tokens.extend(next(sentences))
                if len(tokens) > bounds[-1]:  # a sentence of control characters has no tokens
                    bounds.append(len(tokens))
            if len(bounds) > 1:
                documents.append(bounds)
        return cls(torch.from_numpy(np.array(tokens, dtype=np.int32)), documents)


class MaskedLMConfig(TaskConfig):
    """Options of the task."""

    length: Budget = 256  # tokens of a row
    mask_share: Probability = MASK_SHARE  # of the selected tokens, those replaced by [MASK]
    random_share: Probability = RANDOM_SHARE  # of the selected tokens, those replaced by random ones
    whole_word_masking: bool = False  # mask all tokens of a word together
    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy

    @model_validator(mode="after")
    def _check_shares(self) -> "MaskedLMConfig":
        total = self.mask_share + self.random_share
        require(total <= 1 + 1e-9, f"mask_share and random_share must not add up to more than 1, not {total:g}")
        return self


@register("task", "masked_lm")
class MaskedLMTask(Task):
    """Passages of documents, or pairs of them, split differently in every epoch and masked in every batch."""

    title = "masked language modeling"
    cli_command = "fill"
    metrics: ClassVar = {
        "loss": LOSS,
        "perplexity": Metric("perplexity", higher_is_better=False),  # of masked tokens
        "accuracy": ACCURACY,  # of masked tokens
        "next_sentence": Metric("next sentence accuracy", percent=True),
    }
    model = Bert
    datasets = (TextDataset, LabeledTextDataset)
    config_class = MaskedLMConfig
    columns = (
        PERPLEXITY,
        Column("accuracy", "masked words, %", 100),
        Column("next_sentence", "next sentence, %", 100),
    )
    from_data = ("vocab_size",)
    evaluation_unit = "documents"
    capturable = True

    @classmethod
    def accepts_tokenizer(cls, name: str) -> bool:
        return name == "wordpiece"

    @classmethod
    def check_recipe(cls, options: MaskedLMConfig, data: Any, model: Any) -> None:
        require(
            model.head in MLM_HEADS, f"model.head {model.head!r} predicts no tokens: set it to {' or '.join(MLM_HEADS)}"
        )

    def setup(self, data: Dataset[Any]) -> None:
        """Validate the settings; the documents are tokenized when the first epoch needs them."""
        options, train, max_length = self.options, self.train_config, self.model_config.max_length
        self.pairs = self.model_config.head == "pretraining"  # whether the model also predicts the next sentence
        special_tokens = self.tokenizer.special_tokens
        if None in (special_tokens.mask, special_tokens.cls, special_tokens.sep):
            raise InputError(
                "masked_lm needs a tokenizer with [MASK], [CLS] and [SEP]: set data.tokenizer.name=wordpiece"
            )
        if not MIN_LENGTH <= options.length <= max_length or train.batching.rows(options.length) < 1:
            raise InputError(
                f"task.length = {options.length} must be between {MIN_LENGTH} and model.max_length = "
                f"{max_length}, and fit into train.batch_size = {train.batch_size}"
            )
        if train.best_by == "next_sentence" and not self.pairs:
            raise InputError("train.best_by next_sentence requires model.head = pretraining")
        documents = {"train": data.documents("train"), "valid": data.documents("valid")[: train.valid_size]}
        for split, texts in documents.items():
            if not texts:
                raise InputError(f"{split}: there are no non-empty documents")
            if self.pairs and (len(texts) < 2 or not any(len(split_sentences(text)) > 1 for text in texts)):
                raise InputError(
                    f"{split}: sentence pairs need two documents, one of them with several sentences; add some "
                    "(blank lines separate the documents of a text), or set model.head to masked_lm"
                )
        self.train, self.valid_documents = documents["train"], documents["valid"]
        self.number = 0  # of the current epoch
        self.spans = torch.empty(0, 5, dtype=torch.long)  # rows of the current epoch, see `_spans`
        self.begin, self.end, self.mask, self.pad = (
            token or 0 for token in (special_tokens.cls, special_tokens.sep, special_tokens.mask, special_tokens.pad)
        )
        names = {number: token for token, number in self.tokenizer.vocab.items()}
        self.ordinary = torch.ones(len(self.tokenizer), dtype=torch.bool)
        self.ordinary[list(special_tokens.ids)] = False
        self.inside = torch.tensor([names.get(n, "").startswith(CONTINUATION) for n in range(len(self.tokenizer))])

    @cached_property
    def corpus(self) -> TokenizedCorpus:
        return TokenizedCorpus.from_texts(self.train, self.tokenizer)

    @cached_property
    def valid(self) -> TokenizedCorpus:
        return TokenizedCorpus.from_texts(self.valid_documents, self.tokenizer)

    @property
    def rows(self) -> int:
        """Number of rows per batch."""
        return self.train_config.batching.rows(self.options.length)

    @property
    def predicted(self) -> int:
        """Number of predicted positions per row, including [CLS]."""
        return 1 + math.ceil(MASK_PROB * (self.options.length - 2))

    def describe(self) -> str:
        return f"{len(self.corpus.documents):,} documents, {len(self.corpus.tokens):,} tokens"

    def epoch(self, number: int) -> list[list[int]]:
        self.number = number
        self.spans = self._spans(self.corpus, random.Random(f"{self.seed} {number}"))
        if not len(self.spans):
            raise InputError("no document has two sentences to form a pair: set model.head to masked_lm")
        rows = list(range(len(self.spans)))
        return [rows[begin : begin + self.rows] for begin in range(0, len(rows), self.rows)]

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> MaskedBatch:
        batch = self._mask(self.corpus, self.spans[rows], f"{self.seed} {self.number} {rows[0]}")
        return batch.pad_rows(self.rows) if padded_to_shape else batch

    def loss(self, model: Bert, batch: MaskedBatch) -> Float[Tensor, ""]:
        token_logits, next_logits = _logits(model, batch)
        loss = mean_cross_entropy(token_logits, batch.targets, IGNORE, self.options.label_smoothing, consume=True)
        if next_logits is None:
            return loss
        next_loss = F.cross_entropy(next_logits.float(), batch.next_sentence, ignore_index=IGNORE)
        return loss + batch.next_sentence_weight * next_loss

    def examples(self, data: Dataset[Any], split: str) -> TokenizedCorpus:
        return TokenizedCorpus.from_texts(data.documents(split), self.tokenizer)

    def _spans(self, corpus: TokenizedCorpus, rng: random.Random) -> Int[Tensor, "rows 5"]:
        """Shuffled rows: start and length of the first passage, of the second, and MaskedBatch.next_sentence.

        Without pairs there is no second passage, and the first ones are the documents, split at varying points.
        """
        if self.pairs:
            spans = [
                (pair.first.start, len(pair.first), pair.second.start, len(pair.second), int(not pair.follows))
                for pair in sentence_pairs(corpus.documents, self.options.length - 3, rng)
            ]
        else:
            spans = [
                (passage.start, len(passage), 0, 0, IGNORE)
                for document in corpus.documents
                for passage in _passages(document[0], document[-1], self.options.length - 2, rng)
            ]
        rng.shuffle(spans)
        return torch.tensor(spans, dtype=torch.long).view(-1, 5)

    def _mask(self, corpus: TokenizedCorpus, spans: Int[Tensor, "rows 5"], seed: str) -> MaskedBatch:
        """Rows with tokens masked, depending on the seed."""
        tokens, segments, lengths = self._layout(corpus, spans)
        maskable = self.ordinary[tokens] & (torch.arange(tokens.shape[1]) < lengths[:, None])
        masking = mask_tokens(
            tokens,
            maskable,
            self.mask,
            self.ordinary.nonzero().squeeze(1),
            torch.Generator().manual_seed(random.Random(seed).getrandbits(32)),
            mask_prob=MASK_PROB,
            mask_share=self.options.mask_share,
            random_share=self.options.random_share,
            word_ids=(~self.inside[tokens]).cumsum(dim=1) if self.options.whole_word_masking else None,
        )
        chosen = masking.targets != IGNORE
        chosen[:, 0] = True  # [CLS] comes first, with target IGNORE
        positions = chosen.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : self.predicted]
        targets = masking.targets.gather(1, positions)
        count = int((targets != IGNORE).sum())
        return MaskedBatch(masking.tokens, segments, lengths, positions, targets, spans[:, 4], count)

    def _layout(
        self, corpus: TokenizedCorpus, spans: Int[Tensor, "rows 5"]
    ) -> tuple[Int[Tensor, "rows length"], Int[Tensor, "rows length"], Int[Tensor, "rows"]]:
        """Token ids, segments and lengths of the rows [CLS] first [SEP] second [SEP] and padding."""
        first, size, second, second_size, _ = spans[:, :, None].unbind(dim=1)  # rows 1
        lengths = size + 2 + torch.where(second_size > 0, second_size + 1, 0)
        position = torch.arange(self.options.length)
        segments = ((position > size + 1) & (position < lengths)).long()
        in_first, in_second = (position > 0) & (position <= size), (segments == 1) & (position < lengths - 1)
        source = torch.where(in_first, first + position - 1, torch.where(in_second, second + position - size - 2, 0))
        ends = (position == size + 1) | (position == lengths - 1)
        special = torch.where(ends, self.end, torch.where(position == 0, self.begin, self.pad))
        tokens = torch.where(in_first | in_second, corpus.tokens[source].long(), special)
        return tokens, segments, lengths.squeeze(1)

    @torch.inference_mode()
    def score_examples(self, model: Bert, examples: TokenizedCorpus) -> dict[str, float]:
        """All metrics on all documents, split and masked independently of the run's seed."""
        spans = self._spans(examples, random.Random(VALID_SEED))
        token_loss, right, next_loss, next_right = (
            torch.zeros((), dtype=torch.float64, device=model.device) for _ in range(4)
        )
        count = 0
        for batch in self._fixed_batches(examples, spans):
            batch = batch.to(model.device)
            logits, next_logits = _logits(model, batch)
            count += batch.tokens
            token_loss += token_cross_entropy(logits, batch.targets, IGNORE)
            right += (logits.argmax(dim=-1) == batch.targets).sum()  # never equal to IGNORE
            if next_logits is not None:
                next_loss += F.cross_entropy(next_logits.float(), batch.next_sentence, reduction="sum")
                next_right += (next_logits.argmax(dim=-1) == batch.next_sentence).sum()
        loss = float(token_loss) / max(1, count)
        scores = {"loss": loss, "perplexity": perplexity(loss), "accuracy": float(right) / max(1, count)}
        if not self.pairs:
            return scores
        return scores | {
            "loss": loss + float(next_loss) / max(1, len(spans)),
            "next_sentence": float(next_right) / max(1, len(spans)),
        }

    def _fixed_batches(self, corpus: TokenizedCorpus, spans: Int[Tensor, "rows 5"]) -> Iterator[MaskedBatch]:
        """Yield batches whose masks do not depend on the batch size."""
        for begin in range(0, len(spans), MASK_BATCH):
            yield from self._mask(corpus, spans[begin : begin + MASK_BATCH], f"{VALID_SEED} {begin}").chunks(self.rows)


def _encode_sentences(sentences: Sequence[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    for begin in range(0, len(sentences), ENCODE_BATCH):
        yield from tokenizer.encode(sentences[begin : begin + ENCODE_BATCH])


def _passages(begin: int, end: int, length: int, rng: random.Random) -> Iterator[range]:
    """Split a document into passages of `length` tokens, but for the first, of random length, and the last."""
    first_end = begin + (length if end - begin <= length else rng.randint(length // 2, length))
    for start, stop in pairwise([begin, *range(first_end, end, length), end]):
        yield range(start, stop)


def _logits(
    model: Bert, batch: MaskedBatch
) -> tuple[Float[Tensor, "rows predicted vocabulary"], Float[Tensor, "rows 2"] | None]:
    """Logits at the predicted positions, and of the next sentence; the head is applied to these positions only."""
    hidden = model(batch.token_ids, batch.segments, batch.lengths)
    predicted = hidden.gather(1, batch.positions[:, :, None].expand(-1, -1, hidden.shape[-1]))
    logits = model.logits(predicted)  # the first position is still that of [CLS]
    return (logits.masked_lm, logits.next_sentence) if isinstance(logits, Pretraining) else (logits, None)
