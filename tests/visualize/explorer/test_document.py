"""Documents in the explorer, in a real browser."""

from dataclasses import replace
from pathlib import Path

import pytest

from qkv.visualize import save_page
from qkv.visualize.explorer import document_answer
from tests.visualize.documents import document
from tests.visualize.explorer.browser import HOSTILE, Page, WebDriver

pytestmark = pytest.mark.browser
WORDS = """
    return [...document.querySelectorAll(".sentence [data-word]")].map(word => [word.textContent,
      getComputedStyle(word).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0)]);
"""


def test_sentences_and_words_are_shaded_by_weight(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    page = Page(driver, save_page([document_answer(document("It", " is", left_out=3))], tmp_path / "page.html"))
    assert page.text("heading") == "whatever → positive"
    assert page.text("example-notes") == "3 more sentence(s) truncated"
    assert page.candidates() == [("positive", 90.0), ("negative", 10.0)]
    assert page.run("return [...document.querySelectorAll('#sentences .weight')].map(w => w.textContent)") == [
        "0.250",
        "0.750",
    ]
    words = page.run(WORDS)
    assert [word for word, _ in words] == ["A", "film", ".", "It", "is", "fine"]
    shares = [0.25 / 3] * 3 + [0.075, 0.075, 0.6]
    ranked = sorted(zip(shares, (level for _, level in words), strict=True))
    levels = [level for _, level in ranked]
    assert levels == sorted(levels, reverse=True)  # a larger weight is darker
    assert levels[-1] < levels[-2] - 100
    page.hover(page.all(".sentence [data-word]")[-1])
    assert page.text("readout") == "Sentence 2: weight 0.7500. “fine” 0.8000 × 0.7500 = 0.6000"
    page.hover(page.all(".sentence [data-word]")[0])
    assert page.text("readout") == "Sentence 1: weight 0.2500. “A” 0.3333 × 0.2500 = 0.0833"
    assert page.complaints() == []


def test_the_exported_figure_has_the_words_and_weights_of_the_sentences(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([document_answer(document("It", " is"))], tmp_path / "page.html"))
    items = page.run("return qkvExplorer.shown().handle.figure().items")
    assert [item["text"] for item in items if item["type"] == "text"] == [
        "0.250", "A", "film", ".", "0.750", "It", "is", "fine",
    ]  # fmt: skip
    shades = page.run("return [...document.querySelectorAll('.weight, .sentence span')].map(e => e.style.background)")
    assert [item["fill"] for item in items if item["type"] == "rect"] == shades
    assert page.shown("#svg")


def test_parts_of_a_split_sentence_are_marked(driver: WebDriver, tmp_path: Path) -> None:
    whole = document("It", " is")
    first, second = whole.sentences
    split = replace(whole, sentences=(replace(first, continues=True), second))
    page = Page(driver, save_page([document_answer(split)], tmp_path / "page.html"))
    assert [each.text[-1] for each in page.all(".sentence")] == ["…", "e"]
    assert page.text("example-notes").startswith("1 sentence(s) longer than the model allows are split")
    assert [word for word, _ in page.run(WORDS)] == ["A", "film", ".", "It", "is", "fine"]
    page = Page(driver, save_page([document_answer(whole)], tmp_path / "page.html"))
    assert page.all(".continues") == [] == page.all("#example-notes li")


def test_hostile_words_and_labels_stay_text(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    hostile = document_answer(document(HOSTILE, f" {100_000 * 'x'}", label=HOSTILE))
    page = Page(driver, save_page([hostile], tmp_path / "page.html"))
    words = [word for word, _ in page.run(WORDS)]
    assert HOSTILE.replace(" ", "") in "".join(words).replace(" ", "")
    assert max(map(len, words)) <= 81
    assert page.all("img") == []
    assert page.run("return document.title") != "broken"
    assert page.complaints() == []


def test_the_selected_sentence_is_in_the_address(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([document_answer(document("It"))], tmp_path / "page.html"))
    assert page.selected("sentences") == [1]  # the one with the largest weight
    page.all("#sentences .weight")[0].click()
    assert page.run("return location.hash") == "#row=0"
    assert page.selected("sentences") == [0]
