"""Translation as a task to learn: from pairs of texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.data.batching import IGNORE, Batch, EncodedPair, batch_by_length, collate, collate_to_shape, shuffled_batches
from qkv.data.pair import Pair
from qkv.data.registry import LoadedData
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.interop.vocabularies import AnyTokenizer
from qkv.metrics import Metric, corpus_scores, exact_match, rouge_scores
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.objectives.attention import alignment_loss
from qkv.objectives.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.tasks.marks import Marks
from qkv.tasks.parsed import ParsedPair, parsed_ids, told, with_trees
from qkv.tasks.task import Settings, Task
from qkv.tasks.translator import Translator
from qkv.tasks.trees import parsed, reads_trees
from qkv.types import Float, Tensor

FEW_PAIRS = 1000  # with fewer, a translator that is trained from scratch learns little


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs of texts, and their tokens."""

    pairs: list[Pair]
    tokens: list[EncodedPair]
    trees: bool = False  # whether the sources come with their trees

    @classmethod
    def fitting(
        cls, vocabulary: AnyTokenizer, pairs: list[Pair], longest: int, *, trees: bool = False
    ) -> "EncodedPairs":
        """Those of the pairs that have at most so many tokens."""
        encoded = zip(pairs, encode(vocabulary, pairs, trees=trees), strict=True)
        kept = [(pair, tokens) for pair, tokens in encoded if tokens.length <= longest]
        return cls([pair for pair, _ in kept], [tokens for _, tokens in kept], trees)

    def __len__(self) -> int:
        return len(self.pairs)

    def cut_anew(
        self, vocabulary: AnyTokenizer, dropout: float, seed: tuple[int, ...], longest: int
    ) -> list[EncodedPair]:
        """Other tokens for the same pairs, by leaving out merges; those that get too long stay as they are."""
        anew = encode(vocabulary, self.pairs, dropout=dropout, seed=seed, trees=self.trees)
        return [cut if cut.length <= longest else plain for cut, plain in zip(anew, self.tokens, strict=True)]

    def first(self, count: int) -> "EncodedPairs":
        return EncodedPairs(self.pairs[:count], self.tokens[:count], self.trees)

    def batches(self, budget: int, marks: Marks) -> Iterator[Batch]:
        """All of them, those of like length together."""
        for rows in batch_by_length([pair.length for pair in self.tokens], budget):
            pairs = [self.tokens[row] for row in rows]
            yield with_trees(collate(pairs, begin=marks.begin, end=marks.end), pairs)


