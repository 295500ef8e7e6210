"""Tests of BPE-dropout: segmentation probabilities and reproducibility."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import InputError
from qkv.tokenizers import BPETokenizer, CharTokenizer, WordPieceTokenizer, WordTokenizer
from qkv.tokenizers.trained import UNK

TEXTS = ["the cat sat on the mat with the hat", "that is what the cats at the theatre ate", "a<s>b Café ☃"] * 5
TOKENIZER = BPETokenizer.train(TEXTS, vocab_size=60)
MERGES = {tuple(merge): rank for rank, merge in enumerate(json.loads(TOKENIZER.to_json())["model"]["merges"])}
NO_DROPOUT = 1e-30  # taken by the same path, but nothing is ever left out


def ways(tokens: tuple[str, ...], dropout: float) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield every segmentation of a word with its probability, over all sets of dropped merges in each step."""
    positions = [position for position in range(len(tokens) - 1) if tokens[position : position + 2] in MERGES]
    for kept_count in range(len(positions) + 1):
        for kept in combinations(positions, kept_count):
            probability = (1 - dropout) ** len(kept) * dropout ** (len(positions) - len(kept))
            if not kept:
                yield tokens, probability
                continue
            best = min(kept, key=lambda position: (MERGES[tokens[position : position + 2]], position))
            merged = (*tokens[:best], tokens[best] + tokens[best + 1], *tokens[best + 2 :])
            for cut, further in ways(merged, dropout):
                yield cut, probability * further


@given(st.lists(st.text(st.sampled_from("theca smo<>☃漢é\u0301\t▁"), max_size=25), max_size=6))
def test_without_dropout_the_tokens_equal_those_of_the_library(texts: list[str]) -> None:
    assert TOKENIZER.encode(texts, dropout=NO_DROPOUT) == TOKENIZER.encode(texts)


@given(
    st.lists(st.text(st.sampled_from("theca smo<>☃漢é\t"), max_size=25), max_size=6),
    st.floats(0.01, 1),
    st.integers(0, 9),
)
def test_dropout_preserves_the_text(texts: list[str], dropout: float, seed: int) -> None:
    for plain, cut in zip(TOKENIZER.encode(texts), TOKENIZER.encode(texts, dropout=dropout, seed=seed), strict=True):
        assert TOKENIZER.decode(cut) == TOKENIZER.decode(plain)
        assert len(cut) >= len(plain)


def test_with_full_dropout_words_are_split_into_characters() -> None:
    (cut,) = TOKENIZER.encode(["the cat"], dropout=1.0)
    assert [TOKENIZER.piece(number) for number in cut] == [" ", *"the", " ", *"cat"]


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_segmentations_have_the_probabilities_of_the_paper(dropout: float) -> None:
    draws = 20_000
    expected: Counter[tuple[str, ...]] = Counter()
    for cut, probability in ways(tuple("▁that"), dropout):
        expected[cut] += probability
    assert sum(expected.values()) == pytest.approx(1)
    assert len(expected) > 5
    drawn = TOKENIZER.encode(["that"] * draws, dropout=dropout, seed=3)
    seen = Counter(tuple(TOKENIZER.id_to_token(number) for number in ids) for ids in drawn)
    assert set(seen) <= set(expected)
    chi_square = sum(
        (seen[cut] - draws * probability) ** 2 / (draws * probability) for cut, probability in expected.items()
    )
    assert chi_square < 3 * len(expected)  # its mean is the number of ways less one


def test_tokens_depend_on_the_seed_only() -> None:
    texts = random.Random(0).choices(TEXTS, k=50)
    drawn = [TOKENIZER.encode(texts, dropout=0.3, seed=seed) for seed in (1, 1, 2, (1, 7), (1, 7), (1, 8))]
    assert drawn[0] == drawn[1]
    assert drawn[3] == drawn[4]
    assert len({str(tokens) for tokens in drawn}) == 4
    fresh = BPETokenizer.from_json(TOKENIZER.to_json(), "here")  # which has met no word yet
    assert fresh.encode(texts, dropout=0.3, seed=1) == drawn[0]


def test_equal_texts_are_segmented_independently() -> None:
    drawn = TOKENIZER.encode(["the cat sat on the mat"] * 20, dropout=0.5)
    assert len({tuple(ids) for ids in drawn}) > 10


def test_no_texts_and_empty_texts_have_no_tokens() -> None:
    assert TOKENIZER.encode([], dropout=0.5) == []
    assert TOKENIZER.encode(["", "a", ""], dropout=0.5)[::2] == [[], []]
    assert TOKENIZER.encode([""], dropout=0.5) == [[]]


def test_unseen_characters_are_one_unknown_token_and_never_merge() -> None:
    (cut,) = TOKENIZER.encode(["漢字cat漢"], dropout=1.0)
    assert [number == UNK for number in cut] == [False, True, False, False, False, True]


@pytest.mark.parametrize("cls", [CharTokenizer, WordTokenizer, WordPieceTokenizer])
def test_dropout_requires_a_bpe_tokenizer(cls: type[Any]) -> None:
    tokenizer = cls.train(TEXTS)
    assert tokenizer.encode(["the cat"], dropout=0.0) == tokenizer.encode(["the cat"])
    with pytest.raises(InputError, match="BPE"):
        tokenizer.encode(["the cat"], dropout=0.1)


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan")])
def test_dropout_must_be_a_probability(dropout: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        TOKENIZER.encode(["the cat"], dropout=dropout)
