"""Figures of the notes."""

import json

import numpy as np
import pytest
from PIL import Image

from qkv.errors import InputError
from qkv.experiments.claims.note_figures import FIGURES, draw_figure
from qkv.interpret.document_probe import WeightedDocument, WeightedSentence
from qkv.visualize.document_figure import save_document_png
from qkv.visualize.matrices import MatrixPanel, save_matrices
from tests.cli.command import process


def test_figures_are_listed_with_their_models():
    ended = process("claims", "figure", "--json")
    assert [figure["figure"] for figure in json.loads(ended.out)] == list(FIGURES)


def test_the_figure_of_positions_is_drawn_without_training(tmp_path):
    ended = process("claims", "figure", "positions", "--png", tmp_path / "positions.png", "--output", tmp_path)
    assert ended.code == 0
    assert Image.open(tmp_path / "positions.png").width > 500
    assert list(tmp_path.iterdir()) == [tmp_path / "positions.png"]


def test_an_unknown_figure_names_the_nearest(tmp_path):
    with pytest.raises(InputError, match="did you mean heads"):
        draw_figure("head", tmp_path, tmp_path / "head.png")


def test_masked_cells_are_grey_and_large_values_dark(tmp_path):
    values = np.ma.masked_array([[0.0, 1.0], [0.5, 0.0]], mask=[[False, False], [False, True]])
    save_matrices([MatrixPanel("", values, (), ())], tmp_path / "m.png", columns=1, cell=0.5)
    pixels = np.asarray(Image.open(tmp_path / "m.png").convert("RGB")).astype(int)
    cells = {tuple(pixels[y, x]) for y in range(0, pixels.shape[0], 7) for x in range(0, pixels.shape[1], 7)}
    assert (0xD9, 0xDB, 0xE0) in cells
    assert min(sum(cell) for cell in cells) < 200


def test_a_document_is_drawn_with_a_line_per_sentence(tmp_path):
    sentences = tuple(WeightedSentence(weight, ("a ", "film"), np.array([0.2, 0.8])) for weight in (0.7, 0.3))
    document = WeightedDocument("a film a film", "good", {"good": 0.9, "bad": 0.1}, sentences, 0)
    save_document_png(document, tmp_path / "two.png")
    longer = WeightedDocument("", "good", {"good": 0.9, "bad": 0.1}, sentences * 3, 0)
    save_document_png(longer, tmp_path / "six.png")
    assert Image.open(tmp_path / "six.png").height > 1.5 * Image.open(tmp_path / "two.png").height
