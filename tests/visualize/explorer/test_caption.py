"""Captions in the explorer, in a real browser."""

from pathlib import Path

import numpy as np
import pytest

from qkv.pipelines.captioner import Caption
from qkv.visualize import save_page
from qkv.visualize.explorer import build_payload
from tests.visualize.captions import PIXELS, captioned
from tests.visualize.explorer.browser import HOSTILE, Page, WebDriver

pytestmark = pytest.mark.browser


def blue(page: Page, selector: str) -> list[int]:
    """Return how blue each cell of a grid of 2 by 3 is."""
    script = """
        const canvas = document.querySelector(arguments[0]), context = canvas.getContext("2d");
        return Array.from({ length: 6 }, (_, i) => {
          const x = (i % 3 + 0.5) / 3 * canvas.width, y = (Math.floor(i / 3) + 0.5) / 2 * canvas.height;
          const [r, , b] = context.getImageData(x, y, 1, 1).data;
          return b - r;
        });
    """
    return list(page.run(script, selector))


def test_each_word_has_a_tile_colored_by_its_attention(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    answer = captioned((" a", " <b>circle</b>"), (1, 5), source=HOSTILE)
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    assert page.text("heading") == f"{HOSTILE} → a <b>circle</b>"
    assert page.texts("words") == [" a", " <b>circle</b>"]
    for word, cell in ((0, 1), (1, 5)):
        page.hover(page.tokens("words")[word])
        for levels in (blue(page, f"#words [data-index='{word}'] canvas"), blue(page, "#focus")):
            assert int(np.argmax(levels)) == cell
            assert sorted(levels)[:5] == [0] * 5
        assert f"row {cell // 3 + 1}, column {cell % 3 + 1} 1.0000" in page.text("readout")
    page.tokens("words")[1].click()
    assert page.run("return location.hash") == "#row=1"
    titles = "return qkvExplorer.shown().handle.figure().items.map(item => item.text)"
    assert page.run(titles) == ["Image", None, "Attention of <b>circle</b>", None]  # as SVG and PNG
    assert page.all("img, #view b b") == []
    assert [one for one in page.complaints() if "getImageData" not in one] == []  # which only this test calls


def test_a_photograph_keeps_its_aspect_ratio(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([captioned((" a",), (0,))], tmp_path / "page.html"))
    for name in ("#original", "#focus", "#words canvas"):
        size = page.one(name).size
        assert size["width"] / size["height"] == pytest.approx(12 / 8, abs=0.02)


@pytest.mark.parametrize(("text", "note"), [("a cat", "No attention"), ("", "empty")])
def test_a_caption_without_attention_shows_its_image(driver: WebDriver, tmp_path: Path, text: str, note: str) -> None:
    driver.get_log("browser")
    plain = Caption("a.png", text, 0.0, pixels=PIXELS, grid=(2, 3))
    page = Page(driver, save_page([plain], tmp_path / "page.html"))
    assert page.shown("#original")
    assert note in page.one("#view").text
    assert page.complaints() == []


def test_large_photographs_are_reduced_to_fit_into_a_page() -> None:
    photograph = np.random.default_rng(0).integers(0, 256, (900, 600, 3), dtype=np.uint8)
    answers = [Caption("a.png", "a", 0.0, pixels=photograph, grid=(2, 3)) for _ in range(60)]
    examples = build_payload(answers)["examples"]
    assert len(examples) == 60
    pictures = [example["picture"] for example in examples]
    assert 3_000_000 < sum(len(picture["values"]) for picture in pictures) < 7_500_000
    assert pictures[0]["width"] < 600
    assert pictures[0]["width"] / pictures[0]["height"] == pytest.approx(2 / 3, abs=0.01)
    (alone,) = build_payload(answers[:1])["examples"]
    assert (alone["picture"]["height"], alone["picture"]["width"]) == (900, 600)
