"""Next-sentence pairs: balanced labels, lengths, document boundaries and reproducibility."""

from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import InputError
from qkv.tasks.base.masking import sentence_pairs

MAX_TOKENS = 40


def random_documents(count: int = 300, seed: int = 0) -> list[list[int]]:
    """Return documents of up to twenty sentences, with gaps between them that no segment may touch."""
    rng, documents, start = Random(seed), [], 0
    for _ in range(count):
        lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 20))]
        documents.append(list(accumulate(lengths, initial=start)))
        start = documents[-1][-1] + 1
    return documents


def document_of(documents: list[list[int]], segment: range) -> int:
    """Return the index of the document that contains the whole segment."""
    (index,) = [
        index
        for index, document in enumerate(documents)
        if document[0] <= segment.start and segment.stop <= document[-1]
    ]
    return index


def test_half_of_the_pairs_follow():
    labels = [
        pair.follows for seed in range(5) for pair in sentence_pairs(random_documents(), MAX_TOKENS, Random(seed))
    ]
    assert len(labels) > 3000
    assert sum(labels) / len(labels) == pytest.approx(0.5, abs=4 * 0.5 / len(labels) ** 0.5)


def test_following_segments_are_adjacent_and_others_from_another_document():
    documents = random_documents(60)
    boundaries = {position for document in documents for position in document}
    for pair in sentence_pairs(documents, 10_000, Random(1)):  # no truncation
        assert {pair.first.start, pair.first.stop, pair.second.start, pair.second.stop} <= boundaries
        same = document_of(documents, pair.first) == document_of(documents, pair.second)
        assert same == pair.follows
        assert not pair.follows or pair.second.start == pair.first.stop


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 6), max_size=5), min_size=2, max_size=6), st.integers(2, 12), st.integers(0, 99)
)
def test_segments_are_not_empty_fit_and_stay_in_their_document(lengths, max_tokens, seed):
    documents, start = [], 0
    for sentence_lengths in lengths:
        documents.append(list(accumulate(sentence_lengths, initial=start)))
        start = documents[-1][-1] + 1
    if sum(map(bool, lengths)) < 2:
        return
    for pair in sentence_pairs(documents, max_tokens, Random(seed)):
        assert pair.first
        assert pair.second
        assert len(pair.first) + len(pair.second) <= max_tokens
        assert (document_of(documents, pair.first) == document_of(documents, pair.second)) == pair.follows


def test_every_sentence_is_used_and_replaced_ones_start_the_next_pair():
    documents = random_documents()
    pairs = list(sentence_pairs(documents, 10_000, Random(2)))
    covered = {position for pair in pairs for segment in (pair.first, pair.second) for position in segment}
    several = [document for document in documents if len(document) > 3]
    assert all(document[0] in covered for document in several)
    firsts = {pair.first.start for pair in pairs}
    ends = {document[-1] for document in documents}
    last = {document[-2] for document in documents}  # a single remaining sentence is dropped
    replaced = [pair for pair in pairs if not pair.follows and pair.first.stop not in ends | last]
    assert len(replaced) > 100
    assert all(pair.first.stop in firsts for pair in replaced)


def test_segment_length_does_not_reveal_the_label():
    pairs = [pair for seed in range(9) for pair in sentence_pairs(random_documents(), MAX_TOKENS, Random(seed))]
    deciles = []
    for follows in (True, False):
        lengths = sorted(len(pair.second) for pair in pairs if pair.follows == follows)
        deciles.append([lengths[len(lengths) * part // 10] for part in range(1, 10)])
    assert all(abs(left - right) <= 3 for left, right in zip(*deciles, strict=True))  # a sentence has 6.5 tokens


def test_the_longer_segment_is_truncated_at_both_ends():
    documents = [[0, 30, 90], [100, 130, 190]]
    pairs = [pair for seed in range(40) for pair in sentence_pairs(documents, 50, Random(seed)) if pair.follows]
    assert all(len(pair.first) + len(pair.second) == 50 for pair in pairs)
    assert {abs(len(pair.first) - len(pair.second)) for pair in pairs} == {0}
    assert len({pair.second.start for pair in pairs}) > 3
    assert len({pair.first.start for pair in pairs}) > 3


def test_the_seed_determines_the_pairs():
    runs = [list(sentence_pairs(random_documents(), MAX_TOKENS, Random(seed))) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("documents", [[[0, 1, 2]], [[0, 1, 2], [2], []]])
def test_too_few_documents_are_rejected(documents):
    with pytest.raises(InputError, match="two documents"):
        list(sentence_pairs(documents, 8, Random(0)))
