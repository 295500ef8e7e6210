"""Two-way language modelling as a task to learn: of each word of a sentence, what comes next and what came before.

    loss = -1/2 mean_t [log p(w_{t+1} | w_0 .. w_t) + log p(w_t | w_{t+1} .. w_{n+1})],   t = 0 .. n

with w_0 the mark before a sentence and w_{n+1} the one after it (Peters et al. 2018). What is read are the characters
of words, any words; what is predicted are the most frequent ones, and of all others that they are none of these.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from qkv.data.batching import by_length, shuffled, stepped
from qkv.data.characters import Characters
from qkv.data.frequent_words import frequent_words
from qkv.data.registry import DataConfig, Loaded
from qkv.data.sentences import split_sentences
from qkv.data.tensor_batch import TensorBatch
from qkv.data.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.models.elmo import Elmo
from qkv.objectives.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.tasks.pieces import WordSplitter
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Int, Tensor


@dataclass(frozen=True)
class SentenceBatch(TensorBatch):
    """Some sentences of like length, by the numbers of their words, and what is to be predicted at every place."""

    words: Int[Tensor, "batch length"]
    lengths: Int[Tensor, "batch"]
    ahead: Int[Tensor, "batch places"]  # w_{t+1}, for t = 0 .. n
    back: Int[Tensor, "batch places"]  # w_t
    tokens: int  # how many places there are


class Sentences:
    """The sentences of texts, one after another, as the numbers of their words; a long one is cut into several."""

    def __init__(self, texts: Iterable[str], splitter: WordSplitter, predicted: Vocabulary, longest: int) -> None:
        self.splitter = splitter
        words, lengths = array("i"), array("i")
        for text in texts:
            for sentence in splitter.split(split_sentences(text)):
                words.extend(sentence)
                whole, rest = divmod(len(sentence), longest)
                lengths.extend([longest] * whole + [rest] * (rest > 0))
        self.words = torch.from_numpy(np.array(words, dtype=np.int64))
        self.lengths = torch.from_numpy(np.array(lengths, dtype=np.int64))
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.predicted = _numbers_in(predicted, splitter)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Sequence[int], count: int = 0, width: int = 0) -> SentenceBatch:
        """Some of the sentences, in so many rows and places at least; a row without a sentence has nothing in it."""
        chosen = torch.tensor(rows)
        lengths = self.lengths[chosen]
        width = max(width, int(lengths.max()))
        place = torch.arange(width)
        inside = place < lengths[:, None]
        words = self.words[(self.starts[chosen, None] + place).clamp_(max=len(self.words) - 1)].where(inside, 0)
        coming = self.predicted[words]
        ahead = F.pad(coming, (0, 1), value=PAD).scatter_(1, lengths[:, None], END)
        back = F.pad(coming, (1, 0), value=BEGIN)
        missing = (0, 0, 0, max(0, count - len(rows)))
        return SentenceBatch(
            F.pad(words, missing),
            F.pad(lengths, missing[2:]),
            F.pad(ahead, missing, value=PAD),
            F.pad(back, missing, value=PAD),
            int(lengths.sum()) + len(rows),
        )

    def batches(self, budget: int) -> Iterator[SentenceBatch]:
        """All of them, those of like length together."""
        for rows in by_length(self.lengths.tolist(), budget):
            yield self.batch(rows)


@dataclass
class TwoWayLanguageModelTask(ScoredTask):
    """Each sentence is read by itself, from a fresh start."""

    title = "two-way language modelling"
    command = "embed"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),  # nats a word, the mean of both directions
        "perplexity": Metric("perplexity", higher_is_better=False),  # e to the loss
    }
    model = Elmo
    learns_from = ("text", "labelled")
    from_data = ("vocabulary_size", "head")
    capturable = True

    vocabulary: Vocabulary
    train: Sentences
    valid: Sentences
    settings: Settings
    seed: int
    notes: tuple[str, ...]

    @classmethod
    def reads(cls, kind: str) -> bool:
        return kind == "word"

    @classmethod
    def learn_vocabulary(cls, data: Loaded, config: DataConfig, model: Any) -> Vocabulary:
        """The most frequent words of the training texts."""
        splitter = WordSplitter(Characters())
        met = array("i")
        for text in data.documents("train"):
            met.extend(splitter.split([text])[0])
        counts = np.bincount(np.array(met, dtype=np.int64), minlength=len(splitter.table)).tolist()
        words = {word: counts[number] for word, number in splitter.table.numbers.items()}
        return frequent_words(words, config.vocabulary, lowercase=config.lowercase)

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"vocabulary_size": 1, "head": "language_model"}

    @classmethod
    def sizes(cls, data: Loaded, vocabulary: Vocabulary | Characters) -> dict[str, Any]:
        return {"vocabulary_size": len(_predicted(vocabulary)), "head": "language_model"}

    @classmethod
    def prepare(
        cls, data: Loaded, vocabulary: Vocabulary | Characters, model: Any, train: Settings, seed: int
    ) -> "TwoWayLanguageModelTask":
        predicted = _predicted(vocabulary)

        def sentences(texts: Sequence[str]) -> Sentences:
            splitter = WordSplitter(Characters(model.max_characters))
            found = Sentences(texts, splitter, predicted, train.length)
            if not len(found):
                raise InputError("there are no sentences to learn from, or none to validate with")
            return found

        valid = sentences(data.documents("valid")[: train.valid_size])
        return cls(predicted, sentences(data.documents("train")), valid, train, seed, data.notes)

    def describe(self) -> str:
        return f"{len(self.train):,} sentences, {len(self.train.words):,} words"

    def epoch(self, number: int) -> list[list[int]]:
        return shuffled(self.train.lengths.tolist(), self.settings.batch_tokens, self.seed, number)

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> SentenceBatch:
        if not filled:
            return self.train.batch(rows)
        width = min(stepped(int(self.train.lengths[torch.tensor(rows)].max())), self.settings.length)
        return self.train.batch(rows, self.settings.batch_tokens // width, width)

    def loss(self, model: Elmo, batch: SentenceBatch) -> Float[Tensor, ""]:
        ahead, back = model.bilm_logits(self.train.splitter.read(batch.words), batch.lengths)
        smoothing = self.settings.label_smoothing
        return 0.5 * (
            mean_cross_entropy(ahead, batch.ahead, PAD, smoothing, consume=True)
            + mean_cross_entropy(back, batch.back, PAD, smoothing, consume=True)
        )

    def validate(self, model: Elmo) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: Loaded) -> list[str]:
        return list(data.texts or data.splits)

    def examine(self, model: Elmo, data: Loaded, split: str) -> Examined:
        sentences = Sentences(data.documents(split), self.train.splitter.anew(), self.vocabulary, self.settings.length)
        return Examined(len(sentences), "sentences", self._scores(model, sentences))

    @torch.inference_mode()
    def _scores(self, model: Elmo, sentences: Sentences) -> dict[str, float]:
        total, places = torch.zeros((), dtype=torch.float64, device=model.device), 0
        for batch in sentences.batches(self.settings.batch_tokens):
            here = batch.to(model.device)
            ahead, back = model.bilm_logits(sentences.splitter.read(here.words), here.lengths)
            total += token_cross_entropy(ahead, here.ahead, PAD) + token_cross_entropy(back, here.back, PAD)
            places += batch.tokens
        loss = float(total) / (2 * places)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}  # more is no number any more


def _predicted(vocabulary: Vocabulary | Characters) -> Vocabulary:
    """The words that are predicted: learned from the data, or those of a model that training begins with."""
    found = vocabulary.predicted if isinstance(vocabulary, Characters) else vocabulary
    if found is None:
        raise InputError("init: this ELMo was released without the words that it predicts, so it cannot learn on")
    return found


def _numbers_in(predicted: Vocabulary, splitter: WordSplitter) -> Int[Tensor, "words"]:
    """The number of each word of the table among those that are predicted; of no word, that of padding."""
    found = predicted.encode_ids(list(splitter.table.numbers))
    return torch.tensor([PAD, *(ids[0] if len(ids) == 1 else UNKNOWN for ids in found)])
