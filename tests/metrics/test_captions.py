"""Captions judged against several references, and places against boxes."""

import math

import pytest

from qkv.metrics.captions import caption_bleu, exact_captions, inside

RIGHT = [["a dog runs on the grass", "one dog running"], ["a red circle above a blue square"]]


def test_one_of_several_references_is_enough():
    assert exact_captions(["one dog running", "a red circle"], RIGHT) == 0.5
    assert math.isnan(exact_captions([], []))
    assert caption_bleu([said[0] for said in RIGHT], RIGHT).value == pytest.approx(100)
    assert 0 < caption_bleu(["a dog runs on the grass", "a red square above a blue circle"], RIGHT).value < 100


def test_more_references_never_make_bleu_worse():
    texts = ["one dog running on the grass", "a red circle above a square"]
    first = [said[:1] for said in RIGHT]
    assert caption_bleu(texts, RIGHT).value >= caption_bleu(texts, first).value


def test_a_place_is_inside_where_its_middle_is():
    # Places of 8 x 8 pixels on a picture of 16 rows and 24 columns: the middle of place 5 stands at (12, 20).
    assert inside(5, (2, 3), (16, 24), (8, 16, 16, 24))
    assert inside(5, (2, 3), (16, 24), (12, 20, 13, 21))
    assert not inside(5, (2, 3), (16, 24), (8, 16, 12, 24))  # bottom is just outside
    assert not inside(2, (2, 3), (16, 24), (8, 16, 16, 24))
