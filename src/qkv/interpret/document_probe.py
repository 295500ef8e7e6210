"""Attention of a hierarchical attention network: the weights of sentences, and of the words in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float

from qkv.attention import watch
from qkv.errors import InputError
from qkv.models.han import HAN
from qkv.pipelines.classifier import Classification
from qkv.pipelines.inputs.text_inputs import split_evenly
from qkv.pipelines.pipeline import TextPipeline, one_or_many, require_text
from qkv.runtime.text import with_article
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.sentences import split_sentences


@dataclass(frozen=True)
class WeightedSentence:
    """A sentence, or a part of a long one, as pieces that concatenate to its text."""

    weight: float  # of the sentence; the weights of a document sum to 1
    pieces: tuple[str, ...]
    weights: Float[np.ndarray, "pieces"]  # of the pieces; they sum to 1
    continues: bool = False  # the next part belongs to the same sentence, which is too long for the model

    @property
    def text(self) -> str:
        return "".join(self.pieces).strip()

    @property
    def shares(self) -> Float[np.ndarray, "pieces"]:
        """Weight of each piece in the document: its own times that of its sentence."""
        return self.weight * self.weights


@dataclass(frozen=True, repr=False)
class WeightedDocument(Classification):
    """The predicted label of a document, with the attention weights of its sentences and words."""

    sentences: tuple[WeightedSentence, ...]
    left_out: int  # number of sentences cut off at the model's maximum length


class DocumentProbe(TextPipeline):
    """A hierarchical attention network: `DocumentProbe("runs/imdb-han-0")("A long review ...").sentences`."""

    task_description: ClassVar = "attention of documents"
    heads: ClassVar = ("classifier",)
    model: HAN

    def setup(self) -> None:
        super().setup()
        if not isinstance(self.model, HAN):
            kind = with_article(type(self.model).__name__)
            raise InputError(f"{self.name}: is {kind}, not a hierarchical attention network")
        if (pooling := self.model.config.pooling) != "attention":
            raise InputError(f"{self.name}: pooling = {pooling!r} has no attention weights")

    @one_or_many
    def __call__(self, texts: Sequence[str]) -> list[WeightedDocument]:
        """Return the attention weights of one document or several."""
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
        rows = _document_parts(self.tokenizer, text, self.model.config.max_words)
        sentences = tuple(
            WeightedSentence(weight, pieces, weights[: len(pieces)], continues)
            for weight, (pieces, continues), weights in zip(sentence_weights, rows, word_weights, strict=False)
        )
        probabilities = logits[0].float().softmax(dim=-1).tolist()
        classified = Classification.from_probabilities(text, self.model.labels, probabilities)
        return WeightedDocument(text, classified.label, classified.probabilities, sentences, len(ids) - len(sentences))


def document_rows(tokenizer: Tokenizer, text: str, max_words: int) -> Iterator[tuple[str, ...]]:
    """Return the tokens of each row of the model's input, for display."""
    return (pieces for pieces, _ in _document_parts(tokenizer, text, max_words))


def _document_parts(tokenizer: Tokenizer, text: str, max_words: int) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the tokens of each row, and whether its sentence continues in the next row."""
    for sentence in split_sentences(text):
        parts = split_evenly(_pieces(tokenizer, sentence) or (sentence,), max_words)
        for number, part in enumerate(parts, start=1):
            yield tuple(part), number < len(parts)


def _pieces(tokenizer: Tokenizer, sentence: str) -> tuple[str, ...]:
    """Return the text of each token up to the start of the next."""
    (encoding,) = tokenizer.encode_with_offsets([sentence])
    starts = [start for start, _ in encoding.offsets]
    return tuple(sentence[begin:end] for begin, end in pairwise([*starts, len(sentence)]))
