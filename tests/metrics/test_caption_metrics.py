"""Caption metrics with several references, and grid cells in boxes."""

import math

import pytest

from qkv.metrics.caption_metrics import caption_bleu, exact_captions, inside

REFERENCES = [["a dog runs on the grass", "one dog running"], ["a red circle above a blue square"]]


def test_one_of_several_references_is_enough():
    assert exact_captions(["one dog running", "a red circle"], REFERENCES) == 0.5
    assert math.isnan(exact_captions([], []))
    assert caption_bleu([captions[0] for captions in REFERENCES], REFERENCES).value == pytest.approx(100)
    assert 0 < caption_bleu(["a dog runs on the grass", "a red square above a blue circle"], REFERENCES).value < 100


def test_more_references_do_not_lower_bleu():
    texts = ["one dog running on the grass", "a red circle above a square"]
    first = [captions[:1] for captions in REFERENCES]
    assert caption_bleu(texts, REFERENCES).value >= caption_bleu(texts, first).value


def test_a_cell_is_inside_if_its_center_is():
    # Cells of 8 x 8 pixels on an image of 16 x 24 pixels: the center of cell 5 is at (12, 20).
    assert inside(5, (2, 3), (16, 24), (8, 16, 16, 24))
    assert inside(5, (2, 3), (16, 24), (12, 20, 13, 21))
    assert not inside(5, (2, 3), (16, 24), (8, 16, 12, 24))  # bottom is exclusive
    assert not inside(2, (2, 3), (16, 24), (8, 16, 16, 24))
