"""Images in the explorer, in a real browser."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.interpret.image_probe import PictureAnswer, PictureProbe
from qkv.models.vit import ViT, ViTConfig
from qkv.pipelines.output import AttentionMap
from qkv.visualize import save_page
from tests.visualize.explorer.browser import DATE, ActionChains, Keys, Page, WebDriver

pytestmark = pytest.mark.browser
PATCHES = ("1,1", "1,2", "1,3", "2,1", "2,2", "2,3")


def pictured() -> PictureAnswer:
    """The class token attends mostly to patch 1,2, each patch to the next, and head 1 only to patch 2,1."""
    weights = np.full((2, 8, 7), 0.05)
    weights[0, 0, 2] = 0.7
    weights[0, range(1, 7), [2, 3, 4, 5, 6, 1]] = 0.7
    weights[1] = np.eye(7)[4]
    weights[:, 7] = weights[:, :7].mean(axis=1)
    rows = ("[class]", *PATCHES, "[mean]")
    maps = tuple(AttentionMap(f"encoder.{layer}", rows, rows[:-1], weights) for layer in (0, 1))
    return PictureAnswer("cat.png", "cat", -0.1, maps, pixels=np.full((8, 12, 3), 120, dtype=np.uint8), grid=(2, 3))


def colored(page: Page) -> list[int]:
    """Return how blue each patch of a grey image is."""
    script = """
        const canvas = document.querySelector("#patches"), context = canvas.getContext("2d");
        const [down, across] = qkvExplorer.payload.examples[0].picture.grid;
        return Array.from({ length: down * across }, (_, i) => {
          const x = (i % across + 0.5) / across * canvas.width;
          const y = (Math.floor(i / across) + 0.5) / down * canvas.height;
          const [r, , b] = context.getImageData(x, y, 1, 1).data;
          return b - r;
        });
    """
    return list(page.run(script))


def test_an_image_is_colored_by_attention(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    page = Page(driver, save_page([pictured(), DATE], tmp_path / "page.html"), "#curve=linear")
    assert page.text("heading") == "cat.png → cat"
    assert not page.shown(".map")
    page.tokens("heads")[1].click()
    levels = colored(page)
    assert max(levels) == levels[1] > 5 * levels[0] > 0
    page.tokens("heads")[2].click()
    assert [level > 0 for level in colored(page)] == [False, False, False, True, False, False]
    page.tokens("readers")[1].click()
    assert page.selected("readers") == [1]
    assert page.text("readout").startswith("“[mean]” attends to row 2, column 1 1.0000")
    page.tokens("examples")[1].click()
    assert page.shown(".map")
    assert not page.shown("#patches")
    assert [one for one in page.complaints() if "getImageData" not in one] == []  # which only this test calls


def test_an_image_keeps_its_aspect_ratio(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([pictured()], tmp_path / "page.html"))
    for name in ("original", "patches"):
        size = page.one(f"#{name}").size
        assert size["width"] / size["height"] == pytest.approx(12 / 8, abs=0.02)


def test_hovering_a_patch_shows_its_attention(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([pictured()], tmp_path / "page.html"))
    page.tokens("heads")[1].click()
    canvas = page.one("#patches")
    across, down = canvas.size["width"] // 3, canvas.size["height"] // 4
    ActionChains(driver).move_to_element_with_offset(canvas, across, -down).perform()
    assert page.text("readout").startswith("row 1, column 3 attends to row 2, column 1 0.7000")
    assert colored(page)[3] == max(colored(page))
    assert page.selected("readers") == []
    page.hover(page.tokens("heads")[0])
    assert page.text("readout").startswith("“[class]” attends to")
    page.run("document.querySelector('#patches').focus()")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert page.text("readout").startswith("row 2, column 2 attends to")


def test_an_image_stays_visible_under_even_weights(driver: WebDriver, tmp_path: Path) -> None:
    rows = ("[class]", *PATCHES, "[mean]")
    maps = (AttentionMap("encoder.0", rows, rows[:-1], np.full((1, 8, 7), 1 / 7)),)
    pixels = np.zeros((8, 12, 3), dtype=np.uint8)
    pixels[:, 6:] = 255
    answer = PictureAnswer("even.png", "cat", -0.1, maps, pixels=pixels, grid=(2, 3))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    script = """
        const canvas = document.querySelector("#patches"), context = canvas.getContext("2d");
        return [0.1, 0.9].map(x => context.getImageData(x * canvas.width, canvas.height / 3, 1, 1).data[1]);
    """
    dark, bright = page.run(script)
    assert bright - dark > 105  # of 176, the gray image: even weights are a fourth of the scale at most
    ticks = "return [...document.querySelectorAll('.ticks span')].map(tick => tick.textContent)"
    assert page.run(ticks)[-1] == "0.67"  # 4 / 6


def test_rollout_is_the_product_of_the_layers_over_an_image_of_its_own_aspect_ratio(
    driver: WebDriver, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = ViTConfig(channels=1, height=8, width=12, patch=4, dim=16, heads=2, layers=2, ffn_dim=32, classes=None)
    model = ViT(config).eval()
    Image.fromarray(np.arange(128, dtype=np.uint8).reshape(16, 8)).save(tmp_path / "image.png")
    answer = PictureProbe(model)(tmp_path / "image.png")
    mixed = np.eye(7)
    for layer in answer.attention:
        mixed = (0.5 * layer.weights[:, :7].mean(axis=0) + 0.5 * np.eye(7)) @ mixed
    state = "#layer=rollout of all layers&row=0"
    page = Page(driver, save_page([answer], tmp_path / "page.html"), state)
    size = page.one("#patches").size
    assert size["width"] / size["height"] == pytest.approx(8 / 16, abs=0.05)  # of the file, not of the model's input
    best = 1 + int(np.argmax(mixed[0, 1:]))
    row, column = PATCHES[best - 1].split(",")
    assert f"row {row}, column {column} {mixed[0, best]:.4f}" in page.text("readout")


def test_an_image_is_shown_at_its_own_resolution(driver: WebDriver, tmp_path: Path) -> None:
    config = ViTConfig(channels=3, height=8, width=8, patch=4, dim=16, heads=2, layers=1, ffn_dim=32, classes=3)
    pixels = np.zeros((300, 450, 3), dtype=np.uint8)
    pixels[:, 224:226] = 255  # a line of two pixels, which the model's input of 8 x 8 pixels does not have
    Image.fromarray(pixels).save(tmp_path / "line.png")
    answer = PictureProbe(ViT(config).eval())(tmp_path / "line.png")
    assert answer.pixels.shape == (300, 450, 3)
    driver.get_log("browser")
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    script = """
        const canvas = document.querySelector("#original"), context = canvas.getContext("2d");
        const { data } = context.getImageData(0, canvas.height / 4, canvas.width, 1);
        return [...Array(canvas.width).keys()].filter(x => data[4 * x + 1] > 128).map(x => x / canvas.width);
    """
    bright = page.run(script)
    assert 1 <= len(bright) <= 6
    assert all(abs(x - 0.5) < 0.01 for x in bright)
    total = sum(percent for _, percent in page.candidates())
    assert (len(page.candidates()), total) == (3, pytest.approx(100, abs=0.02))
    assert page.complaints() == []


def test_the_input_has_its_colors_and_the_attention_is_over_grey(driver: WebDriver, tmp_path: Path) -> None:
    pixels = np.tile(np.array([200, 60, 20], dtype=np.uint8), (8, 12, 1))
    weights = np.zeros((1, 8, 7))
    weights[:, :, 0] = 1.0  # nothing on the patches
    rows = ("[class]", *PATCHES, "[mean]")
    maps = (AttentionMap("encoder.0", rows, rows[:-1], weights),)
    answer = PictureAnswer("red.png", "cat", -0.1, maps, pixels=pixels, grid=(2, 3))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    script = """
        return ["#original", "#patches"].map(selector => {
          const canvas = document.querySelector(selector);
          return [...canvas.getContext("2d").getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data].slice(0, 3);
        });
    """
    color, grey = page.run(script)
    assert color == [200, 60, 20]
    assert len(set(grey)) == 1
    assert 100 < grey[0] < 130  # of a luminance of 98


def test_the_gray_image_keeps_most_of_the_contrast(driver: WebDriver, tmp_path: Path) -> None:
    rows = ("[class]", *PATCHES, "[mean]")
    maps = (AttentionMap("encoder.0", rows, rows[:-1], np.tile(np.eye(7)[0], (1, 8, 1))),)
    pixels = np.zeros((8, 12, 3), dtype=np.uint8)
    pixels[:, 6:] = 255
    answer = PictureAnswer("even.png", "cat", -0.1, maps, pixels=pixels, grid=(2, 3))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    script = """
        const canvas = document.querySelector("#patches"), context = canvas.getContext("2d");
        return [0.1, 0.9].map(x => context.getImageData(x * canvas.width, canvas.height / 3, 1, 1).data[1]);
    """
    assert page.run(script) == pytest.approx([48, 224], abs=1)


@pytest.mark.parametrize("level", [0, 128, 255])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_attention_is_visible_on_all_pixels(driver: WebDriver, tmp_path: Path, level: int, share: float) -> None:
    weights = np.tile(share * np.eye(7)[4] + (1 - share) * np.eye(7)[0], (1, 8, 1))
    weights[0, 1] = np.eye(7)[1]  # the end of the scale
    rows = ("[class]", *PATCHES, "[mean]")
    maps = (AttentionMap("encoder.0", rows, rows[:-1], weights),)
    pixels = np.full((8, 12, 3), level, dtype=np.uint8)
    answer = PictureAnswer("flat.png", "cat", -0.1, maps, pixels=pixels, grid=(2, 3))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    script = """
        const canvas = document.querySelector("#patches"), context = canvas.getContext("2d");
        return [0.5, 2.5].map(x => [...context.getImageData(x / 3 * canvas.width, canvas.height * 0.75, 1, 1).data]);
    """
    attended, other = page.run(script)
    assert attended[2] - attended[0] > 80
    assert sum(abs(a - b) for a, b in zip(attended, other, strict=True)) > 80
