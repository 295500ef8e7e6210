"""Next-sentence pairs: half follow, the others are strangers, nothing is too long, and a seed repeats it."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import InputError
from qkv.objectives.next_sentence import sentence_pairs

LONGEST = 40


def library(count: int = 300, seed: int = 0) -> list[list[list[int]]]:
    """Documents whose every token says where it stands: 1,000 times the document's number, and its place in it."""
    chance = Random(seed)
    found = []
    for number in range(count):
        places = iter(range(1, 1000))
        found.append(
            [[1000 * number + next(places) for _ in range(chance.randint(1, 12))] for _ in range(chance.randint(1, 20))]
        )
    return found


def test_half_of_them_follow():
    found = [pair.follows for seed in range(5) for pair in sentence_pairs(library(), LONGEST, Random(seed))]
    assert len(found) > 3000
    assert sum(found) / len(found) == pytest.approx(0.5, abs=4 * 0.5 / len(found) ** 0.5)


def test_what_follows_stands_next_in_the_document_and_what_does_not_in_another():
    for pair in sentence_pairs(library(), 10_000, Random(1)):  # nothing is cut off
        together = (*pair.first, *pair.second)
        assert pair.first[-1] - pair.first[0] == len(pair.first) - 1
        if pair.follows:
            assert together == tuple(range(together[0], together[0] + len(together)))
        else:
            assert pair.second[0] // 1000 != pair.first[0] // 1000


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5), min_size=2, max_size=6),
    st.integers(2, 12),
    st.integers(0, 99),
)
def test_no_pair_is_too_long_or_has_an_empty_side(documents, longest, seed):
    if sum(any(map(len, document)) for document in documents) < 2:
        return
    for pair in sentence_pairs(documents, longest, Random(seed)):
        assert pair.first
        assert pair.second
        assert len(pair.first) + len(pair.second) <= longest


def test_the_rest_of_a_document_is_used_where_a_stranger_took_its_place():
    documents = library()
    seen = {token for pair in sentence_pairs(documents, 10_000, Random(2)) for token in pair.first}
    strangers = [pair for pair in sentence_pairs(documents, 10_000, Random(2)) if not pair.follows]
    assert any(pair.first[-1] + 1 in seen for pair in strangers)


def test_a_seed_gives_the_same_again_and_another_does_not():
    runs = [list(sentence_pairs(library(), LONGEST, Random(seed))) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("documents", "longest", "words"),
    [
        ([[[1], [2]]], 8, "at least two are needed"),
        ([[[1], [2]], [[]], []], 8, "at least two are needed"),
        ([[[1], [2]], [[3]]], 1, "room for two tokens"),
    ],
)
def test_what_cannot_be_paired_is_refused_in_words(documents, longest, words):
    with pytest.raises(InputError, match=words):
        list(sentence_pairs(documents, longest, Random(0)))
