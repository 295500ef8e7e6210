"""Next-sentence pairs: half follow, the others are strangers, nothing is too long, and a seed repeats it."""

from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import InputError
from qkv.objectives.next_sentence import sentence_pairs

LONGEST = 40


def library(count: int = 300, seed: int = 0) -> list[list[int]]:
    """Documents of up to twenty sentences, one after the other, with a gap between them that no passage may reach."""
    chance, found, at = Random(seed), [], 0
    for _ in range(count):
        lengths = [chance.randint(1, 12) for _ in range(chance.randint(1, 20))]
        found.append(list(accumulate(lengths, initial=at)))
        at = found[-1][-1] + 1
    return found


def document_of(documents: list[list[int]], passage: range) -> int:
    """The number of the document in which a passage stands, all of it."""
    (number,) = [n for n, one in enumerate(documents) if one[0] <= passage.start and passage.stop <= one[-1]]
    return number


def test_half_of_them_follow():
    found = [pair.follows for seed in range(5) for pair in sentence_pairs(library(), LONGEST, Random(seed))]
    assert len(found) > 3000
    assert sum(found) / len(found) == pytest.approx(0.5, abs=4 * 0.5 / len(found) ** 0.5)


def test_what_follows_stands_next_in_the_document_and_what_does_not_in_another():
    documents = library(60)
    starts = {place for document in documents for place in document}
    for pair in sentence_pairs(documents, 10_000, Random(1)):  # nothing is cut off
        assert {pair.first.start, pair.first.stop, pair.second.start, pair.second.stop} <= starts
        same = document_of(documents, pair.first) == document_of(documents, pair.second)
        assert same == pair.follows
        assert not pair.follows or pair.second.start == pair.first.stop


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 6), max_size=5), min_size=2, max_size=6), st.integers(2, 12), st.integers(0, 99)
)
def test_no_pair_is_too_long_or_has_an_empty_side_or_leaves_its_document(lengths, longest, seed):
    documents, at = [], 0
    for one in lengths:
        documents.append(list(accumulate(one, initial=at)))
        at = documents[-1][-1] + 1
    if sum(map(bool, lengths)) < 2:
        return
    for pair in sentence_pairs(documents, longest, Random(seed)):
        assert pair.first
        assert pair.second
        assert len(pair.first) + len(pair.second) <= longest
        assert (document_of(documents, pair.first) == document_of(documents, pair.second)) == pair.follows


def test_every_sentence_of_a_document_is_read_and_that_which_a_stranger_replaced_in_the_next_pair():
    documents = library()
    pairs = list(sentence_pairs(documents, 10_000, Random(2)))
    read = {place for pair in pairs for side in (pair.first, pair.second) for place in side}
    several = [document for document in documents if len(document) > 3]
    assert all(document[0] in read for document in several)
    firsts = {pair.first.start for pair in pairs}
    ends = {document[-1] for document in documents}
    last = {document[-2] for document in documents}  # a single sentence that is left over makes no pair
    strangers = [pair for pair in pairs if not pair.follows and pair.first.stop not in ends | last]
    assert len(strangers) > 100
    assert all(pair.first.stop in firsts for pair in strangers)


def test_the_length_of_a_passage_does_not_tell_whether_it_follows():
    pairs = [pair for seed in range(9) for pair in sentence_pairs(library(), LONGEST, Random(seed))]
    shares = []
    for follows in (True, False):
        lengths = sorted(len(pair.second) for pair in pairs if pair.follows == follows)
        shares.append([lengths[len(lengths) * part // 10] for part in range(1, 10)])
    assert all(abs(one - other) <= 3 for one, other in zip(*shares, strict=True))  # a sentence has 6.5 tokens


def test_the_longer_passage_loses_tokens_at_both_ends():
    documents = [[0, 30, 90], [100, 130, 190]]
    pairs = [pair for seed in range(40) for pair in sentence_pairs(documents, 50, Random(seed)) if pair.follows]
    assert all(len(pair.first) + len(pair.second) == 50 for pair in pairs)
    assert {abs(len(pair.first) - len(pair.second)) for pair in pairs} == {0}
    assert len({pair.second.start for pair in pairs}) > 3
    assert len({pair.first.start for pair in pairs}) > 3


def test_a_seed_gives_the_same_again_and_another_does_not():
    runs = [list(sentence_pairs(library(), LONGEST, Random(seed))) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("documents", "longest", "words"),
    [
        ([[0, 1, 2]], 8, "at least two are needed"),
        ([[0, 1, 2], [2], []], 8, "at least two are needed"),
        ([[0, 1, 2], [2, 3]], 1, "room for two tokens"),
    ],
)
def test_what_cannot_be_paired_is_refused_in_words(documents, longest, words):
    with pytest.raises(InputError, match=words):
        list(sentence_pairs(documents, longest, Random(0)))