@dataclass
class TranslationTask(Task):
    """Sequence to sequence: the loss is the cross-entropy of the next target token."""

    title = "translation"
    command = "translate"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "exact": Metric("exact", percent=True),
        "bleu": Metric("bleu"),
        "chrf": Metric("chrf"),
        "rouge_1": Metric("ROUGE-1", percent=True),
        "rouge_2": Metric("ROUGE-2", percent=True),
        "rouge_l": Metric("ROUGE-L", percent=True),
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
    def sizes(cls, data: LoadedData, vocabulary: AnyTokenizer) -> dict[str, Any]:
        return {"source_size": len(vocabulary.source), "target_size": len(vocabulary.target)}

    @classmethod
    def prepare(
        cls, data: LoadedData, vocabulary: AnyTokenizer, model: Any, train: Settings, seed: int
    ) -> "TranslationTask":
        """Encode the data; pairs longer than the model allows are left out and noted."""
        notes, kept, trees = data.notes, {}, reads_trees(model)
        if trees:  # also those that are not looked at until training is done
            for split, pairs in data.splits.items():
                for number, pair in enumerate(pairs, start=1):
                    parsed(pair.source_input, f"{split}: pair {number}")
        for split, name in (("train", "training"), ("valid", "validation")):
            pairs = data.splits[split]
            kept[split] = EncodedPairs.fitting(vocabulary, pairs, model.max_length, trees=trees)
            if not kept[split]:
                raise InputError(f"every {name} pair is longer than model.max_length = {model.max_length} tokens")
            if left_out := len(pairs) - len(kept[split]):
                notes += (f"left out {left_out} {name} pair(s) longer than {model.max_length} tokens",)
        valid = kept["valid"].first(train.valid_size)
        marks = Marks.of(vocabulary.target, model)
        return cls(vocabulary, kept["train"], valid, train, model.max_length, marks, seed, notes)

    def describe(self) -> str:
        return f"{len(self.train):,} pairs"

    def notes_from_scratch(self) -> tuple[str, ...]:
        if len(self.train) >= FEW_PAIRS:
            return ()
        return (
            f"{len(self.train):,} training pairs are few for a model without pretrained weights: expect poor results",
        )

    def epoch(self, number: int) -> list[list[int]]:
        if dropout := self.settings.bpe_dropout:
            self.shown = self.train.cut_anew(self.vocabulary, dropout, (self.seed, number), self.longest)
        return shuffled_batches([pair.length for pair in self.shown], self.settings.batch_tokens, self.seed, number)

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> Batch:
        pairs, begin, end = [self.shown[row] for row in rows], self.marks.begin, self.marks.end
        if filled:
            batch = collate_to_shape(pairs, self.settings.batch_tokens, self.longest, begin=begin, end=end)
        else:
            batch = collate(pairs, begin=begin, end=end)
        return with_trees(batch, pairs)

    def loss(self, model: EncoderDecoder[Any, Any], batch: Batch) -> Float[Tensor, ""]:
        """The mean over the batch's target tokens, in nats, and what hard attention learns from besides."""
        logits = model(batch.source, batch.target_in, batch.source_lengths, **told(batch))
        reward = alignment_loss(model, logits, batch.target_out, IGNORE)
        loss = mean_cross_entropy(logits, batch.target_out, IGNORE, self.settings.label_smoothing, consume=True)
        return loss if reward is None else loss + reward

    @torch.inference_mode()
    def validate(self, model: EncoderDecoder[Any, Any]) -> dict[str, float]:
        """Loss, exact match, BLEU, chrF and ROUGE of greedy decoding on the validation pairs."""
        total, tokens = 0.0, 0
        for batch in self.valid.batches(self.settings.batch_tokens, self.marks):
            batch = batch.to(model.device)
            logits = model(batch.source, batch.target_in, batch.source_lengths, **told(batch))
            total += token_cross_entropy(logits, batch.target_out, IGNORE).item()
            tokens += batch.tokens
        found = Translator(model, self.vocabulary).translate([pair.source_input for pair in self.valid.pairs])
        texts = [answers[0].text for answers in found]
        references = [self.vocabulary.target.normalize(pair.target) for pair in self.valid.pairs]
        scores = corpus_scores(texts, references)
        return {
            "loss": total / tokens,
            "exact": exact_match(texts, references),
            "bleu": float(scores["bleu"]),
            "chrf": float(scores["chrf"]),
            **rouge_scores(texts, references),
        }


def encode(
    vocabulary: AnyTokenizer,
    pairs: Sequence[Pair],
    *,
    dropout: float = 0.0,
    seed: tuple[int, ...] = (),
    trees: bool = False,
) -> list[EncodedPair]:
    """The tokens of pairs; with `dropout` cut into subwords as the seed decides; with the `trees` of sources.

    A released model expects marks of its own around a source; those of a target are put there in each batch.
    """
    targets = _ids(vocabulary.target, [pair.target for pair in pairs], dropout, (*seed, 1))
    if trees:
        sentences = [parsed(pair.source_input, f"pair {number}") for number, pair in enumerate(pairs, start=1)]
        read = parsed_ids(vocabulary.source, sentences, dropout=dropout, seed=(*seed, 0))
        return [ParsedPair(one.ids, target, one.tree) for one, target in zip(read, targets, strict=True)]
    sources = _ids(vocabulary.source, [pair.source for pair in pairs], dropout, (*seed, 0), specials=True)
    return [EncodedPair(source, target) for source, target in zip(sources, targets, strict=True)]


def _ids(
    tokenizer: Vocabulary | PretrainedTokenizer,
    texts: Sequence[str],
    dropout: float,
    seed: tuple[int, ...],
    *,
    specials: bool = False,
) -> list[list[int]]:
    """The token numbers of texts; with `specials` also the marks that a released model expects around them."""
    if isinstance(tokenizer, Vocabulary):
        return tokenizer.encode_ids(texts, dropout=dropout, seed=seed)
    if dropout:
        raise InputError("train.bpe_dropout needs a vocabulary that was learned here, not a released one: leave it out")
    return tokenizer.encode_ids(texts, specials=specials)
