"""Source sentences with dependency trees, for translation models with tree positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from qkv.attention import TreePositions
from qkv.datasets.batching import Batch, EncodedPair
from qkv.errors import InputError
from qkv.pipelines.tree_inputs import EMPTY_TREE, ParsedSentence, Tree, tree_positions
from qkv.tokenizers.bpe_dropout import Seed
from qkv.tokenizers.tokenizer import PretrainedTokenizer
from qkv.tokenizers.vocabulary import Tokens, Vocabulary
from qkv.types import Int, Tensor


class ParsedIds(NamedTuple):
    """Token ids of a sentence, and the word each belongs to."""

    ids: list[int]
    tree: Tree


@dataclass(frozen=True)
class ParsedTokens(Tokens):
    """Tokens of a sentence, and the word each belongs to."""

    tree: Tree


@dataclass(frozen=True)
class ParsedPair(EncodedPair):
    """Token ids of a pair, and the tree of its source."""

    tree: Tree


@dataclass(frozen=True)
class ParsedBatch(Batch):
    """Pairs, and the tree positions of their source tokens."""

    depth: Int[Tensor, "batch source"]
    distance: Int[Tensor, "batch source source"]


def parsed_ids(
    vocabulary: Vocabulary | PretrainedTokenizer,
    sentences: Sequence[ParsedSentence],
    *,
    dropout: float = 0.0,
    seed: Seed = 0,
) -> list[ParsedIds]:
    """Token ids of sentences, equal to `Vocabulary.encode_ids` of their texts."""
    parts = [_parts(sentence) for sentence in sentences]
    encoded = iter(_require_learned(vocabulary).encode_ids([*chain.from_iterable(parts)], dropout=dropout, seed=seed))
    words_of = [[*islice(encoded, len(words))] for words in parts]
    return [
        ParsedIds([*chain.from_iterable(words)], _tree(sentence, words))
        for sentence, words in zip(sentences, words_of, strict=True)
    ]


def parsed_tokens(vocabulary: Vocabulary | PretrainedTokenizer, sentence: ParsedSentence) -> ParsedTokens:
    """Tokens of a sentence, equal to `Vocabulary.encode` of its text."""
    words = [_require_learned(vocabulary).encode(part) for part in _parts(sentence)]
    ids = [word.ids for word in words]
    pieces = tuple(chain.from_iterable(word.pieces for word in words))
    return ParsedTokens([*chain.from_iterable(ids)], pieces, _tree(sentence, ids))


def with_trees(batch: Batch, pairs: Sequence[EncodedPair]) -> Batch:
    """Add the trees of the pairs to a batch, if they have any; padding rows have none."""
    trees = [pair.tree for pair in pairs if isinstance(pair, ParsedPair)]
    if not trees:
        return batch
    rows, width = batch.source.shape
    positions = tree_positions([*trees, *[EMPTY_TREE] * (rows - len(trees))], width)
    return ParsedBatch(**batch.tensors, tokens=batch.tokens, depth=positions.depth, distance=positions.distance)


def tree_inputs(batch: Batch) -> dict[str, TreePositions]:
    """Keyword arguments of the model other than the tokens: the tree positions, if any."""
    return {"tree": TreePositions(batch.depth, batch.distance)} if isinstance(batch, ParsedBatch) else {}


def _parts(sentence: ParsedSentence) -> list[str]:
    """The words of a sentence, each with the space before it.

    Tokens of a learned vocabulary never span two words, so encoding word by word equals encoding the whole text.
    """
    return [f" {word}" if number else word for number, word in enumerate(sentence.words)]


def _tree(sentence: ParsedSentence, words: Sequence[Sequence[int]]) -> Tree:
    """The tree of a sentence whose words were encoded one by one."""
    return Tree(sentence.heads, [number for number, ids in enumerate(words, start=1) for _ in ids])


def _require_learned(vocabulary: Vocabulary | PretrainedTokenizer) -> Vocabulary:
    if not isinstance(vocabulary, Vocabulary):
        raise InputError(
            "a model with dependency trees (model.tree) needs a learned vocabulary: tokens of a released one can span "
            "several words"
        )
    return vocabulary
