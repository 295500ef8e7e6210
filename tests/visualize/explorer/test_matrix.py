"""The matrix view in a real browser: highlighting, pinning, keyboard navigation and exact weights."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize import save_page
from tests.visualize.explorer.browser import (
    DATE,
    LAYERS,
    READ,
    SOURCE,
    TEXT,
    Keys,
    Page,
    WebDriver,
    WebDriverWait,
    prefer,
)

pytestmark = pytest.mark.browser


def test_hovering_an_output_token_highlights_its_input_token(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    for i in (0, 4, 9):
        page.hover(page.tokens("rows")[i])
        assert page.selected("rows") == [i]
        assert page.lit("cols") == READ[i]
        assert page.text("readout").startswith(f"“{TEXT[i]}” attends to “{SOURCE[READ[i]].replace(' ', '␣')}” 0.7000")


def test_hovering_an_input_token_highlights_its_output_tokens(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    page.hover(page.tokens("cols")[5])
    assert page.lit("rows") == READ.index(5)
    assert page.text("readout").startswith("“r” is attended to by “3” 0.7000")
    assert len(set(page.lightness("cols"))) == 1  # the earlier light is out


def test_a_click_pins_a_token_until_it_is_clicked_again_or_escape_is_pressed(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    page.tokens("rows")[4].click()
    assert page.run("return location.hash") == "#row=4"
    page.hover(page.one("#title"))
    assert page.selected("rows") == [4]
    page.hover(page.tokens("rows")[1])
    assert page.selected("rows") == [1]  # the pointer goes before the pin
    page.hover(page.one("#title"))
    page.press(Keys.ESCAPE)
    assert page.selected("rows") == [0]
    page.hover_cell(3, 11, click=True)
    assert page.run("return location.hash") == "#row=3&column=11"
    page.hover_cell(3, 11, click=True)
    assert page.run("return location.hash") in ("", "#")


def test_brightness_grows_with_the_weight(driver: WebDriver, tmp_path: Path) -> None:
    weights = np.array([[[0.05, 0.1, 0.15, 0.3, 0.4]]])
    answer = Answer("abcde", "x", 0.0, (AttentionMap("decoder", ("x",), tuple("abcde"), weights),))
    levels = Page(driver, save_page([answer], tmp_path / "page.html")).lightness("cols")
    assert levels == sorted(levels, reverse=True)
    assert len(set(levels)) == 5


def test_switching_the_head_changes_the_heat_map(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS], tmp_path / "page.html"))
    heads = page.tokens("heads")
    assert [head.text for head in heads] == ["average", "head 0", "head 1"]
    pictures = [page.picture()]
    for head, read in ((1, 0), (2, 3)):
        heads[head].click()
        assert page.lit("cols") == read
        pictures.append(page.picture())
    assert len(set(pictures)) == 3


def test_switching_the_layer_keeps_the_head(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS], tmp_path / "page.html"))
    page.tokens("heads")[2].click()
    before = page.picture()
    page.choose("Layer", "encoder.0")
    assert page.selected("heads") == [2]
    assert page.lit("cols") == 2
    assert page.picture() != before
    assert page.texts("rows") == list("abcd")
    assert page.text("rows-label").lower() == "query"


def test_an_example_without_the_chosen_head_shows_its_only_head(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS, DATE], tmp_path / "page.html"))
    page.tokens("heads")[2].click()
    page.tokens("examples")[1].click()
    assert page.lit("cols") == READ[0]
    page.tokens("examples")[0].click()
    assert page.selected("heads") == [2]


def test_the_keyboard_alone_reaches_every_token_and_cell(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    page.run("document.querySelector('#png').focus()")
    page.press(Keys.TAB, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert (page.selected("rows"), page.lit("cols")) == ([2], READ[2])
    page.press(Keys.END)
    assert (page.selected("rows"), page.lit("cols")) == ([9], READ[9])
    page.press(Keys.TAB, Keys.ARROW_RIGHT)
    assert (page.selected("cols"), page.lit("rows")) == ([1], READ.index(1))
    page.press(Keys.TAB, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert (page.selected("rows"), page.selected("cols")) == ([1], [2])
    page.press(Keys.ENTER)
    assert page.run("return location.hash") == "#row=1&column=2"


def test_the_heat_map_shows_the_exact_weight_under_the_pointer(driver: WebDriver, tmp_path: Path) -> None:
    weights = np.array([[[0.1234, 0.8766], [0.6543, 0.3457]]])
    answer = Answer("ab", "xy", 0.0, (AttentionMap("decoder", ("x", "y"), ("a", "b"), weights),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    page.hover_cell(1, 0)
    assert page.one(".tip").text == "“y” attends to “a” 0.6543"
    page.hover_cell(0, 1)
    assert page.one(".tip").text == "“x” attends to “b” 0.8766"
    page.hover(page.tokens("rows")[0])
    assert not page.shown(".tip")


def test_a_zoomed_heat_map_reads_the_cell_under_the_pointer(driver: WebDriver, tmp_path: Path) -> None:
    names = tuple(f"t{i}" for i in range(200))
    weights = np.random.default_rng(0).dirichlet(np.full(200, 0.1), size=(1, 200))
    answer = Answer("a", "", 0.0, (AttentionMap("encoder.0", names, names, weights),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    page.run("document.querySelector('.map').focus()")
    page.press(*"+++++++")
    assert page.run("const { cell, fit } = qkvExplorer.shown().handle.heatMap.view; return cell / fit") > 8
    x, y = page.run("const { x, y } = qkvExplorer.shown().handle.heatMap.view; return [x, y]")
    row, column = int(y) + 3, int(x) + 4
    page.hover_cell(row, column)
    assert page.one(".tip").text == f"“t{row}” attends to “t{column}” {weights[0, row, column]:.4f}"
    page.press("0")
    assert page.run("const { x, y } = qkvExplorer.shown().handle.heatMap.view; return [x, y]") == [0, 0]


def test_special_tokens_can_be_hidden_and_rows_rescaled(driver: WebDriver, tmp_path: Path) -> None:
    tokens = ("[CLS]", "a", "b", "[SEP]")
    weights = np.array([[[0.4, 0.1, 0.1, 0.4], [0.5, 0.2, 0.1, 0.2], [0.1, 0.3, 0.3, 0.3], [0.7, 0.1, 0.1, 0.1]]])
    answer = Answer("a b", "", 0.0, (AttentionMap("encoder.0", tokens, tokens, weights),), special=("[CLS]", "[SEP]"))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    page.choose("Special tokens", "hidden")
    assert page.texts("cols") == ["a", "b"]
    np.testing.assert_allclose(page.plane(), weights[0, 1:3, 1:3].ravel(), atol=1e-5)
    assert page.one(".ticks").text.split()[-1] == "0.70"  # the scale includes the special tokens
    page.choose("Special tokens", "hidden, rows rescaled to 1")
    inner = weights[0, 1:3, 1:3]
    np.testing.assert_allclose(page.plane(), (inner / inner.sum(axis=1, keepdims=True)).ravel(), atol=2e-5)
    assert "rows rescaled to 1" in page.one(".legend").text


def test_the_color_scale_ends_at_the_largest_rescaled_weight(driver: WebDriver, tmp_path: Path) -> None:
    tokens = ("[CLS]", "a", "b", "c", "[SEP]")
    weights = np.random.default_rng(3).dirichlet(np.full(5, 2.0), size=(2, 2, 5))
    maps = tuple(AttentionMap(f"encoder.{i}", tokens, tokens, each) for i, each in enumerate(weights))
    answer = Answer("a b c", "", 0.0, maps, special=("[CLS]", "[SEP]"))
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#special=renormalized&head=1")
    rescaled = weights[:, :, 1:4, 1:4] / weights[:, :, 1:4, 1:4].sum(axis=3, keepdims=True)
    peak = "return qkvExplorer.shown().handle.heatMap.scale().peak"
    assert page.run(peak) == pytest.approx(rescaled.max(), abs=1e-4)
    assert page.one(".ticks").text.split()[-1] == f"{rescaled.max():.2f}"
    page.choose("Color scale", "one for each head")
    assert page.run(peak) == pytest.approx(rescaled[0, 1].max(), abs=1e-4)
    page.choose("Layer", "encoder.1")
    assert page.run(peak) == pytest.approx(rescaled[1, 1].max(), abs=1e-4)


def test_layers_without_special_tokens_have_no_control_of_them(driver: WebDriver, tmp_path: Path) -> None:
    plain, marked = ("a", "b"), ("a", "[SEP]")
    maps = tuple(
        AttentionMap(f"encoder.{i}", each, each, np.full((1, 2, 2), 0.5)) for i, each in enumerate((plain, marked))
    )
    answer = Answer("a b", "", 0.0, maps, special=("[SEP]",))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    assert not page.shown("select[aria-label='Special tokens']")
    page.choose("Layer", "encoder.1")
    assert page.shown("select[aria-label='Special tokens']")


def test_weights_are_exact_to_the_stated_precision(driver: WebDriver, tmp_path: Path) -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(7), size=(3, 5))
    answer = Answer("a", "b", 0.0, (AttentionMap("decoder", tuple("vwxyz"), tuple("abcdefg"), weights),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    np.testing.assert_allclose(page.plane(), weights.mean(axis=0).ravel(), atol=0.5 / 65535 + 1e-7, rtol=0)
    page.tokens("heads")[3].click()
    np.testing.assert_allclose(page.plane(), weights[2].ravel(), atol=0.5 / 65535 + 1e-7, rtol=0)


def test_the_color_scale_is_shared_unless_each_head_has_its_own(driver: WebDriver, tmp_path: Path) -> None:
    weights = np.stack([np.eye(4), np.full((4, 4), 0.25)])
    answer = Answer("abcd", "", 0.0, (AttentionMap("encoder.0", tuple("abcd"), tuple("abcd"), weights),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#head=1")
    pale = page.lightness("cols")[0]
    assert page.one(".ticks").text.split()[-1] == "1.00"
    page.choose("Color scale", "one for each head")
    assert page.lightness("cols")[0] < pale
    assert page.one(".ticks").text.split()[-1] == "0.25"
    assert "color scale: one for each head" in page.one(".legend .note").text


def test_copied_tokens_equal_the_original_text(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    page.run("getSelection().selectAllChildren(document.getElementById('cols'))")
    assert page.run("return getSelection().toString()") == SOURCE
    assert page.run("return document.querySelector('#cols .mark').dataset.mark") == "␣"


def test_the_page_follows_the_preferred_color_scheme(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    light, light_picture = page.lightness("cols"), page.picture()
    prefer(driver, "dark")
    WebDriverWait(driver, 5).until(lambda _: page.lightness("cols") != light)
    dark = page.lightness("cols")
    assert light.index(min(light)) == dark.index(max(dark)) == READ[0]
    assert max(dark[1:3]) < 200 < 600 < min(light[1:3])
    assert page.picture() != light_picture
    page.one("#theme").click()
    assert page.lightness("cols") == light  # the chosen theme goes before the system's


def wide_page(driver: WebDriver, path: Path, tokens: int) -> Page:
    """A page with an attention map of this many tokens on both sides."""
    names = tuple(f"t{i}" for i in range(tokens))
    weights = np.random.default_rng(0).dirichlet(np.ones(tokens), size=(2, tokens))
    return Page(driver, save_page([Answer("a", "b", 0.0, (AttentionMap("encoder", names, names, weights),))], path))


def test_hovering_changes_a_number_of_elements_linear_in_the_tokens(driver: WebDriver, tmp_path: Path) -> None:
    script = """
        const observer = new MutationObserver(() => {});
        observer.observe(document.documentElement, {attributes: true, childList: true, subtree: true});
        for (let i = 0; i < 10; i++) qkvExplorer.state.set({ pointed: { row: 2 * i, column: i } });
        return observer.takeRecords().length / 10;
    """
    few, many = (wide_page(driver, tmp_path / "page.html", tokens).run(script) for tokens in (25, 200))
    assert 0 < few < 12 * 25
    assert many < 9 * few  # of 8 times the tokens


def test_long_texts_show_a_window_of_tokens_around_the_selected_one(driver: WebDriver, tmp_path: Path) -> None:
    page = wide_page(driver, tmp_path / "page.html", 800)
    assert len(page.tokens("rows")) == 400
    page.run("qkvExplorer.state.set({ pointed: { row: 700, column: null } })")
    (selected,) = page.selected("rows")
    assert page.texts("rows")[selected] == "t700"
    assert len(page.tokens("rows")) == 400


def test_spaces_are_marked_at_the_edges_of_a_token_only(driver: WebDriver, tmp_path: Path) -> None:
    tokens = (" a", "b c", "d  e", "\u00a0", "f ")
    weights = np.full((1, 5, 5), 0.2)
    answer = Answer("x", "", -1.0, (AttentionMap("encoder", tokens, tokens, weights),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    assert page.texts("rows") == [*tokens]  # as they are copied
    script = "return [...document.querySelectorAll('#rows [role=option]')].map(c => c.querySelectorAll('.mark').length)"
    assert page.run(script) == [1, 0, 2, 1, 1]


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        (tuple(map(str, range(200))), {"0": 0, "20": 20, "180": 180}),  # memory locations
        (tuple(f"{0.08 * frame:.2f}" for frame in range(200)), {"0.00": 0, "1.60": 20, "14.40": 180}),  # seconds
        (tuple(f"t{index}" for index in range(200)), {"10": 9, "190": 189}),
        (tuple("31" * 100), {"10": 9, "190": 189}),  # digits as tokens
    ],
    ids=["locations", "seconds", "words", "digits"],
)
def test_axes_of_small_cells_have_the_numbers_of_the_tokens(
    driver: WebDriver, tmp_path: Path, columns: tuple[str, ...], labels: dict[str, int]
) -> None:
    weights = np.full((1, 3, len(columns)), 1 / len(columns))
    answer = Answer("a", "", 0.0, (AttentionMap("layer", ("1", "2", "3"), columns, weights),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#view=matrix")
    items = page.run("return qkvExplorer.shown().handle.figure().items")
    cells = [item for item in items if item["type"] == "rect"]
    middles = {round(cell["x"] + cell["w"] / 2, 3): column for column, cell in enumerate(cells[: len(columns)])}
    top = cells[0]["y"]
    shown = {item["text"]: middles[round(item["x"], 3)] for item in items if item["type"] == "text" and item["y"] < top}
    assert shown.items() >= labels.items()
    assert all(abs(a - b) >= 5 for a, b in pairwise(sorted(shown.values())))
