"""Precision, recall, F1, confusion matrix and calibration, compared with scikit-learn and with a hand computation."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.metrics.class_metrics import calibration, class_table, confusion_matrix
from qkv.metrics.intervals import proportion_interval
from qkv.metrics.tag_metrics import entity_f1, entity_table

metrics = pytest.importorskip("sklearn.metrics", reason="needs the package scikit-learn")

LABELS = st.sampled_from(["cat", "dog", "horse", "owl"])
PAIRS = st.lists(st.tuples(LABELS, LABELS), min_size=1, max_size=60)


@given(PAIRS)
def test_scores_and_averages_equal_those_of_scikit_learn(pairs):
    predictions, references = [list(side) for side in zip(*pairs, strict=True)]
    table = class_table("classes", predictions, references)
    expected = metrics.classification_report(references, predictions, output_dict=True, zero_division=0)
    rows = {row.name: row for row in table.rows}
    assert set(rows) == {*predictions, *references}
    for row in [*rows.values(), *table.averages[1:]]:
        theirs = expected[row.name.replace("average", "avg")]
        assert (row.precision, row.recall, row.f1) == pytest.approx(
            (theirs["precision"], theirs["recall"], theirs["f1-score"])
        )
        assert row.support == theirs["support"]
    micro = table.averages[0]  # equals the accuracy, as every example has one label
    assert micro.precision == micro.recall == pytest.approx(metrics.accuracy_score(references, predictions))


@pytest.mark.filterwarnings("ignore:A single label")
@given(PAIRS)
def test_the_confusion_matrix_equals_that_of_scikit_learn(pairs):
    predictions, references = [list(side) for side in zip(*pairs, strict=True)]
    matrix = confusion_matrix(predictions, references)
    np.testing.assert_array_equal(
        np.array(matrix.counts), metrics.confusion_matrix(references, predictions, labels=matrix.labels)
    )


def test_the_most_frequent_confusions_come_first_and_correct_labels_are_left_out():
    matrix = confusion_matrix(["a", "b", "b", "b", "c", "a"], ["a", "a", "a", "c", "c", "c"])
    assert matrix.largest(2) == [("a", "b", 2), ("c", "a", 1)]
    assert len(matrix.largest(10)) == 3


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=100))
def test_the_calibration_error_equals_its_definition(predictions):
    confidence, correct = (np.array(side, dtype=float) for side in zip(*predictions, strict=True))
    edges = np.arange(11) / 10
    expected = 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high) | ((low == 0) & (confidence == 0))
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    result = calibration(confidence.tolist(), correct.astype(bool).tolist())
    assert result.error == pytest.approx(expected, abs=1e-9)
    assert sum(part.count for part in result.bins) == len(predictions)


@pytest.mark.parametrize(("count", "total"), [(15, 20), (0, 10), (10, 10), (1, 1), (700, 1066)])
def test_the_interval_of_a_proportion_equals_that_of_scipy(count, total):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(count, total).proportion_ci(method="wilson")
    assert proportion_interval(count, total) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_a_calibrated_model_has_no_calibration_error():
    assert calibration([0.75] * 4, [True, True, True, False]).error == 0
    assert calibration([], []).error == 0


def test_entities_count_by_type_only_if_span_and_type_match():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O", "B-PER", "O"], ["O", "O"]]
    predicted = [["B-PER", "I-PER", "O", "B-ORG"], ["B-ORG", "O", "B-PER", "I-PER"], ["B-LOC", "O"]]
    rows = {row.name: (row.correct, row.predicted, row.support) for row in entity_table(predicted, gold).rows}
    # PER: the first matches, the second is too long; ORG: one of two predicted; LOC: never right.
    assert rows == {"PER": (1, 2, 2), "ORG": (1, 2, 1), "LOC": (0, 1, 1)}
    table = entity_table(predicted, gold)
    per, org = (next(row for row in table.rows if row.name == name) for name in ("PER", "ORG"))
    assert (per.precision, per.recall, per.f1) == (0.5, 0.5, 0.5)
    assert (org.precision, org.recall, org.f1) == (0.5, 1.0, pytest.approx(2 / 3))
    assert table.averages[0].f1 == pytest.approx(entity_f1(predicted, gold)) == pytest.approx(4 / 9)
    assert table.averages[1].f1 == pytest.approx((0.5 + 2 / 3 + 0) / 3)
