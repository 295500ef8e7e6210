"""The views of lines, of all heads and of beam search, in a real browser."""

from pathlib import Path

import numpy as np
import pytest

from qkv.interpret.beam_probe import SearchedAnswer, SearchNode
from qkv.interpret.head_statistics import head_statistics
from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize import save_page
from tests.visualize.explorer.browser import (
    DATE,
    LAYERS,
    READ,
    SOURCE,
    TEXT,
    ActionChains,
    Keys,
    Page,
    WebDriver,
    narrow,
)

pytestmark = pytest.mark.browser
NAMES = tuple(f"t{i}" for i in range(12))


def random_maps(layers: int, heads: int) -> tuple[AttentionMap, ...]:
    draw = np.random.default_rng(5)
    sizes = [[0.05, 0.3, 1, 5][(layer + head) % 4] for layer in range(layers) for head in range(heads)]
    planes = [draw.dirichlet(np.full(12, size), size=12) for size in sizes]
    return tuple(
        AttentionMap(f"encoder.{layer}", NAMES, NAMES, np.stack(planes[layer * heads : (layer + 1) * heads]))
        for layer in range(layers)
    )


def test_there_is_a_line_for_each_weight_of_at_least_a_hundredth(driver: WebDriver, tmp_path: Path) -> None:
    maps = random_maps(1, 3)
    page = Page(driver, save_page([Answer("a", "", 0.0, maps)], tmp_path / "page.html"), "#view=lines")
    for state, weights in (("average", maps[0].average), (1, maps[0].weights[1])):
        page.run("qkvExplorer.state.set({ head: arguments[0] })", state)
        assert len(page.all(".bipartite path")) == int((np.asarray(weights) >= 0.01).sum())
    assert [page.texts("query"), page.texts("key")] == [[*NAMES], [*NAMES]]


