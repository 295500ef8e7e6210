"""What training needs to know of translation: its vocabulary, batches, loss and validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qkv.data.batching import Batch, EncodedPair, by_length, collate, shuffled
from qkv.data.pair import Pair
from qkv.data.registry import Loaded
from qkv.data.vocabulary import PAD, Vocabulary
from qkv.errors import InputError
from qkv.metrics import Metric, corpus_scores, exact_match
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.objectives.cross_entropy import token_cross_entropy
from qkv.tasks.translator import Translator
from qkv.types import Float, Tensor

METRICS = {
    "loss": Metric("loss", higher_is_better=False),
    "exact": Metric("exact", percent=True),
    "bleu": Metric("bleu"),
    "chrf": Metric("chrf"),
}


@dataclass(frozen=True)
class TranslationTask:
    """Sequence to sequence: the loss is the cross-entropy of the next target token."""

    vocabulary: Vocabulary
    train: list[EncodedPair]
    valid: list[EncodedPair]
    valid_pairs: list[Pair]
    batch_tokens: int
    label_smoothing: float
    seed: int
    notes: tuple[str, ...]

    @classmethod
    def prepare(
        cls,
        data: Loaded,
        vocabulary: Vocabulary,
        *,
        max_length: int,
        batch_tokens: int,
        label_smoothing: float,
        valid_size: int,
        seed: int,
    ) -> "TranslationTask":
        """Encode the data; pairs longer than the model allows are left out and noted."""
        train = _encode(vocabulary, data.splits["train"])
        kept = [pair for pair in train if pair.length <= max_length]
        if not kept:
            raise InputError(f"every training pair is longer than model.max_length = {max_length} tokens")
        notes = data.notes
        if len(kept) < len(train):
            notes += (f"left out {len(train) - len(kept)} training pair(s) longer than {max_length} tokens",)
        valid_pairs = data.splits["valid"]
        encoded_pairs = zip(valid_pairs, _encode(vocabulary, valid_pairs), strict=True)
        fitting = [(pair, encoded) for pair, encoded in encoded_pairs if encoded.length <= max_length]
        if len(fitting) < len(valid_pairs):
            notes += (f"left out {len(valid_pairs) - len(fitting)} validation pair(s) longer than {max_length} tokens",)
        if not fitting:
            raise InputError(f"every validation pair is longer than model.max_length = {max_length} tokens")
        pairs, valid = zip(*fitting[:valid_size], strict=True)
        return cls(vocabulary, kept, list(valid), list(pairs), batch_tokens, label_smoothing, seed, notes)

    def epoch(self, number: int) -> list[list[int]]:
        """The batches of an epoch, as lists of example numbers; the seed and the number decide them alone."""
        return shuffled([pair.length for pair in self.train], self.batch_tokens, self.seed, number)

    def batch(self, rows: Sequence[int]) -> Batch:
        return collate([self.train[row] for row in rows])

    def loss(self, model: EncoderDecoder[Any, Any], batch: Batch) -> Float[Tensor, ""]:
        """The mean over the batch's target tokens, in nats."""
        logits = model(batch.source, batch.target_in, batch.source_lengths)
        return token_cross_entropy(logits, batch.target_out, PAD, self.label_smoothing) / batch.tokens

    @torch.inference_mode()
    def validate(self, model: EncoderDecoder[Any, Any]) -> dict[str, float]:
        """Loss, exact match, BLEU and chrF of greedy decoding on the validation pairs."""
        total, tokens = 0.0, 0
        for rows in by_length([pair.length for pair in self.valid], self.batch_tokens):
            batch = collate([self.valid[row] for row in rows]).to(model.device)
            logits = model(batch.source, batch.target_in, batch.source_lengths)
            total += token_cross_entropy(logits, batch.target_out, PAD).item()
            tokens += batch.tokens
        found = Translator(model, self.vocabulary).translate([pair.source for pair in self.valid_pairs])
        texts = [answers[0].text for answers in found]
        references = [pair.target for pair in self.valid_pairs]
        scores = corpus_scores(texts, references)
        return {
            "loss": total / tokens,
            "exact": exact_match(texts, references),
            "bleu": float(scores["bleu"]),
            "chrf": float(scores["chrf"]),
        }


def _encode(vocabulary: Vocabulary, pairs: Sequence[Pair]) -> list[EncodedPair]:
    sources = vocabulary.encode_ids([pair.source for pair in pairs])
    targets = vocabulary.encode_ids([pair.target for pair in pairs])
    return [EncodedPair(source, target) for source, target in zip(sources, targets, strict=True)]
