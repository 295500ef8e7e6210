"""Translation task: sequence-to-sequence learning from pairs of texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.datasets.batching import (
    IGNORE,
    Batch,
    EncodedPair,
    batch_by_length,
    collate,
    collate_to_shape,
    shuffled_batches,
)
from qkv.datasets.pair import Pair
from qkv.datasets.registry import LoadedData
from qkv.errors import InputError
from qkv.metrics import Metric, corpus_scores, exact_match, rouge_scores
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.losses.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.nn.losses.reinforce import alignment_loss
from qkv.pipelines.pipeline import DecoderTokens
from qkv.pipelines.translator import Translator
from qkv.pipelines.tree_inputs import (
    ParsedPair,
    parsed_ids,
    reads_trees,
    require_heads,
    tree_arguments,
    with_trees,
)
from qkv.tasks.task import Settings, Task
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Tensor

FEW_PAIRS = 1000  # fewer give poor results when training from scratch


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs of texts with their token ids."""

    pairs: list[Pair]
    tokens: list[EncodedPair]
    trees: bool = False  # whether the sources have dependency trees

    @classmethod
    def fitting(
        cls, tokenizer: Tokenizer, pairs: list[Pair], max_length: int, *, trees: bool = False
    ) -> "EncodedPairs":
        """Encode the pairs and keep those of at most `max_length` tokens."""
        encoded = zip(pairs, encode(tokenizer, pairs, trees=trees), strict=True)
        kept = [(pair, tokens) for pair, tokens in encoded if tokens.length <= max_length]
        return cls([pair for pair, _ in kept], [tokens for _, tokens in kept], trees)

    def __len__(self) -> int:
        return len(self.pairs)

    def retokenize(
        self, tokenizer: Tokenizer, dropout: float, seed: tuple[int, ...], max_length: int
    ) -> list[EncodedPair]:
        """Retokenize the pairs with BPE dropout; those that become too long keep their plain tokens."""
        retokenized = encode(tokenizer, self.pairs, dropout=dropout, seed=seed, trees=self.trees)
        return [
            pair if pair.length <= max_length else plain for pair, plain in zip(retokenized, self.tokens, strict=True)
        ]

    def first(self, count: int) -> "EncodedPairs":
        return EncodedPairs(self.pairs[:count], self.tokens[:count], self.trees)

    def batches(self, budget: int, special_tokens: DecoderTokens) -> Iterator[Batch]:
        """Yield all pairs in batches of similar length."""
        for rows in batch_by_length([pair.length for pair in self.tokens], budget):
            pairs = [self.tokens[row] for row in rows]
            yield with_trees(collate(pairs, begin=special_tokens.begin, end=special_tokens.end), pairs)