def test_pointing_at_a_query_lights_its_lines_and_keys(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"), "#view=lines")
    page.hover(page.tokens("query")[4])
    assert page.lit("key") == READ[4]
    assert page.text("readout").startswith(f"“{TEXT[4]}” attends to “{SOURCE[READ[4]]}” 0.7000")
    strokes = (
        "return [...document.querySelectorAll('.bipartite path')].map(path => path.getAttribute('stroke-opacity'))"
    )
    lit = sum(float(stroke) > 0.5 for stroke in page.run(strokes))
    assert lit == 1
    page.tokens("key")[5].click()
    assert page.run("return location.hash") == "#view=lines&column=5"
    assert page.lit("query") == READ.index(5)


def test_a_line_joins_the_middles_of_its_tokens(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"), "#view=lines")
    ends = page.run(
        """
        const svg = document.querySelector(".bipartite svg").getBoundingClientRect();
        const middle = cell => { const box = cell.getBoundingClientRect(); return box.y + box.height / 2 - svg.y; };
        const [path] = document.querySelectorAll(".bipartite path");
        const d = path.getAttribute("d").match(/[\\d.]+/g).map(Number);
        const cells = name => [...document.querySelectorAll(`#${name} [role=option]`)].map(middle);
        return { from: d[1], to: d[7], queries: cells("query"), keys: cells("key") };
        """
    )
    assert min(abs(ends["from"] - y) for y in ends["queries"]) < 1.5
    assert min(abs(ends["to"] - y) for y in ends["keys"]) < 1.5


@pytest.mark.parametrize("statistic", ["entropy", "distance", "diagonality"])
def test_heads_are_sorted_by_a_statistic(driver: WebDriver, tmp_path: Path, statistic: str) -> None:
    maps = random_maps(3, 4)
    values = {
        f"encoder.{layer} · {head}": getattr(head_statistics(np.asarray(each.weights)[head]), statistic)
        for layer, each in enumerate(maps)
        for head in range(4)
    }
    page = Page(driver, save_page([Answer("a", "", 0.0, maps)], tmp_path / "page.html"), "#view=model")
    page.choose("Sort by", statistic)
    names = "return [...document.querySelectorAll('#grid span:nth-of-type(1)')].map(name => name.textContent)"
    assert page.run(names) == sorted(values, key=values.__getitem__)
    page.choose("Order", "largest first")
    assert page.run(names) == sorted(values, key=values.__getitem__, reverse=True)
    shown = page.run("return [...document.querySelectorAll('#grid .value')].map(value => Number(value.textContent))")
    assert shown == pytest.approx(sorted(values.values(), reverse=True), abs=0.051)


def test_all_heads_share_one_color_scale_unless_each_has_its_own(driver: WebDriver, tmp_path: Path) -> None:
    weights = np.stack([np.eye(4), np.full((4, 4), 0.25)])
    answer = Answer("abcd", "", 0.0, (AttentionMap("encoder.0", tuple("abcd"), tuple("abcd"), weights),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#view=model")
    script = """
        return [...document.querySelectorAll("#grid canvas")].map(canvas => {
          const [r, g, b] = canvas.getContext("2d").getImageData(2, 2, 1, 1).data;
          return r + g + b;
        });
    """
    peaked, even = page.run(script)
    assert peaked < even - 200
    assert "one for all layers and heads" in page.one(".legend").text
    page.choose("Color scale", "one for each head")
    peaked, even = page.run(script)
    assert peaked == even
    assert "largest weight of each head" in page.one(".legend").text


def test_all_heads_are_a_grid_of_ascending_layers_by_kind(driver: WebDriver, tmp_path: Path) -> None:
    kinds = {"decoder.{}.cross": (10, 2, 0), "decoder.{}.self": (0, 2, 10), "encoder.{}": (0, 10, 2)}
    names = [kind.format(layer) for kind, layers in kinds.items() for layer in layers]
    weights = np.random.default_rng(2).dirichlet(np.ones(3), size=(9, 2, 3))
    maps = tuple(
        AttentionMap(name, tuple("abc"), tuple("abc"), each) for name, each in zip(names, weights, strict=True)
    )
    page = Page(driver, save_page([Answer("abc", "", 0.0, maps)], tmp_path / "page.html"), "#view=model")
    script = """
        return [...document.querySelectorAll(".layer-group")].map(group =>
          [group.ariaLabel, [...group.querySelectorAll(".row")].map(row => row.textContent)]);
    """
    ascending = ["0", "2", "10"]
    assert page.run(script) == [
        ["Encoder self-attention", ascending],
        ["Decoder self-attention", ascending],
        ["Decoder cross-attention", ascending],
    ]
    boxes = page.run("return [...document.querySelectorAll('#grid [role=option]')].map(e => e.getBoundingClientRect())")
    assert len(boxes) == 18
    first, second, below = boxes[:3]
    assert (second["y"], below["x"]) == (first["y"], first["x"])
    assert second["x"] > first["x"]
    assert below["y"] > first["y"]
    right = max(box["right"] for box in boxes)
    assert right > 0.6 * page.one("#grid").size["width"]
    page.tokens("grid")[5].click()
    page.hover(page.one("#title"))
    assert page.run("return location.hash") == "#view=matrix&layer=encoder.10&head=1"
    np.testing.assert_allclose(page.plane(), weights[names.index("encoder.10"), 1].ravel(), atol=1e-4)


def test_choosing_a_head_shows_its_matrix(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS], tmp_path / "page.html"), "#view=model")
    page.tokens("grid")[1].click()
    page.hover(page.one("#title"))  # away from the tokens that are now where the head was
    assert page.one("#tabs [aria-selected=true]").text == "Matrix"
    assert page.run("return location.hash") == "#view=matrix&layer=encoder.0&head=1"
    assert page.lit("cols") == 2


def searched() -> SearchedAnswer:
    """Two hypotheses, "ab" and "b", of a search with two beams."""

    def answer(text: str, score: float, read: list[int]) -> Answer:
        weights = np.eye(3)[read][None] * 0.8 + 0.2 / 3
        return Answer("xyz", text, score, (AttentionMap("decoder", tuple(text), tuple("xyz"), weights),))

    nodes = (
        SearchNode(0, -1, "a", -0.5, None, True),
        SearchNode(0, -1, "b", -1.0, None, True),
        SearchNode(0, -1, "<img>", -3.0, None, False),
        SearchNode(1, 0, "b", -0.6, None, True),
        SearchNode(1, 1, "</s>", -1.2, -0.6, False),
        SearchNode(2, 3, "</s>", -0.9, -0.3, False),
    )
    best, other = answer("ab", -0.3, [2, 0]), answer("b", -0.6, [1])
    return SearchedAnswer(
        best.source, best.text, best.score, best.attention, hypotheses=(best, other), leaves=(5, 4), nodes=nodes
    )


def test_the_tree_of_a_beam_search_marks_the_chosen_hypothesis(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    page = Page(driver, save_page([searched()], tmp_path / "page.html"), "#view=beams")
    assert page.texts("hypotheses") == ["1ab−0.300", "2b−0.600"]
    chosen = "return [...document.querySelectorAll('.tree .node.chosen title')].map(t => t.textContent.split(':')[0])"
    assert page.run(chosen) == ["“a”", "“b”", "“</s>”"]
    page.tokens("hypotheses")[1].click()
    assert page.run(chosen) == ["“b”", "“</s>”"]
    assert page.run("return location.hash") == "#view=beams&hypothesis=1"
    assert len(page.all(".tree .node")) == 5
    script = """
        return [...document.querySelectorAll(".tree .node")].map(node => {
          const [box, name, score] = ["rect", ".name", ".score"].map(part =>
            node.querySelector(part)?.getBoundingClientRect());
          return [name.right, score?.left ?? box.right, score?.right ?? box.right, box.right];
        });
    """
    for name, start, end, right in page.run(script):
        assert name < start <= end <= right
    page.choose("Candidates", "also those dropped")
    assert len(page.all(".tree .node")) == 6
    assert page.all("img") == []
    assert page.complaints() == []


def test_the_alignment_of_the_chosen_hypothesis_is_shown(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([searched()], tmp_path / "page.html"), "#view=beams")
    np.testing.assert_allclose(page.plane(), searched().hypotheses[0].attention[0].weights.ravel(), atol=1e-5)
    page.tokens("hypotheses")[1].click()
    np.testing.assert_allclose(page.plane(), searched().hypotheses[1].attention[0].weights.ravel(), atol=1e-5)
    page.hover_cell(0, 1)
    assert page.one(".tip").text == "“b” attends to “y” 0.8667"


def line_colors(page: Page) -> dict[str, int]:
    """Return the number of lines of each color."""
    script = """
        const counts = {};
        for (const path of document.querySelectorAll(".bipartite path"))
          counts[getComputedStyle(path).stroke] = (counts[getComputedStyle(path).stroke] ?? 0) + 1;
        return counts;
    """
    return dict(page.run(script))


def test_lines_of_several_heads_are_overlaid_in_different_hues(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    (layer,) = random_maps(1, 4)
    path = save_page([Answer("a", "", 0.0, (layer,))], tmp_path / "page.html")
    page = Page(driver, path, "#view=lines&head=1")
    assert len(line_colors(page)) == 1
    heads = page.tokens("heads")
    ActionChains(driver).key_down(Keys.SHIFT).click(heads[4]).key_up(Keys.SHIFT).perform()
    assert page.run("return location.hash") == "#view=lines&head=1&heads=1+3"
    counts = [int((layer.weights[head] >= 0.01).sum()) for head in (1, 3)]
    colors = line_colors(page)
    assert sorted(colors.values()) == sorted(counts)
    names = page.run("return [...document.querySelectorAll('.hue')].map(each => each.textContent)")
    swatches = page.run(
        "return [...document.querySelectorAll('.hue .swatch')].map(each => getComputedStyle(each).backgroundColor)"
    )
    assert names == ["head 1", "head 3"]
    assert [colors[swatch] for swatch in swatches] == counts
    page.hover(page.tokens("query")[2])
    readouts = page.run("return [...document.querySelectorAll('#readout > div')].map(each => each.textContent)")
    for head, line in zip((1, 3), readouts, strict=True):
        best = int(np.argmax(layer.weights[head, 2]))
        assert line.strip().startswith(f"head {head}: “t2” attends to “t{best}” {layer.weights[head, 2, best]:.4f}")
    again = Page(driver, path, "#view=lines&heads=1+3")
    assert line_colors(again) == colors
    again.tokens("heads")[1].click()  # without the shift key: this head alone
    assert again.run("return location.hash") == "#view=lines&head=0"
    assert again.complaints() == []


def test_heads_are_overlaid_with_the_keyboard(driver: WebDriver, tmp_path: Path) -> None:
    maps = random_maps(1, 3)
    page = Page(driver, save_page([Answer("a", "", 0.0, maps)], tmp_path / "page.html"), "#view=lines")
    page.run("document.querySelector('#overlay input').focus()")
    page.press(Keys.SPACE, Keys.TAB, Keys.TAB, Keys.SPACE)
    assert page.run("return location.hash") == "#view=lines&head=0&heads=0+2"
    assert page.run("return document.activeElement.value") == "2"
    assert len(line_colors(page)) == 2
    page.press(Keys.SPACE)
    assert page.run("return location.hash") == "#view=lines&head=0"


def test_labels_of_lines_are_not_cut_on_a_phone(driver: WebDriver, tmp_path: Path) -> None:
    names = ("␣Bahnhofstr", "␣ist")
    answer = Answer("a", "", 0.0, (AttentionMap("encoder.0", names, names, np.full((1, 2, 2), 0.5)),))
    narrow(driver, 390)
    try:
        page = Page(driver, save_page([answer], tmp_path / "page.html"), "#view=lines")
        script = "return [...document.querySelectorAll('.side [role=option]')].map(e => e.scrollWidth - e.clientWidth)"
        assert max(page.run(script)) <= 0
        assert page.run("return document.documentElement.scrollWidth") == 390
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
