"""Reports, pages without scripts, in a real browser: they share the look of the explorer."""

from pathlib import Path

import numpy as np
import pytest

from qkv import __version__
from qkv.metrics.class_metrics import Calibration, CalibrationBin, ConfusionMatrix
from qkv.metrics.intervals import Interval, WilsonInterval
from qkv.tasks.base.evaluation import Evaluation, Mistake
from qkv.visualize import save_page
from qkv.visualize.pages.comparison_page import Section, save_comparison
from qkv.visualize.pages.evaluation_page import save_evaluations
from tests.visualize.explorer.browser import DATE, HOSTILE, Page, WebDriver, narrow, prefer, requests

pytestmark = pytest.mark.browser
LABELS = (HOSTILE, *(f"label {number}" for number in range(1, 20)))


def evaluation_report(folder: Path) -> Path:
    """Write a wide confusion matrix, a calibration and a mistake."""
    counts = tuple(tuple(1000 * (row == column) for column in range(20)) for row in range(20))
    evaluation = Evaluation(
        20_000, "texts", {"loss": 0.5}, split="test", confusion=ConfusionMatrix(LABELS, counts),
        calibration=Calibration((CalibrationBin(0.9, 1.0, 20_000, 0.95, 1.0),)),
        mistakes=(Mistake(HOSTILE, "a" * 500, "{{title}}", 0.1),),
    )  # fmt: skip
    return save_evaluations([evaluation], folder / "report.html", HOSTILE, "qkv evaluate run")


def comparison_report(folder: Path) -> Path:
    """Write a wide table."""
    section = Section(
        HOSTILE, [f"column {i}" for i in range(20)], [[HOSTILE] * 20], [HOSTILE], (), [(HOSTILE, "x" * 500)]
    )
    return save_comparison(folder / "report.html", HOSTILE, [section], {"Model": HOSTILE, "Command": "qkv compare a b"})


REPORTS = [(evaluation_report, "qkv evaluate run"), (comparison_report, "qkv compare a b")]


@pytest.mark.parametrize(("write", "command"), REPORTS)
def test_a_report_names_its_command_and_runs_nothing(driver: WebDriver, tmp_path: Path, write, command: str) -> None:
    driver.get_log("browser")
    driver.get_log("performance")
    path = write(tmp_path)
    page = Page(driver, path)
    facts = page.one("footer").text
    for part in (HOSTILE, command, f"qkv{__version__}"):
        assert part in facts
    assert page.all("script, img:not([src^='data:'])") == []
    assert page.run("return document.title") != "broken"
    assert page.complaints() == []
    assert requests(driver, path) == [path.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("write", [write for write, _ in REPORTS])
def test_a_report_has_the_colors_of_the_explorer_and_fits_a_phone(
    driver: WebDriver, tmp_path: Path, write, scheme: str
) -> None:
    colors = "const { color, backgroundColor, fontFamily } = getComputedStyle(document.body);"
    explorer = Page(driver, save_page([DATE], tmp_path / "page.html"))
    prefer(driver, scheme)
    expected = explorer.run(f"{colors} return [color, backgroundColor, fontFamily];")
    page = Page(driver, write(tmp_path))
    prefer(driver, scheme)
    assert page.run(f"{colors} return [color, backgroundColor, fontFamily];") == expected
    try:
        narrow(driver, 390)
        page = Page(driver, write(tmp_path))
        assert page.run("return document.documentElement.scrollWidth") <= 390
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_long_texts_of_a_report_open_on_a_click(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, evaluation_report(tmp_path))
    summary = page.one("details summary")
    assert summary.text == "a" * 240 + "…"
    closed = page.one("details").size["height"]
    summary.click()
    assert page.one("details").size["height"] > 2 * closed
    assert "a" * 500 in page.one("details").text


def test_mistakes_of_images_have_thumbnails_and_paths_in_their_folder(driver: WebDriver, tmp_path: Path) -> None:
    files = [f"/data/photos/{name}" for name in ("cat/1.png", "dog/2.png")]
    pixels = [np.full((8, 6, colors), 200, dtype=np.uint8) for colors in (1, 3)]
    evaluation = Evaluation(
        2, "images", {"accuracy": 0.0}, split="test", pictures=dict(zip(files, pixels, strict=True)),
        mistakes=(Mistake(files[0], "dog", "cat", 0.33), Mistake(files[1], "cat", "dog", 0.4)),
    )  # fmt: skip
    page = Page(driver, save_evaluations([evaluation], tmp_path / "report.html", "run"))
    rows = [[cell.text for cell in row.find_elements("css selector", "td")] for row in page.all("tr")]
    assert rows[-2:] == [["", "cat/1.png", "dog", "cat", "0.330"], ["", "dog/2.png", "cat", "dog", "0.400"]]
    assert "in /data/photos" in page.one("section").text
    assert page.run("return [...document.images].map(image => [image.naturalWidth, image.naturalHeight])") == [
        [48, 64], [48, 64]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("interval", "method"), [(WilsonInterval(0.4, 0.6), "Wilson"), (Interval(0.4, 0.6), "bootstrap resampling")]
)
def test_a_report_names_the_method_of_its_intervals(interval: Interval, method: str, tmp_path: Path) -> None:
    evaluation = Evaluation(9, "texts", {"exact": 0.5}, split="test", intervals={"exact": interval})
    page = save_evaluations([evaluation], tmp_path / "report.html", "run").read_text(encoding="utf-8")
    assert f"95 % confidence interval ({method})" in page
