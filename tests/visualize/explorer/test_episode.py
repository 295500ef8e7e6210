"""Few-shot episodes in the explorer, in a real browser."""

from pathlib import Path

import numpy as np
import pytest

from qkv.visualize import save_page
from tests.visualize.explorer.browser import Page, WebDriver, requests
from tests.visualize.test_episode_figure import seen

pytestmark = pytest.mark.browser
WEIGHTS = [0.1, 0.6, 0.2, 0.1]  # three support images of the classes 3, 2 and 1, and the query


def tiles(page: Page) -> list[list[str]]:
    """Return the caption and the number of each image."""
    return [tile.text.split("\n") for tile in page.all("#episode [role=option]")]


def test_the_query_is_first_and_each_image_has_its_weight(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    driver.get_log("performance")
    path = save_page([seen(WEIGHTS)], tmp_path / "page.html", model="snail", command="qkv view snail 3")
    page = Page(driver, path)
    assert page.text("heading") == "episode <3> → 2"
    assert page.text("meta") == "layer trunk.<0> · correct"
    assert tiles(page) == [["query → 2", "0.1000"], ["class 3", "0.1000"], ["class 2", "0.6000"], ["class 1", "0.2000"]]
    widths = page.run("return [...document.querySelectorAll('#episode .fill')].map(bar => parseFloat(bar.style.width))")
    np.testing.assert_allclose(widths, [100 / 6, 100 / 6, 100, 100 / 3], atol=0.1)
    outlined = page.run("return [...document.querySelectorAll('#episode .same')].map(tile => tile.dataset.index)")
    assert outlined == ["1"]  # the support image of the class of the query
    grey = """
        return [...document.querySelectorAll("#episode canvas")].map(canvas =>
          canvas.getContext("2d").getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data[0]);
    """
    assert page.run(grey) == [180, 0, 60, 120]
    assert [one for one in page.complaints() if "getImageData" not in one] == []
    assert requests(driver, path) == [path.as_uri()]


def test_pointing_at_an_image_shows_its_weight_in_each_layer(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([seen(WEIGHTS)], tmp_path / "page.html"))
    assert page.text("readout") == "Support image 2, class 2: trunk.<0> 0.6000"  # the largest weight
    page.hover(page.all("#episode [data-index='2']")[0])
    assert page.text("readout") == "Support image 3, class 1: trunk.<0> 0.2000"
    page.all("#episode [data-index='3']")[0].click()
    assert page.run("return location.hash") == "#column=3"
    assert page.text("readout") == "The query itself: trunk.<0> 0.1000"


def test_a_wrong_prediction_is_shown_with_the_label(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([seen(WEIGHTS, guess=0)], tmp_path / "page.html"))
    assert page.text("meta") == "layer trunk.<0> · wrong: the label is class 2"
    assert tiles(page)[0] == ["query → 1", "0.1000"]
