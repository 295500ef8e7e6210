"""Translation as a task to learn: from pairs of texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.data.batching import IGNORE, Batch, EncodedPair, by_length, collate, collate_filled, shuffled
from qkv.data.pair import Pair
from qkv.data.registry import Loaded
from qkv.data.tokenizer import PretrainedTokenizer, TwoTokenizers
from qkv.errors import InputError
from qkv.interop.vocabularies import AnyTokenizer
from qkv.metrics import Metric, corpus_scores, exact_match
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.objectives.attention import alignment_loss
from qkv.objectives.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.tasks.marks import Marks
from qkv.tasks.task import Settings, Task
from qkv.tasks.translator import Translator
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs of texts, and their tokens."""

    pairs: list[Pair]
    tokens: list[EncodedPair]

    @classmethod
    def fitting(cls, vocabulary: AnyTokenizer, pairs: list[Pair], longest: int) -> "EncodedPairs":
        """Those of the pairs that have at most so many tokens."""
        encoded = zip(pairs, encode(vocabulary, pairs), strict=True)
        kept = [(pair, tokens) for pair, tokens in encoded if tokens.length <= longest]
        return cls([pair for pair, _ in kept], [tokens for _, tokens in kept])

    def __len__(self) -> int:
        return len(self.pairs)

    def cut_anew(
        self, vocabulary: AnyTokenizer, dropout: float, seed: tuple[int, ...], longest: int
    ) -> list[EncodedPair]:
        """Other tokens for the same pairs, by leaving out merges; those that get too long stay as they are."""
        anew = zip(encode(vocabulary, self.pairs, dropout=dropout, seed=seed), self.tokens, strict=True)
        return [cut if cut.length <= longest else plain for cut, plain in anew]

    def first(self, count: int) -> "EncodedPairs":
        return EncodedPairs(self.pairs[:count], self.tokens[:count])

    def batches(self, budget: int, marks: Marks) -> Iterator[Batch]:
        """All of them, those of like length together."""
        for rows in by_length([pair.length for pair in self.tokens], budget):
            yield collate([self.tokens[row] for row in rows], begin=marks.begin, end=marks.end)


@dataclass
class TranslationTask(Task):
    """Sequence to sequence: the loss is the cross-entropy of the next target token."""

    title = "translation"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "exact": Metric("exact", percent=True),
        "bleu": Metric("bleu"),
        "chrf": Metric("chrf"),
    }
    model = EncoderDecoder
    learns_from = "pairs"
    from_data = ("source_size", "target_size")
    capturable = True

    vocabulary: AnyTokenizer
    train: EncodedPairs
    valid: EncodedPairs
    settings: Settings
    longest: int  # tokens that a pair may have
    marks: Marks  # that targets begin and end with
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.shown = self.train.tokens  # as this epoch cuts them

    @classmethod
    def sizes(cls, data: Loaded, vocabulary: AnyTokenizer) -> dict[str, Any]:
        return {"source_size": len(vocabulary.source), "target_size": len(vocabulary.target)}

    @classmethod
    def prepare(
        cls, data: Loaded, vocabulary: AnyTokenizer, model: Any, train: Settings, seed: int
    ) -> "TranslationTask":
        """Encode the data; pairs longer than the model allows are left out and noted."""
        notes, kept = data.notes, {}
        for split, name in (("train", "training"), ("valid", "validation")):
            pairs = data.splits[split]
            kept[split] = EncodedPairs.fitting(vocabulary, pairs, model.max_length)
            if not kept[split]:
                raise InputError(f"every {name} pair is longer than model.max_length = {model.max_length} tokens")
            if left_out := len(pairs) - len(kept[split]):
                notes += (f"left out {left_out} {name} pair(s) longer than {model.max_length} tokens",)
        valid = kept["valid"].first(train.valid_size)
        marks = Marks.of(vocabulary.target, model)
        return cls(vocabulary, kept["train"], valid, train, model.max_length, marks, seed, notes)

    def describe(self) -> str:
        return f"{len(self.train):,} pairs"

    def epoch(self, number: int) -> list[list[int]]:
        if dropout := self.settings.bpe_dropout:
            self.shown = self.train.cut_anew(self.vocabulary, dropout, (self.seed, number), self.longest)
        return shuffled([pair.length for pair in self.shown], self.settings.batch_tokens, self.seed, number)

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> Batch:
        pairs, begin, end = [self.shown[row] for row in rows], self.marks.begin, self.marks.end
        if filled:
            return collate_filled(pairs, self.settings.batch_tokens, self.longest, begin=begin, end=end)
        return collate(pairs, begin=begin, end=end)

    def loss(self, model: EncoderDecoder[Any, Any], batch: Batch) -> Float[Tensor, ""]:
        """The mean over the batch's target tokens, in nats, and what hard attention learns from besides."""
        logits = model(batch.source, batch.target_in, batch.source_lengths)
        reward = alignment_loss(model, logits, batch.target_out, IGNORE)
        loss = mean_cross_entropy(logits, batch.target_out, IGNORE, self.settings.label_smoothing, consume=True)
        return loss if reward is None else loss + reward

    @torch.inference_mode()
    def validate(self, model: EncoderDecoder[Any, Any]) -> dict[str, float]:
        """Loss, exact match, BLEU and chrF of greedy decoding on the validation pairs."""
        total, tokens = 0.0, 0
        for batch in self.valid.batches(self.settings.batch_tokens, self.marks):
            batch = batch.to(model.device)
            logits = model(batch.source, batch.target_in, batch.source_lengths)
            total += token_cross_entropy(logits, batch.target_out, IGNORE).item()
            tokens += batch.tokens
        found = Translator(model, self.vocabulary).translate([pair.source for pair in self.valid.pairs])
        texts = [answers[0].text for answers in found]
        references = [self.vocabulary.target.normalize(pair.target) for pair in self.valid.pairs]
        scores = corpus_scores(texts, references)
        return {
            "loss": total / tokens,
            "exact": exact_match(texts, references),
            "bleu": float(scores["bleu"]),
            "chrf": float(scores["chrf"]),
        }


def encode(
    vocabulary: AnyTokenizer, pairs: Sequence[Pair], *, dropout: float = 0.0, seed: tuple[int, ...] = ()
) -> list[EncodedPair]:
    """The tokens of pairs; with `dropout` cut into subwords as the seed decides.

    A released model expects marks of its own around a source; those of a target are put there in each batch.
    """
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    if isinstance(vocabulary, PretrainedTokenizer | TwoTokenizers):
        if dropout:
            raise InputError(
                "train.bpe_dropout needs a vocabulary that was learned here, not a released one: leave it out"
            )
        sources, targets = vocabulary.source.encode_ids(sides[0], specials=True), vocabulary.target.encode_ids(sides[1])
    else:
        sources = vocabulary.source.encode_ids(sides[0], dropout=dropout, seed=(*seed, 0))
        targets = vocabulary.target.encode_ids(sides[1], dropout=dropout, seed=(*seed, 1))
    return [EncodedPair(source, target) for source, target in zip(sources, targets, strict=True)]
