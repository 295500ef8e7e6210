"""Inputs of text encoders: tokenized texts, padded into batches of similar length."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from qkv.attention import TreePositions
from qkv.config import require
from qkv.datasets.batching import BatchSize, batch_by_length, round_up
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.pipelines.inputs.tree_inputs import EMPTY_TREE, DependencyTree, tree_positions
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.characters import CharacterIds, WordTable
from qkv.tokenizers.sentences import split_sentences
from qkv.tokenizers.words import split_words
from qkv.types import Int, Tensor

T = TypeVar("T")
IGNORE = -1  # target of tokens that do not count in the loss
PAD = 0  # word id of the padding of a sentence
WIDTH = 8  # widths of batches in inference are multiples of this
MAX_BATCH_SIZE = 2**30
MAX_BATCH_TOKENS = 8192  # per batch, including padding, if no batch size is given


@dataclass(frozen=True)
class ExampleEncoder:
    """Encodes texts as token ids."""

    tokenizer: Tokenizer

    first_position: ClassVar[int] = 1  # index of a text's first token, after the begin token
    unit: ClassVar[str] = "tokens"  # what texts are split into

    @cached_property
    def special_tokens(self) -> tuple[int, int]:
        """Ids of the tokens before and after every text."""
        cls, sep = self.tokenizer.special_tokens.cls, self.tokenizer.special_tokens.sep
        if cls is None or sep is None:
            raise InputError("the tokenizer has no begin and end tokens ([CLS] and [SEP])")
        return cls, sep

    @cached_property
    def pad(self) -> int:
        return self.tokenizer.special_tokens.pad or 0

    @cached_property
    def unk(self) -> int:
        return self.tokenizer.special_tokens.unk or 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, at least one: a text that encodes to nothing becomes the unknown token."""
        return [ids or [self.unk] for ids in self.tokenizer.encode(texts)]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Token ids of each word, at least one."""
        return self.encode(words)

    def max_tokens(self, max_length: int) -> int:
        """Maximum number of tokens of a text, without special tokens, for a model with this `max_length`."""
        if max_length < 3:
            raise InputError(f"model.max_length = {max_length} leaves no token for a text between [CLS] and [SEP]")
        return max_length - 2

    def max_batch(self, batch_size: BatchSize) -> BatchSize:
        """Size of a batch in the units of the examples' lengths."""
        return batch_size

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        begin, end = self.special_tokens
        return [begin, *ids, end]

    def lookup(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length *characters"]:
        """Return the model's input for token ids: the ids themselves."""
        return ids

    def fresh_copy(self) -> "ExampleEncoder":
        """Return an encoder of the same kind with empty tables."""
        return self


class TableEncoder:
    """An encoder whose ids are rows of a table, row 0 padding; the model itself adds the boundaries of a text."""

    first_position = 0
    pad = 0

    def max_tokens(self, max_length: int) -> int:
        return max_length

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        return list(ids)


class WordExampleEncoder(TableEncoder):
    """Encodes texts as words, whose characters are the model's input.

    There are no unknown words: each new word gets an id and a row in a table.
    """

    unit = "tokens"
    tokenizer = None  # the characters of a word are its bytes

    def __init__(self, max_characters: int) -> None:
        self.table = WordTable(CharacterIds(max_characters))
        self._cache: dict[str, list[int]] = {}  # word ids of each whitespace-separated chunk

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Word ids of each text, split by `qkv.tokenizers.words`; an empty text becomes the empty word."""
        return [self._encode(text) or self.table.add([""]) for text in texts]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return [[number] for number in self.table.add(words)]

    def max_batch(self, batch_size: BatchSize) -> BatchSize:
        return batch_size

    def lookup(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length characters"]:
        return self.table.rows(ids)

    def fresh_copy(self) -> "WordExampleEncoder":
        return WordExampleEncoder(self.table.characters.max_characters)

    def _encode(self, text: str) -> list[int]:
        """Split each whitespace-separated chunk once: no word crosses a space."""
        words: list[int] = []
        for chunk in text.split():
            ids = self._cache.get(chunk)
            if ids is None:
                ids = self._cache[chunk] = self.table.add(chunk[begin:end] for begin, end in split_words(chunk))
            words.extend(ids)
        return words


class SentenceExampleEncoder(TableEncoder):
    """Encodes documents as sentences of at most `max_words` tokens, which are the model's input.

    A longer sentence is split into several of about the same length, so that no word is lost. Each sentence gets an id
    and a row of word ids in a table.
    """

    unit = "sentences"

    def __init__(self, tokenizer: Tokenizer, max_words: int) -> None:
        self.tokenizer = tokenizer
        self.max_words = max_words
        self._words = ExampleEncoder(tokenizer)
        self._rows = array("i", [PAD] * max_words)
        self._tables: dict[torch.device, Int[Tensor, "sentences words"]] = {}

    def __len__(self) -> int:
        return len(self._rows) // self.max_words

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Sentence ids of each text, at least one."""
        documents = [split_sentences(text) or [""] for text in texts]
        words = iter(self._words.encode([*chain.from_iterable(documents)]))
        return [self._add(islice(words, len(sentences))) for sentences in documents]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        raise InputError("a hierarchical model of sentences cannot label single words")

    def max_batch(self, batch_size: BatchSize) -> BatchSize:
        if batch_size.by == "examples":
            return batch_size
        return replace(batch_size, size=max(1, batch_size.size // self.max_words))

    def lookup(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length words"]:
        """Word ids of sentences. The table is reused until it grows, so that CUDA graphs can refer to it."""
        device = ids.device
        if device not in self._tables:
            table = torch.from_numpy(np.array(self._rows).reshape(len(self), self.max_words))
            self._tables[device] = table.to(device)
        words = self._tables[device][ids].long()
        # Trim to the longest sentence on the CPU only: on a GPU it would need a synchronization.
        return words[..., : max(1, int((words != PAD).sum(dim=-1).max()))] if device.type == "cpu" else words

    def fresh_copy(self) -> "SentenceExampleEncoder":
        return SentenceExampleEncoder(self.tokenizer, self.max_words)

    def _add(self, sentences: Iterable[list[int]]) -> list[int]:
        first = len(self)
        for ids in sentences:
            for part in split_evenly(ids, self.max_words):
                words = [word or self._words.unk for word in part]  # "[PAD]" in a text is not padding
                self._rows.extend([*words, *[PAD] * (self.max_words - len(part))])
        self._tables = {}
        return [*range(first, len(self))]


def split_evenly(words: Sequence[T], max_length: int) -> list[Sequence[T]]:
    """Split into the fewest parts of at most `max_length` items, all of about the same length."""
    count = -(-len(words) // max_length)
    bounds = [number * len(words) // count for number in range(count + 1)]
    return [words[begin:end] for begin, end in pairwise(bounds)]


AnyExampleEncoder = ExampleEncoder | WordExampleEncoder | SentenceExampleEncoder


def build_example_encoder(tokenizer: Tokenizer | None, config: Any = None) -> AnyExampleEncoder:
    """Return the example encoder for a model.

    Character-level models (`max_characters` in the config) take words and need no tokenizer, hierarchical ones
    (`max_words`) sentences, and all others tokens.
    """
    max_characters, max_words = (getattr(config, name, None) for name in ("max_characters", "max_words"))
    if max_characters is not None:
        return WordExampleEncoder(max_characters)
    if tokenizer is None:
        raise InputError("no tokenizer was found next to the weights; pass one")
    return ExampleEncoder(tokenizer) if max_words is None else SentenceExampleEncoder(tokenizer, max_words)


@dataclass(frozen=True)
class Example:
    """One row of a batch: token ids with special tokens, and a target per token or for the whole text."""

    ids: list[int]
    targets: list[int] | int  # of the first tokens, the rest are ignored; or of the whole text
    tree: DependencyTree | None = None  # for models with tree positions


@dataclass(frozen=True)
class TextBatch(TensorBatch):
    """Texts of similar length, padded on the right."""

    token_ids: Int[Tensor, "batch length"]
    lengths: Int[Tensor, "batch"]
    targets: Int[Tensor, "batch *targets"]
    tokens: int  # number of targets
    depth: Int[Tensor, "batch length"] | None = None  # of each token in its dependency tree
    distance: Int[Tensor, "batch length length"] | None = None  # between tokens in the tree

    def count_tokens(self) -> int:
        return int((self.targets != IGNORE).sum())

    @property
    def tree(self) -> TreePositions | None:
        return None if self.depth is None or self.distance is None else TreePositions(self.depth, self.distance)


def collate(examples: Sequence[Example], pad: int, rows: int = 0, width: int = 0) -> TextBatch:
    """Collate examples into a batch of at least `rows` x `width`; empty rows have no targets."""
    width = max(width, *(len(example.ids) for example in examples))
    empty = Example([pad], IGNORE if isinstance(examples[0].targets, int) else [IGNORE])
    padded = [*examples, *[empty] * (rows - len(examples))]
    targets = torch.tensor([_pad_row(example.targets, width, IGNORE) for example in padded])
    has_trees = examples[0].tree is not None
    positions = tree_positions([example.tree or EMPTY_TREE for example in padded], width) if has_trees else None
    return TextBatch(
        torch.tensor([_pad_row(example.ids, width, pad) for example in padded]),
        torch.tensor([len(example.ids) for example in padded]),
        targets,
        int((targets != IGNORE).sum()),
        None if positions is None else positions.depth,
        None if positions is None else positions.distance,
    )


def _pad_row(row: list[int] | int, width: int, fill: int) -> list[int] | int:
    return row if isinstance(row, int) else row + [fill] * (width - len(row))


def collate_padded(examples: Sequence[Example], pad: int, batch_size: BatchSize, max_length: int) -> TextBatch:
    """Collate into the one shape that all batches of this width share, at most `max_length` wide."""
    width = min(round_up(max(len(example.ids) for example in examples)), max_length)
    return collate(examples, pad, batch_size.rows(width), width)


def iter_batches(examples: Sequence[Example], batch_size: BatchSize, pad: int) -> Iterator[tuple[list[int], TextBatch]]:
    """Yield all examples in batches of similar length, each with the indices of its examples."""
    for rows in batch_by_length([len(example.ids) for example in examples], batch_size):
        yield rows, collate([examples[row] for row in rows], pad)


def inference_batches(
    examples: Sequence[Example], batch_size: BatchSize, encoder: AnyExampleEncoder, max_length: int
) -> Iterator[tuple[list[int], TextBatch]]:
    """Yield all examples in batches, each with the indices of its examples.

    The tokens of a batch have one width, which depends on their own number only: it is rounded up to a multiple of 8,
    at most `max_length`. PyTorch's products on CPUs then round each row of a Transformer in the same way, so that a
    result does not depend on the other examples of its batch. Words and sentences are batched by similar length.
    """
    if not isinstance(encoder, ExampleEncoder):
        yield from iter_batches(examples, batch_size, encoder.pad)
        return
    for width, rows in batches_of_one_width([len(example.ids) for example in examples], batch_size, max_length):
        yield rows, collate([examples[row] for row in rows], encoder.pad, width=width)


def batches_of_one_width(
    lengths: Sequence[int], batch_size: BatchSize, max_length: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield (width, indices of examples) of batches; see `inference_batches`."""
    by_width: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_width.setdefault(max(length, min(round_up(length, WIDTH), max_length)), []).append(index)
    for width, indices in sorted(by_width.items()):
        for rows in batch_by_length([width] * len(indices), batch_size):
            yield width, [indices[row] for row in rows]


def inference_batch_size(batch_size: int | None, max_tokens: int = MAX_BATCH_TOKENS) -> BatchSize:
    """Return batches of `batch_size` inputs, or of up to `max_tokens` tokens if it is None."""
    if batch_size is None:
        return BatchSize(max(1, max_tokens))
    require(1 <= batch_size <= MAX_BATCH_SIZE, f"batch_size must be from 1 to {MAX_BATCH_SIZE:,}, not {batch_size}")
    return BatchSize(batch_size, by="examples")
