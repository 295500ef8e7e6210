"""Documents in the terminal."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from qkv.visualize.document_lines import document_lines
from tests.visualize.documents import document


@pytest.mark.parametrize("color", [None, "truecolor"])
def test_the_terminal_shows_the_weight_of_each_sentence(color):
    out = StringIO()
    console = Console(file=out, width=60, color_system=color, force_terminal=color is not None)
    console.print(document_lines(document("It", " is")))
    assert re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()) == " 25.0%  A film.\n 75.0%  It is  fine\n"
    assert ("\x1b[38;2;0;0;0;48;2;222;232;255mfine" in out.getvalue()) == (color is not None)  # the lightest of all


def test_a_very_long_word_is_truncated():
    assert document_lines(document(100_000 * "x")).plain.count("x") == 80


def test_a_part_of_a_split_sentence_ends_in_an_ellipsis():
    whole = document("It", " is")
    first, second = whole.sentences
    lines = document_lines(replace(whole, sentences=(replace(first, continues=True), second))).plain.splitlines()
    assert [line[-1] for line in lines] == ["…", "e"]
