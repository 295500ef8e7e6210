"""Observing a hierarchical attention network: a document in, out which sentences counted, and which words in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from qkv.attention import watch
from qkv.data.sentences import split_sentences
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.models.han import HAN
from qkv.nn.text_encoder import TextEncoder
from qkv.tasks.classifier import Classified, Classifier
from qkv.tasks.pieces import in_parts
from qkv.tasks.reader import require_text


@dataclass(frozen=True)
class WeighedSentence:
    """A sentence, or the part of a long one that is read at once, in pieces that together are its text."""

    weight: float  # of all sentences of the document, which have 1 together
    pieces: tuple[str, ...]
    weights: Float[np.ndarray, "pieces"]  # of each piece, which have 1 together

    @property
    def text(self) -> str:
        return "".join(self.pieces).strip()

    @property
    def shares(self) -> Float[np.ndarray, "pieces"]:
        """How much each piece counts in the document: its weight times that of its sentence."""
        return self.weight * self.weights


@dataclass(frozen=True)
class WeighedDocument(Classified):
    """What a document is taken for, and what of it counted how much."""

    sentences: tuple[WeighedSentence, ...]
    left_out: int  # how many sentences more there are, of which nothing was read


class DocumentObserver(Classifier):
    """A hierarchical attention network: `DocumentObserver("runs/imdb-han-0")("A long review ...").sentences`."""

    model: HAN

    def __init__(self, model: str | Path | TextEncoder, tokenizer: Any = None, device: str = "auto") -> None:
        super().__init__(model, tokenizer, device)
        if not isinstance(self.model, HAN):
            raise InputError(f"{self.name}: holds a {type(self.model).__name__}, which does not read by sentences")
        if (pooling := self.model.config.pooling) != "attention":
            raise InputError(f"{self.name}: was trained with pooling = {pooling!r}, and has no attention to look at")

    def __call__(self, text: str) -> WeighedDocument:
        """What counts in one document."""
        return self.observe([text])[0]

    def observe(self, texts: Sequence[str]) -> list[WeighedDocument]:
        """What counts in each document."""
        require_text(texts)
        return [self._observed(text) for text in texts]

    @torch.inference_mode()
    def _observed(self, text: str) -> WeighedDocument:
        splitter = self.splitter.anew()
        (numbers,) = splitter.split([text])
        read = torch.tensor([numbers[: self.room]], device=self.model.device)
        with watch(self.model) as seen:
            logits = self.model.predict(splitter.read(read), torch.full_like(read[:, 0], read.shape[1]))
        of_sentences = seen["sentences"].weights[0, 0, 0].tolist()
        of_words = seen["words"].weights[:, 0, 0].float().cpu().numpy()
        sentences = tuple(
            WeighedSentence(weight, pieces, weights[: len(pieces)])
            for weight, pieces, weights in zip(of_sentences, self._rows(text), of_words, strict=False)
        )
        said = self._classified(text, logits[0].float().softmax(dim=-1).tolist())
        return WeighedDocument(text, said.label, said.probabilities, sentences, len(numbers) - len(sentences))

    def _rows(self, text: str) -> Iterator[tuple[str, ...]]:
        """What is read in each row, as a person should see it."""
        for sentence in split_sentences(text):
            for part in in_parts(self._pieces(sentence) or (sentence,), self.model.config.max_words):
                yield tuple(part)

    def _pieces(self, sentence: str) -> tuple[str, ...]:
        tokenizer: Any = self.splitter.tokenizer
        if isinstance(tokenizer, Vocabulary):
            return tokenizer.encode(sentence).pieces
        starts = [start for start, _ in tokenizer.encode(sentence, specials=False).offsets]
        return tuple(sentence[begin:end] for begin, end in pairwise([*starts, len(sentence)]))
