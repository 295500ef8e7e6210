"""Observing: a text in, and out what a model attends to while it reads it, in every layer and head."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qkv.attention import Attend, TreePositions, watch
from qkv.attention.layers import Layer, attention_layers
from qkv.data.tagged import Tagged, text_of
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.interop import load
from qkv.nn.language_model import LanguageModel
from qkv.nn.text_encoder import TextEncoder
from qkv.runtime.device import pick_device
from qkv.tasks.answer import Answer, AttentionMap
from qkv.tasks.pieces import AnySplitter, SentenceSplitter, WordSplitter, splitter_for
from qkv.tasks.tagging import cut
from qkv.tasks.trees import Parsed, Tree, parsed, reads_trees, tree_places
from qkv.tasks.words import split_words
from qkv.types import Float, Int, Tensor

MOST_WEIGHTS = 2**24  # that are kept: a page stores them in 32 MiB
WHOLE = ("[text]",)  # who reads where one vector is made of a whole text


class Said(NamedTuple):
    """What a model says of what it has read."""

    text: str = ""
    score: float = math.nan  # log-probability; not a number where it says nothing


class Given(NamedTuple):
    """What a model is given to read of a text."""

    ids: list[int]
    pieces: tuple[str, ...]  # how a person should see the tokens
    tree: Tree | None = None


class Observer:
    """A model that reads texts: `Observer("folders/bert-base-uncased")("The cat sat.").maps`.

    A text encoder reads a text between its marks, a language model as it is; both to the last token that they can look
    at, and no further. The answer is a classifier's label with its log-probability; of a language model, the score is
    the log-probability that a token of the text has after those before it.
    """

    def __init__(
        self, model: str | Path | TextEncoder | LanguageModel[Any], tokenizer: Any = None, device: str = "auto"
    ) -> None:
        given: Any = load(model, pick_device(device)) if isinstance(model, str | Path) else model
        self.name = str(model) if isinstance(model, str | Path) else type(model).__name__
        if not isinstance(given, TextEncoder | LanguageModel):
            raise InputError(f"{self.name}: holds {type(given).__name__}, which is no text encoder or language model")
        self.model: TextEncoder | LanguageModel[Any] = given.eval()
        self.tokenizer: Any = tokenizer or self.model.tokenizer  # Vocabulary or PretrainedTokenizer
        self.layers = attention_layers(self.model)
        if not self.layers:
            raise InputError(f"{self.name}: holds {type(self.model).__name__}, which has no attention to look at")
        if self.tokenizer is None:
            raise InputError(f"{self.name}: to read a text takes a tokenizer, and there is none beside the weights")
        self.splitter: AnySplitter | None = None  # a language model reads a text as it is
        if isinstance(self.model, TextEncoder):
            self.splitter = splitter_for(self.tokenizer, self.model.config)
        if isinstance(self.splitter, SentenceSplitter):
            raise InputError(f"{self.name}: reads documents by their sentences: see them with a DocumentObserver")

    def __call__(self, text: str | Tagged) -> Answer:
        """What the model attends to in one text."""
        return self.observe([text])[0]

    def observe(self, texts: Sequence[str | Tagged], layer: str | None = None) -> list[Answer]:
        """What the model attends to in each text; of one that reads trees, in each sentence with its heads.

        Where all layers together would be too much, they are kept from the first on, one that is named before all.
        """
        read = [self._read(number, text) for number, text in enumerate(texts, start=1)]
        most = MOST_WEIGHTS // max(1, len(texts))
        return [self._observed(text_of(text), tokens, layer, most) for text, tokens in zip(texts, read, strict=True)]

    @property
    def room(self) -> int | None:
        """How many tokens of a text the model reads, its marks not counted; None: all of them."""
        longest: int | None = getattr(self.model.config, "max_length", None)
        return longest if longest is None or self.splitter is None else self.splitter.room(longest)

    @property
    def unit(self) -> str:
        """What a text is cut into."""
        return "tokens"

    def too_long(self, texts: Sequence[str]) -> list[int]:
        """The numbers, from 1, of the texts that are read to the model's last place and no further."""
        room = self.room
        lengths = [len(self._encode(text)[0]) for text in texts]
        return [number for number, length in enumerate(lengths, start=1) if room is not None and length > room]

    @torch.inference_mode()
    def _observed(self, text: str, given: "Given", layer: str | None, most: int) -> Answer:
        tokens, pieces = torch.tensor([given.ids], device=self.model.device), given.pieces
        with watch(self.model, layers=layers_that_fit(self.layers, len(pieces) ** 2, layer, most)) as seen:
            said = self._scored(tokens) if isinstance(self.model, LanguageModel) else self._labelled(tokens, given.tree)
        mixtures = getattr(self.model.config, "rank", None)  # of tokens, which a Linformer reads instead of them
        read = pieces if mixtures is None else tuple(f"mixture {number}" for number in range(1, mixtures + 1))
        maps = (_map(name, record.weights[0].float().cpu(), pieces, read) for name, record in seen.items())
        return Answer(text, said.text, said.score, tuple(maps))

    def _scored(self, tokens: Int[Tensor, "1 length"]) -> Said:
        following = self.model(tokens)[0, :-1].float().log_softmax(dim=-1).gather(1, tokens[0, 1:, None])
        return Said(score=float(following.mean()))  # not a number, for a text of one token

    def _labelled(self, tokens: Int[Tensor, "1 length"], tree: Tree | None) -> Said:
        assert isinstance(self.model, TextEncoder)
        assert self.splitter is not None
        told = {} if tree is None else {"tree": _on(tokens.device, tree_places([tree], tokens.shape[1]))}
        hidden = self.model(self.splitter.read(tokens), **told)
        if self.model.config.head != "classifier":
            return Said()
        score, label = self.model.logits(hidden)[0].float().log_softmax(dim=-1).max(dim=-1)
        return Said(self.model.labels[int(label)], float(score))

    def _read(self, number: int, given: str | Tagged) -> "Given":
        """What is read of a text, and how a person should see it."""
        if reads_trees(self.model.config):
            return self._parsed(parsed(given, f"input {number}"))
        text = text_of(given)
        ids, pieces = self._encode(text)
        if not text.strip() or not ids:
            raise InputError(f"input {number} is empty")
        ids, pieces = ids[: self.room], pieces[: self.room]
        if self.splitter is None:
            return Given(ids, tuple(pieces))
        marked, first = self.splitter.between(ids), self.splitter.first
        names = [str(self.tokenizer.piece(one)) for one in (*marked[:first], *marked[first + len(ids) :])]
        return Given(marked, (*names[:first], *pieces, *names[first:]))

    def _parsed(self, sentence: Parsed) -> "Given":
        """As a tagger reads a sentence with its tree; of one that is too long, the beginning."""
        assert self.splitter is not None
        untagged = Tagged(sentence.words, ("",) * len(sentence.words), sentence.heads)
        piece = cut(self.splitter.anew(), [untagged], {}, self.model.config.max_length, trees=True).pieces[0]
        return Given(piece.ids, tuple(str(self.tokenizer.piece(one)) for one in piece.ids), piece.tree)

    def _encode(self, text: str) -> tuple[list[int], Sequence[str]]:
        if isinstance(self.splitter, WordSplitter):
            return self.splitter.split([text])[0], [text[begin:end] for begin, end in split_words(text)]
        if isinstance(self.tokenizer, Vocabulary):
            tokens: Any = self.tokenizer.encode(text)
        else:
            tokens = self.tokenizer.encode(text, specials=self.splitter is None)
        return tokens.ids, tokens.pieces


