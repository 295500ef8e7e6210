"""Masked words as a task to learn: BERT's pre-training, from nothing but documents (Devlin et al. 2019).

    [CLS] the film [MASK] long [SEP] but i ##s [MASK] it [SEP]

    loss = mean over masked words of -log p(word | all that is not masked) - log p(second passage follows the first)

The second term is there where the model has the head for it ("pretraining", not "masked_lm").
"""

import math
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from qkv.config import require
from qkv.data.registry import Loaded
from qkv.data.sentences import split_sentences
from qkv.data.tensor_batch import TensorBatch
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.wordpiece import INSIDE
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.models.bert import MLM_HEADS, Bert, Pretraining
from qkv.objectives.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.objectives.masking import IGNORE, mask_tokens
from qkv.objectives.next_sentence import sentence_pairs
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Int, Tensor

SHARE = 0.15  # of the words are masked
SHORTEST = 5  # [CLS] a [SEP] b [SEP]
SENTENCES_AT_A_TIME = 2**14  # that are encoded together
ROWS_AT_A_TIME = 2**10  # that are masked together to validate on
FIXED = "the validation data are masked the same way in every run"


@dataclass(frozen=True)
class MaskedBatch(TensorBatch):
    """Rows of one length with words masked, and the places that are asked about: as many in every row."""

    tokens_read: Int[Tensor, "rows length"]
    segments: Int[Tensor, "rows length"]
    lengths: Int[Tensor, "rows"]
    places: Int[Tensor, "rows asked"]  # the first is that of [CLS], the last ones may be filled up
    targets: Int[Tensor, "rows asked"]  # the word that stood there, or IGNORE
    follows: Int[Tensor, "rows"]  # 0: the second passage follows the first; 1: it does not; IGNORE: there is none
    tokens: int  # that are to be guessed

    def filled(self, rows: int) -> "MaskedBatch":
        """The same with so many rows, of which the last are padding that nothing is asked about."""
        below = (0, rows - len(self.lengths))
        fills = {"lengths": 1, "targets": IGNORE, "follows": IGNORE}
        padded = {
            name: F.pad(one, below if one.dim() == 1 else (0, 0, *below), value=fills.get(name, 0))
            for name, one in self.tensors.items()
        }
        return self.with_tensors(padded)

    def cut(self, rows: int) -> Iterator["MaskedBatch"]:
        """The same in parts of so many rows."""
        for begin in range(0, len(self.lengths), rows):
            part = {name: one[begin : begin + rows] for name, one in self.tensors.items()}
            yield replace(self.with_tensors(part), tokens=int((part["targets"] != IGNORE).sum()))


@dataclass(frozen=True)
class Library:
    """Documents as tokens, one after the other, and where the sentences of each begin and the last one ends."""

    tokens: Int[Tensor, "tokens"]
    documents: list[list[int]]

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: PretrainedTokenizer) -> "Library":
        split = [split_sentences(text) for text in texts]
        sentences = _encoded([sentence for text in split for sentence in text], tokenizer)
        tokens, documents = array("i"), []
        for text in split:
            bounds = [len(tokens)]
            for _ in text:
                tokens.extend(next(sentences))
                if len(tokens) > bounds[-1]:  # nothing may be left of a sentence of control characters
                    bounds.append(len(tokens))
            if len(bounds) > 1:
                documents.append(bounds)
        return cls(torch.from_numpy(np.array(tokens, dtype=np.int32)), documents)


