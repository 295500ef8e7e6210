"""Texts as a text encoder reads them: cut into tokens, in batches of like length."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from qkv.attention import TreePlaces
from qkv.data.batching import batch_by_length, round_up, shuffled_batches
from qkv.data.characters import Characters, WordTable
from qkv.data.sentences import split_sentences
from qkv.data.tensor_batch import TensorBatch
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary
from qkv.errors import InputError
from qkv.tasks.trees import NOTHING, Tree, tree_places
from qkv.tasks.words import split_words
from qkv.types import Int, Tensor

T = TypeVar("T")
IGNORE = -1  # the target of a token of which nothing is to be said


@dataclass(frozen=True)
class Splitter:
    """Cuts texts into tokens, by a vocabulary that was learned here or by a released tokenizer."""

    tokenizer: Vocabulary | PretrainedTokenizer

    first: ClassVar[int] = 1  # the place of a text's first token, after the token before every text
    unit: ClassVar[str] = "tokens"  # what a text is cut into

    @cached_property
    def edges(self) -> tuple[int, int]:
        """The tokens before and after every text."""
        if isinstance(self.tokenizer, Vocabulary):
            return BEGIN, END
        begin, end = self.tokenizer.special_tokens.begin, self.tokenizer.special_tokens.end
        if begin is None or end is None:
            raise InputError("the tokenizer has no tokens for the beginning and the end of a text ([CLS] and [SEP])")
        return begin, end

    @cached_property
    def pad(self) -> int:
        return PAD if isinstance(self.tokenizer, Vocabulary) else self.tokenizer.special_tokens.pad or 0

    @cached_property
    def unknown(self) -> int:
        return UNKNOWN if isinstance(self.tokenizer, Vocabulary) else self.tokenizer.special_tokens.unknown or 0

    def split(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, at least one: of a text in which nothing is left, that of the unknown."""
        return [ids or [self.unknown] for ids in self.tokenizer.encode_ids(texts)]

    def split_words(self, words: Sequence[str]) -> list[list[int]]:
        """The tokens of each word, at least one."""
        return self.split(words)

    def room(self, longest: int) -> int:
        """How many tokens of a text a model reads that can look at `longest`."""
        if longest < 3:
            raise InputError(f"model.max_length = {longest} has no room for a token between the edges of a text")
        return longest - 2

    def at_once(self, budget: int) -> int:
        """How many units are read at once where `budget` tokens may be."""
        return budget

    def between(self, ids: Sequence[int]) -> list[int]:
        begin, end = self.edges
        return [begin, *ids, end]

    def read(self, numbers: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length *characters"]:
        """What a model reads for the numbers of tokens."""
        return numbers

    def anew(self) -> "Splitter":
        """One that cuts texts the same way, and has not met any yet."""
        return self


class WordSplitter:
    """Cuts texts into words, of which a model reads the characters.

    A word that is not known does not exist: every word that is met gets a number, and stays in a table. The edges of a
    text are the network's own affair.
    """

    first = 0
    pad = 0
    unit = "tokens"

    def __init__(self, tokenizer: Characters) -> None:
        self.tokenizer = tokenizer
        self.table = WordTable(tokenizer)
        self._known: dict[str, list[int]] = {}  # the words of what stands between spaces

    def split(self, texts: Sequence[str]) -> list[list[int]]:
        """The words of each text, as `qkv.tasks.words` has them, at least one: of an empty text, the empty word."""
        return [self._split(text) or self.table.add([""]) for text in texts]

    def split_words(self, words: Sequence[str]) -> list[list[int]]:
        return [[number] for number in self.table.add(words)]

    def room(self, longest: int) -> int:
        return longest

    def at_once(self, budget: int) -> int:
        return budget

    def between(self, ids: Sequence[int]) -> list[int]:
        return list(ids)

    def read(self, numbers: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length characters"]:
        return self.table.rows(numbers)

    def anew(self) -> "WordSplitter":
        return WordSplitter(self.tokenizer)

    def _split(self, text: str) -> list[int]:
        """No word goes over a space: what stands between spaces is cut once, however often it comes."""
        found: list[int] = []
        for part in text.split():
            known = self._known.get(part)
            if known is None:
                known = self._known[part] = self.table.add(part[begin:end] for begin, end in split_words(part))
            found.extend(known)
        return found


class SentenceSplitter:
    """Cuts documents into sentences, of which a model reads the words: at most `longest`. A sentence that has more is
    read as several, of much the same length, so that no word is lost.

    Every sentence that is met gets a number, and its words are a row of a table; row 0 is no sentence.
    """

    first = 0
    pad = 0
    unit = "sentences"

    def __init__(self, tokenizer: Vocabulary | PretrainedTokenizer, longest: int) -> None:
        self.tokenizer = tokenizer
        self.longest = longest
        self._words = Splitter(tokenizer)
        self._rows = array("i", [PAD] * longest)
        self._tables: dict[torch.device, Int[Tensor, "sentences words"]] = {}

    def __len__(self) -> int:
        return len(self._rows) // self.longest

    def split(self, texts: Sequence[str]) -> list[list[int]]:
        """The sentences of each text, at least one."""
        cut = [split_sentences(text) or [""] for text in texts]
        words = iter(self._words.split([*chain.from_iterable(cut)]))
        return [self._add(islice(words, len(sentences))) for sentences in cut]

    def split_words(self, words: Sequence[str]) -> list[list[int]]:
        raise InputError("a model that reads documents by their sentences says nothing of single words")

    def room(self, longest: int) -> int:
        return longest

    def at_once(self, budget: int) -> int:
        return max(1, budget // self.longest)

    def between(self, ids: Sequence[int]) -> list[int]:
        return list(ids)

    def read(self, numbers: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length words"]:
        """The words of sentences. The table stays in its place until it grows, and a CUDA graph may look at it."""
        device = numbers.device
        if device not in self._tables:
            table = torch.from_numpy(np.array(self._rows).reshape(len(self), self.longest))
            self._tables[device] = table.to(device)
        words = self._tables[device][numbers].long()
        # No wider than the longest of them; what a GPU holds would have to be waited for to know how wide that is.
        return words[..., : max(1, int((words != PAD).sum(dim=-1).max()))] if device.type == "cpu" else words

    def anew(self) -> "SentenceSplitter":
        return SentenceSplitter(self.tokenizer, self.longest)

    def _add(self, sentences: Iterable[list[int]]) -> list[int]:
        first = len(self)
        for ids in sentences:
            for part in in_parts(ids, self.longest):
                words = [word or self._words.unknown for word in part]  # "[PAD]" in a text is no padding
                self._rows.extend([*words, *[PAD] * (self.longest - len(part))])
        self._tables = {}
        return [*range(first, len(self))]


def in_parts(words: Sequence[T], longest: int) -> list[Sequence[T]]:
    """As few parts as no more than `longest` in each allow, and all of much the same length."""
    count = -(-len(words) // longest)
    edges = [number * len(words) // count for number in range(count + 1)]
    return [words[begin:end] for begin, end in pairwise(edges)]


AnySplitter = Splitter | WordSplitter | SentenceSplitter


def splitter_for(tokenizer: Any, config: Any = None) -> AnySplitter:
    """What cuts texts for a model. One that reads the characters of words (its config knows how many) needs no
    vocabulary, whatever was learned; one that reads the words of sentences does.
    """
    characters, words = (getattr(config, name, None) for name in ("max_characters", "max_words"))
    if characters is not None:
        return WordSplitter(Characters(characters))
    return Splitter(tokenizer) if words is None else SentenceSplitter(tokenizer, words)


@dataclass(frozen=True)
class Piece:
    """What is read in one row: its tokens, edges and all, and for each of them, or for all, what is to be said."""

    ids: list[int]
    targets: list[int] | int  # of the first tokens, nothing is said of others; or of the whole text
    tree: Tree | None = None  # for models that read trees


@dataclass(frozen=True)
class TextBatch(TensorBatch):
    """Some texts of like length, filled up on the right."""

    tokens_read: Int[Tensor, "batch length"]  # by their numbers
    lengths: Int[Tensor, "batch"]
    targets: Int[Tensor, "batch *targets"]
    tokens: int  # of which something is to be said
    depth: Int[Tensor, "batch length"] | None = None  # in the trees of their sentences, for models that read trees,
    distance: Int[Tensor, "batch length length"] | None = None  # and how far tokens are from each other there

    @property
    def tree(self) -> TreePlaces | None:
        return None if self.depth is None or self.distance is None else TreePlaces(self.depth, self.distance)


def batched(pieces: Sequence[Piece], pad: int, rows: int = 0, width: int = 0) -> TextBatch:
    """Texts as one batch, of so many rows and places at least; nothing is said of a row that has no text."""
    width = max(width, *(len(piece.ids) for piece in pieces))
    nothing = Piece([pad], IGNORE if isinstance(pieces[0].targets, int) else [IGNORE])
    filled = [*pieces, *[nothing] * (rows - len(pieces))]
    targets = torch.tensor([_widened(piece.targets, width, IGNORE) for piece in filled])
    parsed = pieces[0].tree is not None
    places = tree_places([piece.tree or NOTHING for piece in filled], width) if parsed else None
    return TextBatch(
        torch.tensor([_widened(piece.ids, width, pad) for piece in filled]),
        torch.tensor([len(piece.ids) for piece in filled]),
        targets,
        int((targets != IGNORE).sum()),
        None if places is None else places.depth,
        None if places is None else places.distance,
    )


def _widened(row: list[int] | int, width: int, filling: int) -> list[int] | int:
    return row if isinstance(row, int) else row + [filling] * (width - len(row))


def batched_filled(pieces: Sequence[Piece], pad: int, budget: int, longest: int) -> TextBatch:
    """The same in the one shape that all batches of their width have, within the longest that is allowed."""
    width = min(round_up(max(len(piece.ids) for piece in pieces)), longest)
    return batched(pieces, pad, budget // width, width)


def epoch_of(pieces: Sequence[Piece], budget: int, seed: int, number: int) -> list[list[int]]:
    """The batches of an epoch, by the numbers of the pieces."""
    return shuffled_batches([len(piece.ids) for piece in pieces], budget, seed, number)


def in_batches(pieces: Sequence[Piece], budget: int, pad: int) -> Iterator[tuple[list[int], TextBatch]]:
    """All of them, those of like length together, each batch with the numbers of its pieces."""
    for rows in batch_by_length([len(piece.ids) for piece in pieces], budget):
        yield rows, batched([pieces[row] for row in rows], pad)
