"""Attention of a hierarchical attention network: the weights of sentences, and of the words in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from qkv.attention import watch
from qkv.errors import InputError
from qkv.models.han import HAN
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.classifier import Classified, Classifier
from qkv.pipelines.text_inputs import split_evenly
from qkv.pipelines.text_pipeline import require_text
from qkv.tokenizers.sentences import split_sentences
from qkv.tokenizers.vocabulary import Vocabulary


@dataclass(frozen=True)
class WeightedSentence:
    """A sentence, or a part of a long one, as pieces that concatenate to its text."""

    weight: float  # of the sentence; the weights of a document sum to 1
    pieces: tuple[str, ...]
    weights: Float[np.ndarray, "pieces"]  # of the pieces; they sum to 1

    @property
    def text(self) -> str:
        return "".join(self.pieces).strip()

    @property
    def shares(self) -> Float[np.ndarray, "pieces"]:
        """Weight of each piece in the document: its own times that of its sentence."""
        return self.weight * self.weights


@dataclass(frozen=True)
class WeightedDocument(Classified):
    """The predicted label of a document, with the attention weights of its sentences and words."""

    sentences: tuple[WeightedSentence, ...]
    left_out: int  # number of sentences cut off at the model's maximum length


class DocumentProbe(Classifier):
    """A hierarchical attention network: `DocumentProbe("runs/imdb-han-0")("A long review ...").sentences`."""

    model: HAN

    def __init__(self, model: str | Path | TextEncoder, tokenizer: Any = None, device: str = "auto") -> None:
        super().__init__(model, tokenizer, device)
        if not isinstance(self.model, HAN):
            raise InputError(f"{self.name}: is a {type(self.model).__name__}, not a hierarchical attention network")
        if (pooling := self.model.config.pooling) != "attention":
            raise InputError(f"{self.name}: pooling = {pooling!r} has no attention weights")

    def __call__(self, text: str) -> WeightedDocument:
        """Return the attention weights of one document."""
        return self.probe([text])[0]

    def probe(self, texts: Sequence[str]) -> list[WeightedDocument]:
        """Return the attention weights of each document."""
        require_text(texts)
        return [self._probe(text) for text in texts]

    @torch.inference_mode()
    def _probe(self, text: str) -> WeightedDocument:
        encoder = self.encoder.fresh_copy()
        (ids,) = encoder.encode([text])
        sentence_ids = torch.tensor([ids[: self.max_tokens]], device=self.model.device)
        with watch(self.model) as records:
            logits = self.model.predict(
                encoder.lookup(sentence_ids), torch.full_like(sentence_ids[:, 0], sentence_ids.shape[1])
            )
        sentence_weights = records["sentences"].weights[0, 0, 0].tolist()
        word_weights = records["words"].weights[:, 0, 0].float().cpu().numpy()
        sentences = tuple(
            WeightedSentence(weight, pieces, weights[: len(pieces)])
            for weight, pieces, weights in zip(sentence_weights, self._rows(text), word_weights, strict=False)
        )
        classified = self._classified(text, logits[0].float().softmax(dim=-1).tolist())
        return WeightedDocument(text, classified.label, classified.probabilities, sentences, len(ids) - len(sentences))

    def _rows(self, text: str) -> Iterator[tuple[str, ...]]:
        """Pieces of each row of the model's input, for display."""
        for sentence in split_sentences(text):
            for part in split_evenly(self._pieces(sentence) or (sentence,), self.model.config.max_words):
                yield tuple(part)

    def _pieces(self, sentence: str) -> tuple[str, ...]:
        tokenizer: Any = self.encoder.tokenizer
        if isinstance(tokenizer, Vocabulary):
            return tokenizer.encode(sentence).pieces
        starts = [start for start, _ in tokenizer.encode(sentence, specials=False).offsets]
        return tuple(sentence[begin:end] for begin, end in pairwise([*starts, len(sentence)]))
