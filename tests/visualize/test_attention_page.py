"""The attention page in a real browser: highlighting, keyboard navigation and escaping."""

import json
import re
import shutil
from collections.abc import Iterator
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

from qkv.errors import InputError
from qkv.interpret.image_probe import PictureAnswer
from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize import save_page

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,1000"
)
browser = pytest.mark.browser

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


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield chrome
    chrome.quit()


class Page:
    """A page opened in the browser."""

    def __init__(self, driver: webdriver.Chrome, path: Path) -> None:
        self.driver = driver
        prefer(driver, "light")
        driver.get(path.as_uri())

    def tokens(self, group: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, f"#{group} [role=option]")

    def hover(self, element: WebElement) -> None:
        ActionChains(self.driver).move_to_element(element).perform()

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def lightness(self, group: str) -> list[int]:
        """Return the brightness of each cell; in the light scheme, more attention is darker."""
        colours = [cell.value_of_css_property("background-color") for cell in self.tokens(group)]
        return [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]

    def lit(self, group: str) -> int:
        """Return the highlighted token."""
        levels = self.lightness(group)
        (strongest,) = [i for i, level in enumerate(levels) if level == min(levels)]
        return strongest

    def selected(self, group: str) -> list[int]:
        return [i for i, cell in enumerate(self.tokens(group)) if cell.get_attribute("aria-selected") == "true"]

    def text(self, name: str) -> str:
        return self.driver.find_element(By.ID, name).text

    def shown(self, name: str) -> bool:
        return self.driver.find_element(By.ID, name).is_displayed()

    def picture(self) -> str:
        return str(self.run("return document.getElementById('map').toDataURL()"))

    def coloured(self) -> list[int]:
        """Return how blue each patch of a grey image is."""
        script = """
            const canvas = byId("patches"), [down, across] = picture().grid, context = canvas.getContext("2d");
            return Array.from({ length: down * across }, (_, i) => {
              const x = (i % across + 0.5) / across * canvas.width;
              const y = (Math.floor(i / across) + 0.5) / down * canvas.height;
              const [r, , b] = context.getImageData(x, y, 1, 1).data;
              return b - r;
            });
        """
        return list(self.run(script))

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)  # type: ignore[no-untyped-call]


def prefer(driver: webdriver.Chrome, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def narrow(driver: webdriver.Chrome, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def stored(path: Path) -> Any:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(data)


@browser
def test_the_page_opens_without_errors_or_network_access(driver: webdriver.Chrome, tmp_path: Path) -> None:
    driver.get_log("browser")
    driver.get_log("performance")
    path = save_page([DATE, LAYERS], tmp_path / "page.html", title="Dates")
    page = Page(driver, path)
    page.hover(page.tokens("rows")[3])
    assert driver.title == "Dates"
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    requests = [request["request"]["url"] for request in sent if request["documentURL"] == path.as_uri()]
    assert requests == [path.as_uri()]  # the page itself, and nothing on its behalf


@browser
def test_hovering_an_output_token_highlights_its_input_token(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    for i in (0, 4, 9):
        page.hover(page.tokens("rows")[i])
        assert page.selected("rows") == [i]
        assert page.lit("cols") == READ[i]
        assert page.text("readout").startswith(f"“{TEXT[i]}” attends to “{SOURCE[READ[i]].replace(' ', '␣')}” 0.7000")


@browser
def test_hovering_an_input_token_highlights_its_output_tokens(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    page.hover(page.tokens("cols")[5])
    assert page.lit("rows") == READ.index(5)
    assert page.text("readout").startswith("“r” is attended to by “3” 0.7000")
    assert len(set(page.lightness("cols"))) == 1  # the earlier light is out


@browser
def test_brightness_is_proportional_to_the_weight(driver: webdriver.Chrome, tmp_path: Path) -> None:
    weights = np.array([[[0.05, 0.1, 0.15, 0.3, 0.4]]])
    answer = Answer("abcde", "x", 0.0, (AttentionMap("decoder", ("x",), tuple("abcde"), weights),))
    levels = Page(driver, save_page([answer], tmp_path / "page.html")).lightness("cols")
    assert levels == sorted(levels, reverse=True)
    assert len(set(levels)) == 5


@browser
def test_switching_the_head_changes_the_heat_map(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS], tmp_path / "page.html"))
    heads = page.tokens("heads")
    assert [head.text for head in heads] == ["average", "head 0", "head 1"]
    pictures = [page.picture()]
    for head, read in ((1, 0), (2, 3)):
        heads[head].click()
        assert page.lit("cols") == read
        pictures.append(page.picture())
    assert len(set(pictures)) == 3


@browser
def test_switching_the_layer_keeps_the_head(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS], tmp_path / "page.html"))
    page.tokens("heads")[2].click()
    before = page.picture()
    Select(driver.find_element(By.ID, "layer")).select_by_visible_text("encoder.0")
    assert page.selected("heads") == [2]
    assert page.lit("cols") == 2
    assert page.picture() != before
    assert [cell.text for cell in page.tokens("rows")] == list("abcd")
    assert page.text("rows-label").lower() == "query"


