"""Pages of the explorer in a real browser."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("selenium", reason="needs selenium, to drive a real browser")
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from qkv.pipelines.output import Answer, AttentionMap

__all__ = ["ActionChains", "Keys", "WebDriver", "WebDriverWait"]

WebDriver = webdriver.Chrome
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,1000"
)

SOURCE, TEXT = "5. März 2026", "2026-03-05"
READ = [8, 9, 10, 11, 3, 4, 5, 7, 0, 1]  # the input character that each output character reads
HOSTILE = "</script><img src=x onerror=\"document.title='broken'\"><!--"


def attention(layer: str, rows: str, columns: str, read: list[list[int]]) -> AttentionMap:
    """Head h puts weight 0.7 of row i on column read[h][i] and spreads the rest."""
    weights = np.full((len(read), len(rows), len(columns)), 0.3 / (len(columns) - 1))
    for head, targets in enumerate(read):
        weights[head, range(len(rows)), targets] = 0.7
    return AttentionMap(layer, tuple(rows), tuple(columns), weights)


DATE = Answer(SOURCE, TEXT, -0.25, (attention("decoder", TEXT, SOURCE, [READ]),), unknown=("ä",))
LAYERS = Answer(
    "abcd",
    "wxyz",
    -1.5,
    (
        attention("decoder.1.cross", "wxyz", "abcd", [[0, 1, 2, 3], [3, 2, 1, 0]]),
        attention("encoder.0", "abcd", "abcd", [[1, 1, 1, 1], [2, 2, 2, 2]]),
    ),
)


def start(profile: Path) -> webdriver.Chrome:
    """Start Chromium with an empty profile; skip the test if it is not installed."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


class Page:
    """A page opened in the browser."""

    def __init__(self, driver: webdriver.Chrome, path: Path, state: str = "") -> None:
        self.driver = driver
        prefer(driver, "light")
        driver.get("about:blank")  # a change of the address alone would not load the page again
        driver.get(f"{path.as_uri()}{state}")
        WebDriverWait(driver, 10).until(lambda _: not self.all("[aria-busy=true]"))  # images that are not decoded yet

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def tokens(self, group: str) -> list[WebElement]:
        return self.all(f"#{group} [role=option]")

    def tab(self, name: str) -> None:
        self.one(f"#tabs [data-view={name}]").click()

    def choose(self, label: str, text: str) -> None:
        Select(self.one(f"select[aria-label='{label}']")).select_by_visible_text(text)

    def hover(self, element: WebElement) -> None:
        ActionChains(self.driver, duration=0).move_to_element(element).perform()

    def press(self, *keys: str) -> None:
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def hover_cell(self, row: int, column: int, *, click: bool = False, side: int = 0) -> None:
        """Move the pointer to a cell of the heat map; on a page of two, of that of a side."""
        script = """
            const [row, column, side] = arguments, canvas = document.querySelectorAll(".map")[side];
            canvas.scrollIntoView({ block: "center" });
            const { heatMap, heatMaps } = qkvExplorer.shown().handle;
            const { x, y, left, top, cell } = (heatMaps?.[side] ?? heatMap).view;
            const box = canvas.getBoundingClientRect();
            return [box.x + left + (column + 0.5 - x) * cell, box.y + top + (row + 0.5 - y) * cell];
        """
        self._move(*self.run(script, row, column, side), click=click)

    def hover_panel(self, panel: int, row: int, column: int, *, click: bool = False) -> None:
        """Move the pointer to a cell of a panel over time."""
        script = """
            const [panel, row, column] = arguments, { timeline } = qkvExplorer.shown().handle;
            const { x, y, w, h } = timeline.cornerOf({ panel, row, column });
            scrollBy(0, timeline.canvas.getBoundingClientRect().y + y - innerHeight / 2);
            const box = timeline.canvas.getBoundingClientRect();
            return [box.x + x - w / 2, box.y + y + h / 2];
        """
        self._move(*self.run(script, panel, row, column), click=click)

    def _move(self, x: float, y: float, *, click: bool) -> None:
        actions = ActionChains(self.driver, duration=0)
        actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        if click:
            actions.w3c_actions.pointer_action.click()
        actions.perform()

    def lightness(self, group: str) -> list[int]:
        """Return the brightness of each cell; in the light scheme, more attention is darker."""
        cells = "return [...document.querySelectorAll(`#${arguments[0]} [role=option]`)]"
        colors = self.run(f"{cells}.map(cell => getComputedStyle(cell).backgroundColor)", group)
        return [sum(map(int, re.findall(r"\d+", color)[:3])) for color in colors]

    def lit(self, group: str) -> int:
        """Return the highlighted token."""
        levels = self.lightness(group)
        (strongest,) = [i for i, level in enumerate(levels) if level == min(levels)]
        return strongest

    def selected(self, group: str) -> list[int]:
        cells = "return [...document.querySelectorAll(`#${arguments[0]} [role=option]`)]"
        chosen = self.run(f"{cells}.map(cell => cell.ariaSelected === 'true')", group)
        return [i for i, is_chosen in enumerate(chosen) if is_chosen]

    def texts(self, group: str) -> list[str]:
        """Return the text of each option of a group."""
        cells = "return [...document.querySelectorAll(`#${arguments[0]} [role=option]`)]"
        return list(self.run(f"{cells}.map(cell => cell.textContent)", group))

    def text(self, name: str) -> str:
        return self.one(f"#{name}").text

    def candidates(self, box: str = "predictions") -> list[tuple[str, float]]:
        """Return the candidates of a list with their probabilities in percent."""
        script = """
            return [...document.querySelectorAll(`#${arguments[0]} li`)].map(item => [
              item.querySelector(".token").textContent, Number(item.querySelector(".value").textContent.slice(0, -2))]);
        """
        return [(text, percent) for text, percent in self.run(script, box)]

    def shown(self, selector: str) -> bool:
        return any(element.is_displayed() for element in self.all(selector))

    def picture(self, selector: str = ".map") -> str:
        """Return the pixels of a canvas, once it is drawn."""
        script = """
            const [selector, done] = arguments, draw = () => done(document.querySelector(selector).toDataURL());
            requestAnimationFrame(() => requestAnimationFrame(draw));
        """
        return str(self.driver.execute_async_script(script, selector))  # type: ignore[no-untyped-call]

    def plane(self) -> list[float]:
        """Return the weights of the heat map that is shown, as the pointer reads them."""
        return self.run(
            """
            const { rows, columns, at } = qkvExplorer.shown().handle.heatMap.plane();
            return rows.flatMap(row => columns.map(column => at(row, column).value));
            """
        )

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)  # type: ignore[no-untyped-call]

    def complaints(self) -> list[str]:
        """Return the messages of the browser's console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


def prefer(driver: webdriver.Chrome, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def narrow(driver: webdriver.Chrome, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def requests(driver: webdriver.Chrome, path: Path) -> list[str]:
    """Return the addresses that a page has requested, its own included."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [request["request"]["url"] for request in sent if request["documentURL"].startswith(path.as_uri())]
