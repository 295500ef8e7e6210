"""BPE-dropout: between characters and whole subwords, drawn as the paper says, and the same for the same seed."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.vocabulary import UNKNOWN, Vocabulary
from qkv.errors import InputError

TEXTS = ["the cat sat on the mat with the hat", "that is what the cats at the theatre ate", "a<s>b Café ☃"] * 5
VOCABULARY = Vocabulary.train(TEXTS, "bpe:60")
MERGES = {tuple(merge): rank for rank, merge in enumerate(json.loads(VOCABULARY.to_json())["model"]["merges"])}
NO_DROPOUT = 1e-30  # taken by the same path, but nothing is ever left out


def ways(tokens: tuple[str, ...], dropout: float) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every way that a word may be cut, with its probability: all sets of merges that may be left out, in each step."""
    places = [place for place in range(len(tokens) - 1) if tokens[place : place + 2] in MERGES]
    for kept_count in range(len(places) + 1):
        for kept in combinations(places, kept_count):
            chance = (1 - dropout) ** len(kept) * dropout ** (len(places) - len(kept))
            if not kept:
                yield tokens, chance
                continue
            best = min(kept, key=lambda place: (MERGES[tokens[place : place + 2]], place))
            merged = (*tokens[:best], tokens[best] + tokens[best + 1], *tokens[best + 2 :])
            for cut, further in ways(merged, dropout):
                yield cut, chance * further


@given(st.lists(st.text(st.sampled_from("theca smo<>☃漢é\u0301\t▁"), max_size=25), max_size=6))
def test_without_dropout_the_tokens_are_those_of_the_library(texts: list[str]) -> None:
    assert VOCABULARY.encode_ids(texts, dropout=NO_DROPOUT) == VOCABULARY.encode_ids(texts)


@given(
    st.lists(st.text(st.sampled_from("theca smo<>☃漢é\t"), max_size=25), max_size=6),
    st.floats(0.01, 1),
    st.integers(0, 9),
)
def test_whatever_is_left_out_the_text_stays_the_same(texts: list[str], dropout: float, seed: int) -> None:
    for plain, cut in zip(
        VOCABULARY.encode_ids(texts), VOCABULARY.encode_ids(texts, dropout=dropout, seed=seed), strict=True
    ):
        assert VOCABULARY.decode(cut) == VOCABULARY.decode(plain)
        assert len(cut) >= len(plain)


def test_with_full_dropout_a_word_stays_in_characters() -> None:
    (cut,) = VOCABULARY.encode_ids(["the cat"], dropout=1.0)
    assert [VOCABULARY.piece(number) for number in cut] == [" ", *"the", " ", *"cat"]


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_each_way_to_cut_a_word_is_as_likely_as_the_paper_says(dropout: float) -> None:
    draws = 20_000
    expected: Counter[tuple[str, ...]] = Counter()
    for cut, chance in ways(tuple("▁that"), dropout):
        expected[cut] += chance
    assert sum(expected.values()) == pytest.approx(1)
    assert len(expected) > 5
    drawn = VOCABULARY.encode_ids(["that"] * draws, dropout=dropout, seed=3)
    seen = Counter(tuple(VOCABULARY.tokenizer.id_to_token(number) for number in ids) for ids in drawn)
    assert set(seen) <= set(expected)
    chi_square = sum((seen[cut] - draws * chance) ** 2 / (draws * chance) for cut, chance in expected.items())
    assert chi_square < 3 * len(expected)  # its mean is the number of ways less one


def test_the_same_seed_gives_the_same_tokens_and_another_gives_others() -> None:
    texts = random.Random(0).choices(TEXTS, k=50)
    drawn = [VOCABULARY.encode_ids(texts, dropout=0.3, seed=seed) for seed in (1, 1, 2, (1, 7), (1, 7), (1, 8))]
    assert drawn[0] == drawn[1]
    assert drawn[3] == drawn[4]
    assert len({str(tokens) for tokens in drawn}) == 4
    fresh = Vocabulary.from_json(VOCABULARY.to_json(), "here")  # which has met no word yet
    assert fresh.encode_ids(texts, dropout=0.3, seed=1) == drawn[0]


def test_equal_texts_are_cut_each_in_its_own_way() -> None:
    drawn = VOCABULARY.encode_ids(["the cat sat on the mat"] * 20, dropout=0.5)
    assert len({tuple(ids) for ids in drawn}) > 10


def test_no_texts_and_empty_texts_have_no_tokens() -> None:
    assert VOCABULARY.encode_ids([], dropout=0.5) == []
    assert VOCABULARY.encode_ids(["", "a", ""], dropout=0.5)[::2] == [[], []]
    assert VOCABULARY.encode_ids([""], dropout=0.5) == [[]]


def test_what_was_never_seen_is_one_unknown_token_and_takes_no_part() -> None:
    (cut,) = VOCABULARY.encode_ids(["漢字cat漢"], dropout=1.0)
    assert [number == UNKNOWN for number in cut] == [False, True, False, False, False, True]


@pytest.mark.parametrize("kind", ["char", "word"])
def test_only_subwords_can_be_cut_otherwise(kind: str) -> None:
    vocabulary = Vocabulary.train(TEXTS, kind)
    assert vocabulary.encode_ids(["the cat"], dropout=0.0) == vocabulary.encode_ids(["the cat"])
    with pytest.raises(InputError, match="needs a bpe vocabulary"):
        vocabulary.encode_ids(["the cat"], dropout=0.1)


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan")])
def test_a_dropout_that_is_no_probability_is_refused(dropout: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        VOCABULARY.encode_ids(["the cat"], dropout=dropout)
