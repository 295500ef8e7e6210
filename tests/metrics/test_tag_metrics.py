"""Tagging metrics on small examples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.metrics.tag_metrics import are_entity_tags, entities, entity_f1, tag_accuracy, tag_intervals


def test_entities_start_with_b_or_an_i_without_predecessor():
    assert entities(["B-a", "I-a", "B-a", "O", "I-b", "I-c", "B-c"]) == {
        (0, 2, "a"), (2, 3, "a"), (4, 5, "b"), (5, 6, "c"), (6, 7, "c"),
    }  # fmt: skip
    assert entities([]) == entities(["O", "O"]) == set()
    assert entities(["B-creative-work", "I-creative-work"]) == {(0, 2, "creative-work")}


def test_f1_counts_entities_over_all_sentences():
    gold = [["B-a", "I-a", "O", "B-b"], ["O", "B-a"]]
    predictions = [["B-a", "O", "O", "B-b"], ["B-a", "B-a"]]  # precision 2 / 4, recall 2 / 3
    assert entity_f1(predictions, gold) == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert tag_accuracy(predictions, gold) == pytest.approx(4 / 6)


def test_intervals_resample_sentences():
    """An interval of words that are wrong in one sentence in ten is wider than that of independent words."""
    gold = [["B-a", "I-a", "O", "B-b"]] * 50
    predictions = [["O"] * 4 if number % 10 == 0 else tags for number, tags in enumerate(gold)]
    intervals = tag_intervals(predictions, gold)
    for name, score in {"accuracy": tag_accuracy(predictions, gold), "f1": entity_f1(predictions, gold)}.items():
        low, high = intervals[name]
        assert low < score < high <= 1
    binomial = 2 * 1.96 * (0.925 * 0.075 / 200) ** 0.5
    assert intervals["accuracy"].high - intervals["accuracy"].low > 1.4 * binomial
    plain = tag_intervals([["NOUN"]] * 10, [["NOUN"]] * 10)
    assert plain == {"accuracy": (1, 1), "f1": (1, 1)}
    assert tag_intervals(predictions[:9], gold[:9]) == {}


tags = st.lists(st.sampled_from(["O", "B-a", "I-a", "B-b", "I-b"]), max_size=8)


@given(tags)
def test_perfect_predictions_score_one(sentence):
    assert entity_f1([sentence], [sentence]) == 1.0
    assert tag_accuracy([sentence], [sentence]) == (1.0 if sentence else 0.0)


@given(tags)
def test_entities_survive_a_round_trip_through_tags(sentence):
    again = ["O"] * len(sentence)
    for begin, end, kind in entities(sentence):
        again[begin:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - begin - 1)
    assert entities(again) == entities(sentence)


def test_entity_tags_are_distinguished_from_other_tags():
    assert are_entity_tags(["O", "B-x", "I-x"])
    assert not are_entity_tags(["NOUN", "VERB"])
    assert are_entity_tags(["B-x", "E-x", "S-y"])
    assert not are_entity_tags(["O", "ADJ"])


def test_bioes_and_bilou_tags_are_supported():
    assert entities(["B-a", "E-a", "E-a", "S-b", "O", "B-a", "I-a", "L-a", "U-c"]) == {
        (0, 2, "a"), (2, 3, "a"), (3, 4, "b"), (5, 8, "a"), (8, 9, "c"),
    }  # fmt: skip
    assert entity_f1([["O", "O", "O"]], [["B-a", "E-a", "O"]]) == 0.0
