"""Sources whose dependency trees are known, as a translator that reads trees is given them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from qkv.attention import TreePositions
from qkv.data.batching import Batch, EncodedPair
from qkv.data.dropout import Seed
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import Tokens, Vocabulary
from qkv.errors import InputError
from qkv.tasks.trees import NOTHING, Parsed, Tree, tree_places
from qkv.types import Int, Tensor


class ParsedIds(NamedTuple):
    """The token numbers of a sentence, and the words that they are of."""

    ids: list[int]
    tree: Tree


@dataclass(frozen=True)
class ParsedTokens(Tokens):
    """The tokens of a sentence, and the words that they are of."""

    tree: Tree


@dataclass(frozen=True)
class ParsedPair(EncodedPair):
    """The token numbers of a pair, and the tree of its source."""

    tree: Tree


@dataclass(frozen=True)
class ParsedBatch(Batch):
    """Pairs, and where the tokens of their sources stand in trees."""

    depth: Int[Tensor, "batch source"]
    distance: Int[Tensor, "batch source source"]


def parsed_ids(
    vocabulary: Vocabulary | PretrainedTokenizer, sentences: Sequence[Parsed], *, dropout: float = 0.0, seed: Seed = 0
) -> list[ParsedIds]:
    """The tokens of many sentences, as `Vocabulary.encode_ids` gives them for their texts."""
    parts = [_parts(sentence) for sentence in sentences]
    each = iter(_learned(vocabulary).encode_ids([*chain.from_iterable(parts)], dropout=dropout, seed=seed))
    cut = [[*islice(each, len(words))] for words in parts]
    return [
        ParsedIds([*chain.from_iterable(words)], _tree(sentence, words))
        for sentence, words in zip(sentences, cut, strict=True)
    ]


def parsed_tokens(vocabulary: Vocabulary | PretrainedTokenizer, sentence: Parsed) -> ParsedTokens:
    """The tokens of a sentence, as `Vocabulary.encode` gives them for its text."""
    words = [_learned(vocabulary).encode(part) for part in _parts(sentence)]
    ids = [word.ids for word in words]
    pieces = tuple(chain.from_iterable(word.pieces for word in words))
    return ParsedTokens([*chain.from_iterable(ids)], pieces, _tree(sentence, ids))


def with_trees(batch: Batch, pairs: Sequence[EncodedPair]) -> Batch:
    """A batch of pairs, and their trees where they have some; a row that was filled up has none."""
    trees = [pair.tree for pair in pairs if isinstance(pair, ParsedPair)]
    if not trees:
        return batch
    rows, width = batch.source.shape
    places = tree_places([*trees, *[NOTHING] * (rows - len(trees))], width)
    return ParsedBatch(**batch.tensors, tokens=batch.tokens, depth=places.depth, distance=places.distance)


def told(batch: Batch) -> dict[str, TreePositions]:
    """What a model is told of a batch besides tokens, by the names that it has for it."""
    return {"tree": TreePositions(batch.depth, batch.distance)} if isinstance(batch, ParsedBatch) else {}


def _parts(sentence: Parsed) -> list[str]:
    """The words of a sentence, each with the blank before it.

    No vocabulary that is learned here has a token of more than one: together, they are cut into the tokens of the text.
    """
    return [f" {word}" if number else word for number, word in enumerate(sentence.words)]


def _tree(sentence: Parsed, words: Sequence[Sequence[int]]) -> Tree:
    """The tree of a sentence that was cut into the tokens of its words."""
    return Tree(sentence.heads, [number for number, ids in enumerate(words, start=1) for _ in ids])


def _learned(vocabulary: Vocabulary | PretrainedTokenizer) -> Vocabulary:
    if not isinstance(vocabulary, Vocabulary):
        raise InputError(
            "a model that reads dependency trees (model.tree) needs a vocabulary that was learned here: the tokens of "
            "a released one may be of more than one word"
        )
    return vocabulary