def _on(device: torch.device, places: TreePositions) -> TreePositions:
    return TreePositions(places.depth.to(device), places.distance.to(device))


def _map(
    layer: str, weights: Float[Tensor, "heads queries keys"], pieces: tuple[str, ...], read: tuple[str, ...]
) -> AttentionMap:
    if read is not pieces:
        return AttentionMap(layer, pieces, read, weights.numpy())
    if weights.shape[1] == len(pieces):
        return AttentionMap(layer, pieces, pieces, in_place(weights).numpy())
    return AttentionMap(layer, WHOLE * weights.shape[1], pieces, weights.numpy())


def layers_that_fit(known: Mapping[str, Attend], weights: int, first: str | None, most: int) -> list[Layer]:
    """The layers, each of so many weights a head, that have at most so many together; `first` before the others."""
    if first is not None and first not in known:
        raise InputError(f"there is no attention layer {first!r}; there is: {', '.join(known)}")
    chosen: list[Layer] = []
    for name in sorted(known, key=lambda name: name != first):
        most -= (known[name].heads or 1) * weights
        if most < 0 and chosen:
            break
        chosen.append(name)
    return chosen


def in_place(weights: Float[Tensor, "heads length keys"]) -> Float[Tensor, "heads length length"]:
    """Each weight in the column of the token that was read.

    A model that reads token by token may see those before it alone, the last so many: then the keys of row t are the
    tokens before t.
    """
    length, keys = weights.shape[1:]
    if keys == length:
        return weights
    found = weights.new_zeros(*weights.shape[:2], length)
    for row in range(1, length):
        seen = min(row, keys)
        found[:, row, row - seen : row] = weights[:, row, :seen]
    return found
