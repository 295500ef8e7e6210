"""Alignment accuracy on small examples, and grid cells in boxes."""

import math

import numpy as np

from qkv.metrics.alignment_metrics import alignment_accuracy, inside

WEIGHTS = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1]], dtype=np.float32)  # argmax: 0, 2, 1


def test_a_token_is_correct_if_its_largest_weight_is_inside_the_gold_span() -> None:
    assert alignment_accuracy([(WEIGHTS, ((0, 1), (0, 2), (1, 3)))]) == 2 / 3  # 2 is not in [0, 2)
    assert alignment_accuracy([(WEIGHTS, ((0, 3), (0, 3), (0, 3)))]) == 1.0
    assert alignment_accuracy([(WEIGHTS, ((1, 3), (0, 2), (2, 3)))]) == 0.0


def test_unaligned_tokens_do_not_count() -> None:
    assert alignment_accuracy([(WEIGHTS, (None, (2, 3), None))]) == 1.0
    assert math.isnan(alignment_accuracy([(WEIGHTS, (None, None, None))]))
    assert math.isnan(alignment_accuracy([]))


def test_every_token_has_the_same_weight() -> None:
    assert alignment_accuracy([(WEIGHTS, ((0, 1), (2, 3), (1, 2))), (WEIGHTS[:1], ((1, 2),))]) == 3 / 4


def test_a_text_is_compared_up_to_the_length_of_its_reference() -> None:
    assert alignment_accuracy([(WEIGHTS, ((0, 1),))]) == 1.0
    assert alignment_accuracy([(WEIGHTS[:1], ((0, 1), (0, 1), (0, 1)))]) == 1.0


def test_a_cell_is_inside_if_its_center_is() -> None:
    # Cells of 8 x 8 pixels on an image of 16 x 24 pixels: the center of cell 5 is at (12, 20).
    assert inside(5, (2, 3), (16, 24), (8, 16, 16, 24))
    assert inside(5, (2, 3), (16, 24), (12, 20, 13, 21))
    assert not inside(5, (2, 3), (16, 24), (8, 16, 12, 24))  # bottom is exclusive
    assert not inside(2, (2, 3), (16, 24), (8, 16, 16, 24))
