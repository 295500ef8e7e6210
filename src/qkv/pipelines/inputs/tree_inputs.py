"""Dependency trees of sentences, and the tree positions of their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

import torch

from qkv.attention import TreePositions, Trees
from qkv.datasets.batching import EncodedPair, PairBatch
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.tokenizers import Encoding, Tokenizer
from qkv.tokenizers.tokenizer import Seed
from qkv.types import Int, Tensor


@dataclass(frozen=True)
class DependencyTree:
    """The dependency tree of a sentence, and the word that each token of an example belongs to."""

    heads: tuple[int, ...]  # of all words of the sentence, of which an example may hold a part
    words: list[int]  # of each token, from 1; 0 for special tokens, which belong to no word


MAX_WORDS = 2000  # per sentence; the longest real ones have a few hundred
EMPTY_TREE = DependencyTree((), [])  # of a padding row


def reads_trees(config: Any) -> bool:
    """Whether a model with this config needs dependency trees."""
    return getattr(config, "tree", "none") != "none"


class ParsedSentence(NamedTuple):
    """The words of a sentence and their heads."""

    words: tuple[str, ...]
    heads: tuple[int, ...]


def require_heads(sentence: str | Tagged, name: str) -> ParsedSentence:
    """Return the words and heads of a sentence, or raise an error that starts with `name` if it has no heads."""
    if isinstance(sentence, str) or sentence.heads is None or len(sentence.heads) != len(sentence.words):
        raise InputError(
            f"{name} has no head for each of its words, and the model reads dependency trees (model.tree): pass "
            "sentences in CoNLL-U (*.conllu), or use a model without trees"
        )
    if len(sentence.words) > MAX_WORDS:
        raise InputError(
            f"{name} has {len(sentence.words):,} words; pairwise tree distances are limited to sentences of "
            f"at most {MAX_WORDS:,}"
        )
    return ParsedSentence(sentence.words, sentence.heads)


def tree_positions(trees: Sequence[DependencyTree], width: int) -> TreePositions:
    """Tree positions of the tokens of a batch, padded to `width`.

    Computed here once and not in the model, because validating the trees reads values, which would synchronize with
    the GPU.
    """
    max_words = max(len(tree.heads) for tree in trees)
    heads = torch.tensor([[*tree.heads, *[0] * (max_words - len(tree.heads))] for tree in trees], dtype=torch.long)
    words = torch.tensor([tree.words + [0] * (width - len(tree.words)) for tree in trees])
    lengths = torch.tensor([len(tree.heads) for tree in trees])
    return TreePositions.from_tokens(Trees.from_heads(heads, lengths), words)


@dataclass(frozen=True)
class ParsedPair(EncodedPair):
    """Token ids of a pair, and the tree of its source."""

    tree: DependencyTree


@dataclass(frozen=True)
class ParsedBatch(PairBatch):
    """Pairs, and the tree positions of their source tokens."""

    depth: Int[Tensor, "batch source"]
    distance: Int[Tensor, "batch source source"]


@dataclass(frozen=True)
class WordPair(EncodedPair):
    """Token ids of a pair, and the first token of each source word, for models with a source pointer."""

    word_starts: Sequence[int]


@dataclass(frozen=True)
class WordBatch(PairBatch):
    """Pairs, and the positions of their source words; after the last word, that of the last token."""

    word_starts: Int[Tensor, "batch words"]


def parsed_ids(
    tokenizer: Tokenizer, sentences: Sequence[ParsedSentence], *, dropout: float = 0.0, seed: Seed = 0
) -> list[tuple[list[int], DependencyTree]]:
    """Token ids and trees of sentences; the ids equal `tokenizer.encode` of their texts."""
    parts = [_parts(tokenizer, sentence) for sentence in sentences]
    encoded = iter(tokenizer.encode([*chain.from_iterable(parts)], dropout=dropout, seed=seed))
    words_of = [[*islice(encoded, len(words))] for words in parts]
    return [
        ([*chain.from_iterable(words)], _tree(sentence, words))
        for sentence, words in zip(sentences, words_of, strict=True)
    ]


def parsed_encoding(tokenizer: Tokenizer, sentence: ParsedSentence) -> tuple[Encoding, DependencyTree]:
    """Tokens and tree of a sentence; the tokens equal `tokenizer.encode_with_offsets` of its text."""
    parts = _parts(tokenizer, sentence)
    words = tokenizer.encode_with_offsets(parts)
    encoding = Encoding(
        [*chain.from_iterable(word.ids for word in words)],
        [
            (begin + start, begin + end)
            for word, begin in zip(words, accumulate(map(len, parts), initial=0), strict=False)
            for start, end in word.offsets
        ],
        tuple(chain.from_iterable(word.pieces for word in words)),
    )
    return encoding, _tree(sentence, [word.ids for word in words])


def with_trees(batch: PairBatch, pairs: Sequence[EncodedPair]) -> PairBatch:
    """Add the trees of the pairs, or the positions of their words, to a batch; padding rows have none."""
    if any(isinstance(pair, WordPair) for pair in pairs):
        return WordBatch(**batch.tensors, tokens=batch.tokens, word_starts=_word_starts(batch, pairs))
    trees = [pair.tree for pair in pairs if isinstance(pair, ParsedPair)]
    if not trees:
        return batch
    rows, width = batch.source.shape
    positions = tree_positions([*trees, *[EMPTY_TREE] * (rows - len(trees))], width)
    return ParsedBatch(**batch.tensors, tokens=batch.tokens, depth=positions.depth, distance=positions.distance)


def tree_arguments(batch: PairBatch) -> dict[str, Any]:
    """Keyword arguments of the model other than the tokens: the tree positions, or those of the words, if any."""
    if isinstance(batch, WordBatch):
        return {"word_starts": batch.word_starts}
    return {"tree": TreePositions(batch.depth, batch.distance)} if isinstance(batch, ParsedBatch) else {}


def word_starts(tree: DependencyTree) -> list[int]:
    """Return the first token of each word of a sentence."""
    return [index for index, word in enumerate(tree.words) if not index or word != tree.words[index - 1]]


def _word_starts(batch: PairBatch, pairs: Sequence[EncodedPair]) -> Int[Tensor, "batch words"]:
    rows, width = batch.source.shape
    last = (batch.source_lengths - 1)[:, None].expand(rows, width + 1).clone()
    for row, pair in enumerate(pairs):
        if isinstance(pair, WordPair):
            last[row, : len(pair.word_starts)] = torch.tensor(pair.word_starts)
    return last


def _parts(tokenizer: Tokenizer, sentence: ParsedSentence) -> list[str]:
    """The words of a sentence, each with the space before it: encoding them separately equals encoding the text."""
    if not tokenizer.encodes_words_separately:
        raise InputError(
            "a model with dependency trees (model.tree) requires a tokenizer trained by qkv: a token of a released one "
            "can span several words"
        )
    return [f" {word}" if number else word for number, word in enumerate(sentence.words)]


def _tree(sentence: ParsedSentence, words: Sequence[Sequence[int]]) -> DependencyTree:
    """The tree of a sentence whose words were encoded one by one."""
    return DependencyTree(sentence.heads, [number for number, ids in enumerate(words, start=1) for _ in ids])