@dataclass
class MaskedWordsTask(ScoredTask):
    """Documents in passages, or in pairs of them, cut anew in every epoch and masked anew in every batch of it."""

    title = "masked words"
    command = "fill"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "perplexity": Metric("perplexity", higher_is_better=False),  # of a masked word
        "accuracy": Metric("accuracy", percent=True),  # likewise
        "next_sentence": Metric("next sentence accuracy", percent=True),
    }
    model = Bert
    learns_from = ("text", "labelled")
    from_data = ("vocabulary_size",)
    capturable = True

    vocabulary: PretrainedTokenizer
    train: list[str]
    valid: list[str]
    settings: Settings
    pairs: bool  # whether the model also says if a passage follows
    seed: int
    notes: tuple[str, ...]

    @classmethod
    def reads(cls, kind: str) -> bool:
        return kind == "wordpiece"

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        head = table.get("head")
        require(head in MLM_HEADS, f"model.head {head!r} says no words: set it to {' or '.join(MLM_HEADS)}")
        return super().provisional(table)

    @classmethod
    def sizes(cls, data: Loaded, vocabulary: PretrainedTokenizer) -> dict[str, Any]:
        return {"vocabulary_size": len(vocabulary)}

    @classmethod
    def prepare(cls, data: Loaded, vocabulary: Any, model: Any, train: Settings, seed: int) -> "MaskedWordsTask":
        """Look at what could be wrong; the documents are encoded when the first epoch asks for them."""
        pairs = model.head == "pretraining"
        roles = vocabulary.roles if isinstance(vocabulary, PretrainedTokenizer) else None
        if roles is None or None in (roles.mask, roles.begin, roles.end):
            raise InputError("masked words need a tokenizer with [MASK], [CLS] and [SEP]: data.vocabulary=wordpiece:N")
        if not SHORTEST <= train.length <= min(model.max_length, train.batch_tokens):
            raise InputError(
                f"train.length = {train.length} must lie between {SHORTEST} and both model.max_length = "
                f"{model.max_length} and train.batch_tokens = {train.batch_tokens}"
            )
        if train.best_by == "next_sentence" and not pairs:
            raise InputError("train.best_by next_sentence is for model.head = pretraining, which says what follows")
        documents = {"train": data.documents("train"), "valid": data.documents("valid")[: train.valid_size]}
        for split, texts in documents.items():
            if not texts:
                raise InputError(f"{split}: there is no document with text in it")
            if pairs and (len(texts) < 2 or not any(len(split_sentences(text)) > 1 for text in texts)):
                raise InputError(
                    f"{split}: pairs of passages need two documents, and one of several sentences; give more (in a "
                    "text, blank lines stand between documents), or set model.head to masked_lm"
                )
        return cls(vocabulary, documents["train"], documents["valid"], train, pairs, seed, data.notes)

    def __post_init__(self) -> None:
        self.number = 0  # of the epoch,
        self.spans = torch.empty(0, 5, dtype=torch.long)  # and its rows, see `_spans`
        roles = self.vocabulary.roles
        self.begin, self.end, self.mask, self.pad = (
            one or 0 for one in (roles.begin, roles.end, roles.mask, roles.pad)
        )
        special = [number for number in asdict(roles).values() if number is not None]
        names = {number: token for token, number in self.vocabulary.tokenizer.get_vocab().items()}
        self.ordinary = torch.ones(len(self.vocabulary), dtype=torch.bool)
        self.ordinary[special] = False
        self.inside = torch.tensor([names.get(n, "").startswith(INSIDE) for n in range(len(self.vocabulary))])

    @cached_property
    def library(self) -> Library:
        return Library.of(self.train, self.vocabulary)

    @cached_property
    def valid_library(self) -> Library:
        return Library.of(self.valid, self.vocabulary)

    @property
    def rows(self) -> int:
        """How many rows a batch has."""
        return self.settings.batch_tokens // self.settings.length

    @property
    def asked(self) -> int:
        """How many places of a row are asked about, [CLS] among them."""
        return 1 + math.ceil(SHARE * (self.settings.length - 2))

    def describe(self) -> str:
        return f"{len(self.library.documents):,} documents, {len(self.library.tokens):,} tokens"

    def epoch(self, number: int) -> list[list[int]]:
        self.number = number
        self.spans = self._spans(self.library, random.Random(f"{self.seed} {number}"))
        if not len(self.spans):
            raise InputError("no document has two sentences to make a pair of: set model.head to masked_lm")
        whole = list(range(len(self.spans)))
        return [whole[begin : begin + self.rows] for begin in range(0, len(whole), self.rows)]

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> MaskedBatch:
        found = self._masked(self.library, self.spans[rows], f"{self.seed} {self.number} {rows[0]}")
        return found.filled(self.rows) if filled else found

    def loss(self, model: Bert, batch: MaskedBatch) -> Float[Tensor, ""]:
        words, follows = _said(model, batch)
        loss = mean_cross_entropy(words, batch.targets, IGNORE, self.settings.label_smoothing, consume=True)
        return loss if follows is None else loss + F.cross_entropy(follows.float(), batch.follows, ignore_index=IGNORE)

    def validate(self, model: Bert) -> dict[str, float]:
        return self._scores(model, self.valid_library)

    @classmethod
    def splits(cls, data: Loaded) -> list[str]:
        return list(data.texts or data.splits)

    def examine(self, model: Bert, data: Loaded, split: str) -> Examined:
        library = Library.of(data.documents(split), self.vocabulary)
        return Examined(len(library.documents), "documents", self._scores(model, library))

    def _spans(self, library: Library, chance: random.Random) -> Int[Tensor, "rows 5"]:
        """Rows in any order: where the first passage begins, its length, likewise the second, and MaskedBatch.follows.

        Without pairs there is no second one, and the passages are the documents, cut at a place that varies.
        """
        if self.pairs:
            found = [
                (pair.first.start, len(pair.first), pair.second.start, len(pair.second), int(not pair.follows))
                for pair in sentence_pairs(library.documents, self.settings.length - 3, chance)
            ]
        else:
            found = [
                (passage.start, len(passage), 0, 0, IGNORE)
                for document in library.documents
                for passage in _passages(document[0], document[-1], self.settings.length - 2, chance)
            ]
        chance.shuffle(found)
        return torch.tensor(found, dtype=torch.long).view(-1, 5)

    def _masked(self, library: Library, spans: Int[Tensor, "rows 5"], seed: str) -> MaskedBatch:
        """Rows with words masked as the seed decides."""
        tokens, segments, lengths = self._laid_out(library, spans)
        maskable = self.ordinary[tokens] & (torch.arange(tokens.shape[1]) < lengths[:, None])
        masked = mask_tokens(
            tokens,
            maskable,
            self.mask,
            self.ordinary.nonzero().squeeze(1),
            torch.Generator().manual_seed(random.Random(seed).getrandbits(32)),
            share=SHARE,
            words=(~self.inside[tokens]).cumsum(dim=1) if self.settings.whole_words else None,
        )
        chosen = masked.targets != IGNORE
        chosen[:, 0] = True  # [CLS] comes first, with the target IGNORE
        places = chosen.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : self.asked]
        targets = masked.targets.gather(1, places)
        count = int((targets != IGNORE).sum())
        return MaskedBatch(masked.tokens, segments, lengths, places, targets, spans[:, 4], count)

    def _laid_out(
        self, library: Library, spans: Int[Tensor, "rows 5"]
    ) -> tuple[Int[Tensor, "rows length"], Int[Tensor, "rows length"], Int[Tensor, "rows"]]:
        """[CLS] first [SEP] second [SEP] and padding: the tokens, their segments, and how many there are."""
        first, size, second, second_size, _ = spans[:, :, None].unbind(dim=1)  # rows 1
        lengths = size + 2 + torch.where(second_size > 0, second_size + 1, 0)
        place = torch.arange(self.settings.length)
        segments = ((place > size + 1) & (place < lengths)).long()
        in_first, in_second = (place > 0) & (place <= size), (segments == 1) & (place < lengths - 1)
        where = torch.where(in_first, first + place - 1, torch.where(in_second, second + place - size - 2, 0))
        ends = (place == size + 1) | (place == lengths - 1)
        edges = torch.where(ends, self.end, torch.where(place == 0, self.begin, self.pad))
        tokens = torch.where(in_first | in_second, library.tokens[where].long(), edges)
        return tokens, segments, lengths.squeeze(1)

    @torch.inference_mode()
    def _scores(self, model: Bert, library: Library) -> dict[str, float]:
        """Every metric, on all documents, cut and masked the same way whatever the run's seed."""
        spans = self._spans(library, random.Random(FIXED))
        words, right, follows, truly = (torch.zeros((), dtype=torch.float64, device=model.device) for _ in range(4))
        asked = 0
        for batch in self._fixed(library, spans):
            here = batch.to(model.device)
            said, next_said = _said(model, here)
            asked += batch.tokens
            words += token_cross_entropy(said, here.targets, IGNORE)
            right += (said.argmax(dim=-1) == here.targets).sum()  # IGNORE is no word
            if next_said is not None:
                follows += F.cross_entropy(next_said.float(), here.follows, reduction="sum")
                truly += (next_said.argmax(dim=-1) == here.follows).sum()
        loss = float(words) / max(1, asked)
        scores = {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": float(right) / max(1, asked)}
        if not self.pairs:
            return scores
        return scores | {
            "loss": loss + float(follows) / max(1, len(spans)),
            "next_sentence": float(truly) / max(1, len(spans)),
        }

    def _fixed(self, library: Library, spans: Int[Tensor, "rows 5"]) -> Iterator[MaskedBatch]:
        """Batches that are masked the same way, whatever the size of a batch is."""
        for begin in range(0, len(spans), ROWS_AT_A_TIME):
            yield from self._masked(library, spans[begin : begin + ROWS_AT_A_TIME], f"{FIXED} {begin}").cut(self.rows)


def _encoded(sentences: Sequence[str], tokenizer: PretrainedTokenizer) -> Iterator[list[int]]:
    for begin in range(0, len(sentences), SENTENCES_AT_A_TIME):
        some = list(sentences[begin : begin + SENTENCES_AT_A_TIME])
        for found in tokenizer.tokenizer.encode_batch_fast(some, add_special_tokens=False):
            yield found.ids


def _passages(begin: int, end: int, longest: int, chance: random.Random) -> Iterator[range]:
    """A document in parts of at most this length: whole ones, but for the first, which varies, and the last."""
    cut = begin + (longest if end - begin <= longest else chance.randint(longest // 2, longest))
    for start, stop in pairwise([begin, *range(cut, end, longest), end]):
        yield range(start, stop)


def _said(
    model: Bert, batch: MaskedBatch
) -> tuple[Float[Tensor, "rows asked vocabulary"], Float[Tensor, "rows 2"] | None]:
    """What the model says of the places that are asked about, and of what follows: the head reads these alone."""
    hidden = model(batch.tokens_read, batch.segments, batch.lengths)
    asked = hidden.gather(1, batch.places[:, :, None].expand(-1, -1, hidden.shape[-1]))
    said = model.logits(asked)  # the first place is that of [CLS], as it was
    return (said.masked_lm, said.next_sentence) if isinstance(said, Pretraining) else (said, None)
