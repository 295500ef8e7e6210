"""The document page: shaded by weight, escaped, and without scripts."""

import re
from base64 import b64encode
from hashlib import sha256
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from qkv.interpret.document_probe import WeightedDocument, WeightedSentence
from qkv.visualize.pages.document_page import SHADES, document_lines, save_document_page

HOSTILE = '<script>alert(1)</script>" onmouseover="x {{policy}} \u202e'


def document(*words: str, label: str = "positive", left_out: int = 0) -> WeightedDocument:
    """Two sentences: weight 0.25 on the first with uniform word weights, 0.75 on the second."""
    first = WeightedSentence(0.25, ("A", " film", "."), np.full(3, 1 / 3))
    second = WeightedSentence(0.75, (*words, " ", " fine "), np.array([*[0.2 / len(words)] * len(words), 0.0, 0.8]))
    probabilities = {label: 0.9, "negative": 0.1}
    return WeightedDocument("whatever", label, probabilities, (first, second), left_out)


def shown(page: str) -> list[tuple[int, str]]:
    """Return the shade and text of every shaded element."""
    return [(int(shade), text) for shade, text in re.findall(r'<span class="s(\d+)" title="[\d.]+">(.*?)</span>', page)]


def test_sentences_and_words_are_shaded_by_weight(tmp_path):
    page = save_document_page([document("It", " is")], tmp_path / "a.html").read_text(encoding="utf-8")
    top = SHADES - 1
    part = round(top * 0.25 / 3 / 0.6)  # a word of the first sentence, next to the one with the largest weight
    assert shown(page) == [
        (round(top / 3), "25.0%"), (part, "A"), (part, "film"), (part, "."),
        (top, "75.0%"), (round(top * 0.075 / 0.6), "It"), (round(top * 0.075 / 0.6), "is"), (top, "fine"),
    ]  # fmt: skip
    assert '<h2><bdi>positive</bdi> <span class="number">90.0%</span></h2>\n<p class="meta">negative 10.0%</p>' in page
    assert re.sub(r"<[^>]*>", "", re.findall(r"<p class=\"words\".*?</p>", page)[0]) == "A film."
    assert len(re.findall(r"^    \.s\d+ ", page, flags=re.MULTILINE)) == 2 * SHADES


def test_truncation_is_shown(tmp_path):
    page = save_document_page([document("It", left_out=3)], tmp_path / "a.html").read_text(encoding="utf-8")
    assert '<p class="meta">negative 10.0% · 3 more sentence(s) truncated</p>' in page


def test_hostile_text_is_escaped_and_the_page_runs_nothing(tmp_path):
    path = save_document_page([document(HOSTILE, label=HOSTILE)], tmp_path / "a.html")
    page = path.read_text(encoding="utf-8")
    assert "<script" not in page
    assert 'onmouseover="' not in page
    assert page.count("{{policy}}") == 2  # the label and the word
    assert "\u202e" not in re.findall(r"<ol>.*</ol>", page, flags=re.DOTALL)[0]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    (style,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "style=" not in page  # which the policy would not let through


@pytest.mark.parametrize("colour", [None, "truecolor"])
def test_the_terminal_shows_the_weight_of_each_sentence(colour):
    out = StringIO()
    console = Console(file=out, width=60, color_system=colour, force_terminal=colour is not None)
    console.print(document_lines(document("It", " is")))
    assert re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()) == " 25.0%  A film.\n 75.0%  It is  fine\n"
    assert ("\x1b[38;2;0;0;0;48;2;222;232;255mfine" in out.getvalue()) == (colour is not None)  # the lightest of all


def test_a_very_long_word_or_label_is_truncated(tmp_path):
    long = document(100_000 * "x", label=100_000 * "y")
    page = save_document_page([long], tmp_path / "a.html").read_text(encoding="utf-8")
    assert f">{80 * 'x'}…</span>" in page
    assert page.count("y") < 5000
    assert document_lines(long).plain.count("x") == 80
