"""Two models or inputs side by side in the explorer, in a real browser."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.interpret.attention_probe import AttentionProbe
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.pipelines.output import Answer, AttentionMap
from qkv.tokenizers import CharTokenizer
from qkv.visualize import save_page
from tests.visualize.captions import captioned
from tests.visualize.explorer.browser import (
    DATE,
    HOSTILE,
    LAYERS,
    Keys,
    Page,
    WebDriver,
    attention,
    narrow,
    requests,
)
from tests.visualize.explorer.test_picture import pictured

pytestmark = pytest.mark.browser
OLD, NEW = "runs/old", "runs/new"
TEXT = "the cat sat"


def answer(rows: str, columns: str, read: list[int], *, special: tuple[str, ...] = ()) -> Answer:
    return Answer(columns, rows, -1.0, (attention("decoder", rows, columns, [read]),), special=special)


@pytest.fixture(scope="module")
def probes() -> list[AttentionProbe]:
    """Two language models that differ in their sizes and weights."""
    tokenizer = CharTokenizer.train([TEXT])
    found = []
    for seed, (heads, layers) in enumerate(((2, 2), (4, 1))):
        torch.manual_seed(seed)
        config = GPT2Config(vocab_size=len(tokenizer), dim=16, heads=heads, layers=layers, max_length=32)
        found.append(AttentionProbe(GPT2(config).eval(), tokenizer, device="cpu"))
    return found


def compared(probes: list[AttentionProbe], folder: Path) -> Path:
    answers = [probe(TEXT) for probe in probes]
    return save_page(answers, folder / "page.html", model=[OLD, NEW], command=f"qkv view {OLD} --compare {NEW}")


def test_weights_under_the_pointer_are_those_of_each_model(
    driver: WebDriver, probes: list[AttentionProbe], tmp_path: Path
) -> None:
    expected = []
    for probe in probes:
        with qkv.watch(probe.model) as records, torch.no_grad():
            probe.model(torch.tensor([probe.tokenizer.encode([TEXT], add_special_tokens=True)[0]]))
        expected.append(records[next(iter(records))].weights[0].mean(dim=0).numpy())
    driver.get_log("browser")
    driver.get_log("performance")
    path = compared(probes, tmp_path)
    page = Page(driver, path)
    assert page.one("#tabs [aria-selected=true]").text == "Side by side"
    assert driver.title == f"Attention: {OLD} and {NEW}, {TEXT}"
    assert page.text("a-title").startswith(f"A {OLD}: ")
    assert page.text("b-title").startswith(f"B {NEW}: ")
    tips = "return [...document.querySelectorAll('.tip')].map(tip => tip.textContent)"
    for side in range(2):
        for row, column in ((0, 0), (5, 2), (10, 7)):
            page.hover_cell(row, column, side=side)
            for tip, weights in zip(page.run(tips), expected, strict=True):  # the cell of both sides
                assert float(tip.split()[-1]) == pytest.approx(weights[row, column], abs=6e-5)
            gap = np.abs(expected[0][row] - expected[1][row]).sum() / 2
            assert float(page.text("difference").split()[-1]) == pytest.approx(gap, abs=3e-4)
    assert page.complaints() == []
    assert requests(driver, path) == [path.as_uri()]


def test_layers_and_heads_are_chosen_on_each_side(
    driver: WebDriver, probes: list[AttentionProbe], tmp_path: Path
) -> None:
    page = Page(driver, compared(probes, tmp_path))
    page.choose("Layer of A", "blocks.1")
    page.choose("Head of A", "head 1")
    page.choose("Head of B", "head 3")
    exact = [probes[0](TEXT).attention[1].weights[1], probes[1](TEXT).attention[0].weights[3]]
    planes = page.run(
        """
        return qkvExplorer.shown().handle.heatMaps.map(map => {
          const { rows, columns, at } = map.plane();
          return rows.flatMap(row => columns.map(column => at(row, column).value));
        });
        """
    )
    for shown, weights in zip(planes, exact, strict=True):
        np.testing.assert_allclose(shown, weights.ravel(), atol=1e-5)
    link = page.run("return location.hash")
    again = Page(driver, tmp_path / "page.html", link)
    assert [again.one(f"select[aria-label='Head of {side}']").get_attribute("value") for side in "AB"] == ["1", "3"]


def test_equal_tokens_are_selected_on_both_sides(driver: WebDriver, tmp_path: Path) -> None:
    a, b = answer("wxyz", "abcd", [0, 1, 2, 3]), answer("wyz", "abXcd", [0, 3, 4])
    page = Page(driver, save_page([a, b], tmp_path / "page.html"), "#view=compare")
    page.hover(page.tokens("a-rows")[2])  # y
    assert (page.selected("a-rows"), page.selected("b-rows")) == ([2], [1])
    assert page.text("a-readout").startswith("“y” attends to “c” 0.7000")
    assert page.text("b-readout").startswith("“y” attends to “c” 0.7000")
    page.hover(page.tokens("a-rows")[1])  # x
    assert page.selected("b-rows") == []
    assert page.text("b-readout") == "No equal token."
    page.hover(page.tokens("b-cols")[4])  # d
    assert page.text("a-readout").startswith("“d” is attended to by “z” 0.7000")
    dashed = "return [...document.querySelectorAll('.unmatched')].map(cell => cell.textContent)"
    assert page.run(dashed) == ["x", "X"]
    page.tokens("b-rows")[2].click()  # z
    assert page.run("return location.hash") == "#view=compare&row=2&side=right"
    page.hover(page.one("#title"))
    assert (page.selected("a-rows"), page.selected("b-rows")) == ([3], [2])
    page.press(Keys.ESCAPE)
    assert (page.selected("a-rows"), page.selected("b-rows")) == ([0], [0])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("abc", "abc", [0, 1, 2]),
        ("abc", "xbcy", [-1, 1, 2]),
        ("the cat", "the fat cat", [0, 1, 2, 3, 8, 9, 10]),
        ("", "ab", []),
        ("ab", "cd", [-1, -1]),
    ],
)
def test_the_longest_common_subsequence_is_matched(
    driver: WebDriver, tmp_path: Path, a: str, b: str, expected: list[int]
) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    script = 'return modules["matching.js"].matching(...arguments).map(each => [...each])'
    forward, backward = page.run(script, [*a], [*b])
    matched = [(i, j) for i, j in enumerate(forward) if j >= 0]
    assert len(matched) == sum(j >= 0 for j in expected)
    assert matched == sorted(matched, key=lambda pair: pair[1])
    assert all(a[i] == b[j] and backward[j] == i for i, j in matched)
    assert page.run(script, [" cat"], ["cat"]) == [[0], [0]]


def test_any_two_inputs_of_a_page_can_be_compared(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE, LAYERS, answer("wxyz", "abcd", [0, 0, 0, 0])], tmp_path / "page.html"))
    assert page.one("#tabs [aria-selected=true]").text == "Matrix"
    page.tab("compare")
    assert page.text("b-title") == "B abcd → wxyz"
    page.choose("Compare with", "3: abcd → wxyz")
    assert page.run("return location.hash") == "#view=compare&other=2"
    page.tokens("examples")[1].click()
    page.hover_cell(1, 0, side=1)
    assert page.text("a-readout") == "“x” attends to “a” 0.1000"
    assert page.text("b-readout") == "“x” attends to “a” 0.7000"


def test_one_color_scale_for_both_sides_is_stated(driver: WebDriver, tmp_path: Path) -> None:
    faint = AttentionMap("decoder", ("w", "x"), ("a", "b"), np.full((1, 2, 2), 0.5))
    strong = AttentionMap("decoder", ("w", "x"), ("a", "b"), np.eye(2)[None])
    answers = [Answer("ab", "wx", 0.0, (faint,)), Answer("ab", "wx", 0.0, (strong,))]
    page = Page(driver, save_page(answers, tmp_path / "page.html", model=[OLD, NEW]))
    assert "heads of both sides" in page.one(".scale").text
    assert page.run("return [...document.querySelectorAll('.ticks')].map(t => t.lastChild.textContent)") == ["1.00"]
    page.choose("Color scale", "one for each head")
    ends = page.run("return [...document.querySelectorAll('.ticks')].map(t => t.lastChild.textContent)")
    assert ends == ["0.50", "1.00"]


def test_special_tokens_can_be_hidden(driver: WebDriver, tmp_path: Path) -> None:
    tokens = ("[CLS]", "a", "b", "[SEP]")
    pair = [
        Answer(
            "a b", "", 0.0, (AttentionMap("encoder.0", tokens, tokens, np.full((1, 4, 4), 0.25)),), special=tokens[::3]
        )
        for _ in range(2)
    ]
    page = Page(driver, save_page(pair, tmp_path / "page.html", model=[OLD, NEW]))
    page.choose("Special tokens", "hidden, rows rescaled to 1")
    for side in "ab":
        assert page.texts(f"{side}-rows") == ["a", "b"]
        assert page.text(f"{side}-readout") == "“a” attends to “a” 0.5000 “b” 0.5000"


def test_hostile_names_and_tokens_stay_text(driver: WebDriver, tmp_path: Path) -> None:
    tokens = (HOSTILE, "\u202eabc", "مرحبا", "<b>x</b>")
    hostile = Answer(HOSTILE, HOSTILE, 0.0, (AttentionMap(HOSTILE, tokens, tokens, np.eye(4)[None]),))
    driver.get_log("browser")
    path = save_page([hostile, hostile], tmp_path / "page.html", model=[HOSTILE, f"{HOSTILE}2"], command=HOSTILE)
    page = Page(driver, path)
    page.hover_cell(0, 0)
    assert page.all("img") == []
    assert driver.title == f"Attention: {HOSTILE} and {HOSTILE}2, {HOSTILE}"
    assert page.complaints() == []


def colored(page: Page, side: str) -> int:
    """Return the cell of a grid of 2 by 3 that is most blue."""
    script = """
        const canvas = document.querySelector(arguments[0]), { width, height } = canvas;
        const copy = Object.assign(document.createElement("canvas"), { width, height });
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(canvas, 0, 0);
        return Array.from({ length: 6 }, (_, i) => {
          const x = (i % 3 + 0.2) / 3 * canvas.width, y = (Math.floor(i / 3) + 0.2) / 2 * canvas.height;
          const [r, , b] = context.getImageData(x, y, 1, 1).data;
          return b - r;
        });
    """
    levels = list(page.run(script, f"#{side}-image"))
    return levels.index(max(levels))


def test_captions_of_images_are_compared(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    pair = [captioned(("a", " cat"), (0, 4)), captioned(("one", " cat"), (1, 5), source="b.png")]
    page = Page(driver, save_page(pair, tmp_path / "page.html"), "#view=compare")
    assert (colored(page, "a"), colored(page, "b")) == (0, 1)
    page.hover(page.tokens("b-rows")[1])
    assert (colored(page, "a"), colored(page, "b")) == (4, 5)
    assert page.text("a-readout") == "“␣cat” attends to row 2, column 2 1.0000"
    page.hover(page.tokens("a-rows")[0])
    assert page.text("b-readout") == "No equal token."
    assert page.complaints() == []


def test_patches_of_images_are_compared(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    path = save_page([pictured(), pictured(), DATE], tmp_path / "page.html", model=[OLD, NEW, OLD])
    page = Page(driver, path, "#head=0")
    assert page.one("#tabs [aria-selected=true]").text == "Side by side"
    assert not page.shown("select[aria-label='Compare with']")  # a text is not next to an image
    assert (colored(page, "a"), colored(page, "b")) == (1, 1)
    page.choose("Head of B", "head 1")
    assert (colored(page, "a"), colored(page, "b")) == (1, 3)
    page.run("document.querySelector('#b-image').focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.text("a-readout").startswith("row 1, column 2 attends to row 1, column 3 0.7000")
    assert page.text("b-readout") == "row 1, column 2 attends to row 2, column 1 1.0000"
    assert page.complaints() == []


def test_sides_are_stacked_on_a_phone(driver: WebDriver, probes: list[AttentionProbe], tmp_path: Path) -> None:
    path = compared(probes, tmp_path)
    boxes = "return [...document.querySelectorAll('.pane')].map(pane => pane.getBoundingClientRect().toJSON())"
    a, b = Page(driver, path).run(boxes)
    assert (a["y"], a["right"] < b["x"]) == (b["y"], True)
    narrow(driver, 390)
    try:
        page = Page(driver, path)
        a, b = page.run(boxes)
        assert a["bottom"] < b["y"]
        assert page.run("return document.documentElement.scrollWidth") <= 390
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_keys_move_on_both_sides_and_the_figure_has_both(
    driver: WebDriver, probes: list[AttentionProbe], tmp_path: Path
) -> None:
    page = Page(driver, compared(probes, tmp_path))
    tops = page.run("return [...document.querySelectorAll('.stage')].map(each => each.getBoundingClientRect().y)")
    assert tops[0] == tops[1]
    page.run("document.querySelectorAll('.map')[1].focus()")
    page.press(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_RIGHT)  # from the last query of a language model
    cells: Any = page.run("return qkvExplorer.state.pointed")
    assert (cells["row"], cells["side"]) == (8, 1)
    assert page.selected("a-rows") == [8]
    texts = page.run("return qkvExplorer.shown().handle.figure().items.map(item => item.text ?? '')")
    assert any(text.startswith("A runs/old") for text in texts)
    assert any(text.startswith("B runs/new") for text in texts)