@dataclass
class TranslationTask(Task):
    """Cross-entropy of the next target token."""

    title = "translation"
    cli_command = "translate"
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

    tokenizer: Tokenizer
    train: EncodedPairs
    valid: EncodedPairs
    settings: Settings
    max_length: int  # of a pair in tokens
    special_tokens: DecoderTokens  # of the targets
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.epoch_pairs = self.train.tokens  # as tokenized in this epoch

    @classmethod
    def sizes(cls, data: LoadedData, tokenizer: Tokenizer) -> dict[str, Any]:
        return {"source_size": len(tokenizer.source), "target_size": len(tokenizer.target)}

    @classmethod
    def prepare(
        cls, data: LoadedData, tokenizer: Tokenizer, model: Any, train: Settings, seed: int
    ) -> "TranslationTask":
        """Encode the data, skipping pairs longer than the model allows with a note."""
        notes, kept, trees = data.notes, {}, reads_trees(model)
        if trees:  # check all splits before training
            for split, pairs in data.splits.items():
                for number, pair in enumerate(pairs, start=1):
                    require_heads(pair.source_input, f"{split}: pair {number}")
        for split, name in (("train", "training"), ("valid", "validation")):
            pairs = data.splits[split]
            kept[split] = EncodedPairs.fitting(tokenizer, pairs, model.max_length, trees=trees)
            if not kept[split]:
                raise InputError(f"every {name} pair is longer than model.max_length = {model.max_length} tokens")
            if skipped := len(pairs) - len(kept[split]):
                notes += (f"skipped {skipped} {name} pair(s) longer than {model.max_length} tokens",)
        valid = kept["valid"].first(train.valid_size)
        special_tokens = DecoderTokens.from_tokenizer(tokenizer.target, model)
        return cls(tokenizer, kept["train"], valid, train, model.max_length, special_tokens, seed, notes)

    def describe(self) -> str:
        return f"{len(self.train):,} pairs"

    def notes_from_scratch(self) -> tuple[str, ...]:
        if len(self.train) >= FEW_PAIRS:
            return ()
        return (f"{len(self.train):,} training pairs are few for training from scratch: expect poor results",)

    def epoch(self, number: int) -> list[list[int]]:
        if dropout := self.settings.bpe_dropout:
            self.epoch_pairs = self.train.retokenize(self.tokenizer, dropout, (self.seed, number), self.max_length)
        return shuffled_batches(
            [pair.length for pair in self.epoch_pairs], self.settings.batch_tokens, self.seed, number
        )

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> Batch:
        pairs, begin, end = [self.epoch_pairs[row] for row in rows], self.special_tokens.begin, self.special_tokens.end
        if padded_to_shape:
            batch = collate_to_shape(pairs, self.settings.batch_tokens, self.max_length, begin=begin, end=end)
        else:
            batch = collate(pairs, begin=begin, end=end)
        return with_trees(batch, pairs)

    def loss(self, model: EncoderDecoder[Any, Any], batch: Batch) -> Float[Tensor, ""]:
        """Mean cross-entropy of the target tokens in nats, plus the REINFORCE term of hard attention."""
        logits = model(batch.source, batch.target_in, batch.source_lengths, **tree_arguments(batch))
        reward = alignment_loss(model, logits, batch.target_out, IGNORE)
        loss = mean_cross_entropy(logits, batch.target_out, IGNORE, self.settings.label_smoothing, consume=True)
        return loss if reward is None else loss + reward

    @torch.inference_mode()
    def validate(self, model: EncoderDecoder[Any, Any]) -> dict[str, float]:
        """Loss, exact match, BLEU, chrF and ROUGE of greedy decoding on the validation pairs."""
        total, tokens = 0.0, 0
        for batch in self.valid.batches(self.settings.batch_tokens, self.special_tokens):
            batch = batch.to(model.device)
            logits = model(batch.source, batch.target_in, batch.source_lengths, **tree_arguments(batch))
            total += token_cross_entropy(logits, batch.target_out, IGNORE).item()
            tokens += batch.tokens
        translations = Translator(model, self.tokenizer)([pair.source_input for pair in self.valid.pairs])
        texts = [translation.text for translation in translations]
        references = [self.tokenizer.target.normalize(pair.target) for pair in self.valid.pairs]
        scores = corpus_scores(texts, references)
        return {
            "loss": total / tokens,
            "exact": exact_match(texts, references),
            "bleu": float(scores["bleu"]),
            "chrf": float(scores["chrf"]),
            **rouge_scores(texts, references),
        }


def encode(
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    *,
    dropout: float = 0.0,
    seed: tuple[int, ...] = (),
    trees: bool = False,
) -> list[EncodedPair]:
    """Token ids of pairs, with BPE `dropout` drawn from the seed, and with the `trees` of the sources.

    Sources include the special tokens a released model expects; those of the targets are added in each batch.
    """
    target_seed, source_seed = (*seed, 1), (*seed, 0)
    targets = tokenizer.target.encode([pair.target for pair in pairs], dropout=dropout, seed=target_seed)
    if trees:
        sentences = [require_heads(pair.source_input, f"pair {number}") for number, pair in enumerate(pairs, start=1)]
        parsed_sources = parsed_ids(tokenizer.source, sentences, dropout=dropout, seed=source_seed)
        return [ParsedPair(ids, target, tree) for (ids, tree), target in zip(parsed_sources, targets, strict=True)]
    texts = [pair.source for pair in pairs]
    sources = tokenizer.source.encode(texts, add_special_tokens=True, dropout=dropout, seed=source_seed)
    return [EncodedPair(source, target) for source, target in zip(sources, targets, strict=True)]
