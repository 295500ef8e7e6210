"""Scores of tags against counts by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.metrics.tagging import entities, entity_f1, names_entities, tag_accuracy


def test_entities_begin_with_b_or_where_an_i_goes_on_with_nothing():
    assert entities(["B-a", "I-a", "B-a", "O", "I-b", "I-c", "B-c"]) == {
        (0, 2, "a"), (2, 3, "a"), (4, 5, "b"), (5, 6, "c"), (6, 7, "c"),
    }  # fmt: skip
    assert entities([]) == entities(["O", "O"]) == set()
    assert entities(["B-creative-work", "I-creative-work"]) == {(0, 2, "creative-work")}


def test_f1_counts_whole_entities_over_all_sentences():
    wanted = [["B-a", "I-a", "O", "B-b"], ["O", "B-a"]]
    found = [["B-a", "O", "O", "B-b"], ["B-a", "B-a"]]  # of 4 said 2 are right, of 3 wanted 2 were found
    assert entity_f1(found, wanted) == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert tag_accuracy(found, wanted) == pytest.approx(4 / 6)


tags = st.lists(st.sampled_from(["O", "B-a", "I-a", "B-b", "I-b"]), max_size=8)


@given(tags)
def test_what_is_right_everywhere_scores_one(one):
    assert entity_f1([one], [one]) == 1.0
    assert tag_accuracy([one], [one]) == (1.0 if one else 0.0)


@given(tags)
def test_entities_written_out_again_are_the_same_entities(one):
    again = ["O"] * len(one)
    for begin, end, kind in entities(one):
        again[begin:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - begin - 1)
    assert entities(again) == entities(one)


def test_tags_of_entities_are_told_from_others():
    assert names_entities(["O", "B-x", "I-x"])
    assert not names_entities(["NOUN", "VERB"])
    assert names_entities(["B-x", "E-x", "S-y"])
    assert not names_entities(["O", "ADJ"])


def test_entities_may_say_where_they_end():
    assert entities(["B-a", "E-a", "E-a", "S-b", "O", "B-a", "I-a", "L-a", "U-c"]) == {
        (0, 2, "a"), (2, 3, "a"), (3, 4, "b"), (5, 8, "a"), (8, 9, "c"),
    }  # fmt: skip
    assert entity_f1([["O", "O", "O"]], [["B-a", "E-a", "O"]]) == 0.0
