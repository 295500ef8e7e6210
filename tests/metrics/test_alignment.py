"""How well attention points at the right places, counted by hand."""

import math

import numpy as np

from qkv.metrics import alignment_accuracy

WEIGHTS = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1]], dtype=np.float32)  # strongest: 0, 2, 1


def test_a_token_is_right_when_its_strongest_weight_lies_inside_its_origin() -> None:
    assert alignment_accuracy([(WEIGHTS, ((0, 1), (0, 2), (1, 3)))]) == 2 / 3  # 2 is not in [0, 2)
    assert alignment_accuracy([(WEIGHTS, ((0, 3), (0, 3), (0, 3)))]) == 1.0
    assert alignment_accuracy([(WEIGHTS, ((1, 3), (0, 2), (2, 3)))]) == 0.0


def test_tokens_without_a_known_origin_do_not_count() -> None:
    assert alignment_accuracy([(WEIGHTS, (None, (2, 3), None))]) == 1.0
    assert math.isnan(alignment_accuracy([(WEIGHTS, (None, None, None))]))
    assert math.isnan(alignment_accuracy([]))


def test_every_token_of_every_text_counts_the_same() -> None:
    assert alignment_accuracy([(WEIGHTS, ((0, 1), (2, 3), (1, 2))), (WEIGHTS[:1], ((1, 2),))]) == 3 / 4


def test_a_text_longer_or_shorter_than_its_reference_is_compared_as_far_as_both_go() -> None:
    assert alignment_accuracy([(WEIGHTS, ((0, 1),))]) == 1.0
    assert alignment_accuracy([(WEIGHTS[:1], ((0, 1), (0, 1), (0, 1)))]) == 1.0