@browser
def test_picking_another_example_shows_its_tokens(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS, DATE], tmp_path / "page.html"))
    page.tokens("examples")[1].click()
    assert page.text("heading") == f"{SOURCE} → {TEXT}"
    assert "score −0.25" in page.text("meta")
    assert "out of vocabulary: “ä”" in page.text("meta")
    assert len(page.tokens("cols")) == len(SOURCE)


@browser
def test_an_example_without_the_chosen_head_shows_the_average(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS, DATE], tmp_path / "page.html"))
    page.tokens("heads")[2].click()
    page.tokens("examples")[1].click()
    assert page.lit("cols") == READ[0]
    page.tokens("examples")[0].click()
    assert page.selected("heads") == [0]


@browser
def test_the_keyboard_alone_reaches_every_token_and_cell(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    page.press(Keys.TAB, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert (page.selected("rows"), page.lit("cols")) == ([2], READ[2])
    page.press(Keys.END)
    assert (page.selected("rows"), page.lit("cols")) == ([9], READ[9])
    page.press(Keys.TAB, Keys.ARROW_RIGHT)
    assert (page.selected("cols"), page.lit("rows")) == ([1], READ.index(1))
    page.press(Keys.TAB, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert (page.selected("rows"), page.selected("cols")) == ([1], [2])


@browser
def test_arrow_keys_move_through_the_examples(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE, LAYERS], tmp_path / "page.html"))
    page.press(Keys.TAB, Keys.ARROW_DOWN)
    assert page.text("heading") == "abcd → wxyz"


@browser
def test_the_heat_map_shows_the_exact_weight_under_the_pointer(driver: webdriver.Chrome, tmp_path: Path) -> None:
    weights = np.array([[[0.1234, 0.8766], [0.6543, 0.3457]]])
    answer = Answer("ab", "xy", 0.0, (AttentionMap("decoder", ("x", "y"), ("a", "b"), weights),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    canvas = driver.find_element(By.ID, "map")
    layout = page.run("return layout")
    x = layout["left"] + 0.5 * layout["cell"] - canvas.size["width"] / 2
    y = layout["top"] + 1.5 * layout["cell"] - canvas.size["height"] / 2
    ActionChains(driver).move_to_element_with_offset(canvas, round(x), round(y)).perform()
    assert page.text("tip") == "“y” attends to “a” 0.6543"
    assert page.shown("row-hair")
    assert page.shown("column-hair")
    page.hover(page.tokens("rows")[0])
    assert not page.shown("tip")


@browser
def test_an_image_is_coloured_by_attention(driver: webdriver.Chrome, tmp_path: Path) -> None:
    driver.get_log("browser")
    page = Page(driver, save_page([pictured(), DATE], tmp_path / "page.html"))
    assert page.text("heading") == "cat.png → cat"
    assert not page.shown("matrix")
    assert not page.shown("reading")
    page.tokens("heads")[1].click()
    levels = page.coloured()
    assert max(levels) == levels[1] > 10 * levels[0] > 0
    page.tokens("heads")[2].click()
    assert [level > 0 for level in page.coloured()] == [False, False, False, True, False, False]
    page.tokens("readers")[1].click()
    assert page.selected("readers") == [1]
    assert page.text("readout").startswith("“[mean]” attends to “2,1” 1.0000")
    page.tokens("examples")[1].click()
    assert page.shown("matrix")
    assert not page.shown("picture")
    complaints = [entry["message"] for entry in driver.get_log("browser")]
    assert [one for one in complaints if "getImageData" not in one] == []  # which only this test calls


@browser
def test_hovering_a_patch_shows_its_attention(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([pictured()], tmp_path / "page.html"))
    page.tokens("heads")[1].click()
    canvas = driver.find_element(By.ID, "patches")
    across, down = canvas.size["width"] // 3, canvas.size["height"] // 4
    ActionChains(driver).move_to_element_with_offset(canvas, across, -down).perform()
    assert page.text("readout").startswith("“1,3” attends to “2,1” 0.7000")
    assert page.coloured()[3] == max(page.coloured())
    assert page.selected("readers") == []
    page.hover(page.tokens("heads")[0])
    assert page.text("readout").startswith("“[class]” attends to")
    page.run("byId('patches').focus()")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert page.text("readout").startswith("“2,2” attends to")


@browser
def test_hostile_tokens_are_escaped(driver: webdriver.Chrome, tmp_path: Path) -> None:
    tokens = (HOSTILE, "{{data}}", "\u2028", "&lt;", "\x1b[2J", "\u202eabc")
    hostile = Answer(HOSTILE, HOSTILE, 0.0, (AttentionMap(HOSTILE, tokens, tokens, np.eye(6)[None]),), (HOSTILE,))
    driver.get_log("browser")
    page = Page(driver, save_page([hostile, DATE], tmp_path / "page.html", title=f"{HOSTILE}{{{{policy}}}}"))
    page.hover(page.tokens("cols")[0])
    assert driver.title == f"{HOSTILE}{{{{policy}}}}"
    assert page.run("return [...document.querySelectorAll('#cols [role=option]')].map(c => c.textContent)") == [*tokens]
    assert driver.find_elements(By.TAG_NAME, "img") == []
    assert driver.get_log("browser") == []


@browser
def test_very_long_tokens_and_texts_are_truncated(driver: webdriver.Chrome, tmp_path: Path) -> None:
    tokens = tuple(100_000 * text for text in ("x", "\x1b", "a b", "👩", "e\u0301"))
    layer = AttentionMap(tokens[0], tokens, tokens, np.eye(5)[None])
    long = Answer(tokens[0], tokens[2], 0.0, (layer,), unknown=tokens)
    page = Page(driver, save_page([long, DATE], tmp_path / "page.html"))
    page.hover(page.tokens("rows")[1])
    cells = "return [...document.querySelectorAll('#cols [role=option]')]"
    shown = page.run(f"{cells}.map(c => c.textContent)")
    assert shown[0] == 80 * "x" + "…"
    assert max(map(len, shown)) == 81
    titles = page.run(f"{cells}.map(c => c.title)")
    assert titles[0].startswith("100000 characters: xxx")
    assert max(map(len, titles)) < 4000
    assert len(page.text("heading")) < 5000
    assert len(page.text("meta")) < 3000
    assert len(page.text("readout")) < 3000
    assert (
        page.run("return document.body.textContent.length - document.querySelector('#data').textContent.length") < 1e5
    )


@browser
def test_the_content_security_policy_blocks_other_scripts(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    page.run("const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)")
    assert page.run("return window.ran") is None
    driver.get_log("browser")  # the browser's complaint about it is not the next test's


@browser
def test_copied_tokens_equal_the_original_text(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    page.run("getSelection().selectAllChildren(document.getElementById('cols'))")
    assert page.run("return getSelection().toString()") == SOURCE
    assert page.run("return document.querySelector('#cols .mark').dataset.mark") == "␣"


@browser
def test_an_answer_without_attention_shows_a_message(driver: webdriver.Chrome, tmp_path: Path) -> None:
    empty = AttentionMap("decoder", (), ("a",), np.ones((1, 0, 1)))
    answers = [Answer("a", "b", float("-inf")), Answer("c", "", 0.0, (empty,)), DATE]
    page = Page(driver, save_page(answers, tmp_path / "page.html"))
    assert page.text("silence") == "No attention weights were recorded."
    assert not page.shown("map")
    page.tokens("examples")[1].click()
    assert page.text("silence") == "No tokens to show."
    page.tokens("examples")[2].click()
    assert not page.shown("silence")
    assert page.shown("map")


@browser
def test_an_empty_page_shows_a_message(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([], tmp_path / "page.html"))
    assert page.text("columns") == "This page has no examples."


@browser
def test_many_answers_can_be_searched(driver: webdriver.Chrome, tmp_path: Path) -> None:
    answers = [Answer(f"source {i}", f"text {i}", 0.0) for i in range(300)]
    page = Page(driver, save_page(answers, tmp_path / "page.html"))
    driver.find_element(By.ID, "filter").send_keys("TEXT 123")
    assert [cell.text for cell in page.tokens("examples") if cell.is_displayed()] == ["source 123\ntext 123"]


def wide_page(driver: webdriver.Chrome, path: Path, tokens: int) -> Page:
    """A page with an attention map of this many tokens on both sides."""
    names = tuple(f"t{i}" for i in range(tokens))
    weights = np.random.default_rng(0).dirichlet(np.ones(tokens), size=(2, tokens))
    return Page(driver, save_page([Answer("a", "b", 0.0, (AttentionMap("encoder", names, names, weights),))], path))


@browser
def test_hovering_changes_a_number_of_elements_linear_in_the_tokens(driver: webdriver.Chrome, tmp_path: Path) -> None:
    script = """
        const observer = new MutationObserver(() => {});
        observer.observe(document.documentElement, {attributes: true, childList: true, subtree: true});
        for (let i = 0; i < 10; i++) { point(5 * i, 4 * i); }
        return observer.takeRecords().length / 10;
    """
    few, many = (wide_page(driver, tmp_path / "page.html", tokens).run(script) for tokens in (64, 512))
    assert 0 < few < 10 * 64
    assert many < 9 * few  # of 8 times the tokens


@pytest.mark.slow
@browser
def test_hovering_takes_less_than_100_milliseconds_for_512_by_512_tokens(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    script = """
        const began = performance.now();
        for (let i = 0; i < 10; i++) { point(50 * i, 40 * i); document.body.offsetHeight; }
        return (performance.now() - began) / 10;
    """
    assert wide_page(driver, tmp_path / "page.html", 512).run(script) < 100


@browser
def test_a_phone_shows_the_page_without_sideways_scrolling(driver: webdriver.Chrome, tmp_path: Path) -> None:
    narrow(driver, 390)
    try:
        long = ("x" * 200, "y")
        wide = Answer("x" * 200, "y", 0.0, (AttentionMap("d", long, long, np.full((16, 2, 2), 0.5)),))
        page = Page(driver, save_page([LAYERS, DATE, wide, pictured()], tmp_path / "page.html"))
        for example in page.tokens("examples"):
            example.click()
            assert page.run("return document.documentElement.scrollWidth") == 390
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@browser
def test_the_page_follows_the_preferred_colour_scheme(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    light, light_picture = page.lightness("cols"), page.picture()
    prefer(driver, "dark")
    WebDriverWait(driver, 5).until(lambda _: page.lightness("cols") != light)
    dark = page.lightness("cols")
    assert light.index(min(light)) == dark.index(max(dark)) == READ[0]
    assert max(dark[1:3]) < 200 < 600 < min(light[1:3])
    assert page.picture() != light_picture


@browser
def test_weights_are_stored_to_five_decimals(driver: webdriver.Chrome, tmp_path: Path) -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(7), size=(3, 5))
    answer = Answer("a", "b", 0.0, (AttentionMap("decoder", tuple("vwxyz"), tuple("abcdefg"), weights),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    np.testing.assert_allclose(page.run("return [...shown.values]"), weights.mean(axis=0).ravel(), atol=1e-5, rtol=0)
    page.tokens("heads")[3].click()
    np.testing.assert_allclose(page.run("return [...shown.values]"), weights[2].ravel(), atol=1e-5, rtol=0)


def test_layers_that_share_their_tokens_store_them_once(tmp_path: Path) -> None:
    (answer,) = stored(save_page([LAYERS], tmp_path / "page.html"))["answers"]
    assert answer["texts"] == [list("wxyz"), list("abcd")]
    assert [(m["rows"], m["columns"]) for m in answer["maps"]] == [(0, 1), (1, 1)]


def test_a_title_with_undecodable_bytes_still_gives_a_page(tmp_path: Path) -> None:
    path = save_page([Answer("\udcff", "\udcff", 0.0)], tmp_path / "page.html", title="run-\udcff")
    assert "<title>run-?</title>" in path.read_text(encoding="utf-8")
    assert stored(path)["answers"][0]["source"] == "\udcff"


def test_the_page_has_no_external_references(tmp_path: Path) -> None:
    text = save_page([DATE], tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|\bsrc=|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "unsafe" not in text


def test_non_finite_weights_keep_the_old_page(tmp_path: Path) -> None:
    path = save_page([DATE], tmp_path / "page.html")
    before = path.read_bytes()
    broken = AttentionMap("decoder", ("a",), ("b",), np.full((1, 1, 1), np.nan))
    with pytest.raises(InputError, match="decoder"):
        save_page([Answer("b", "a", 0.0, (broken,))], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
