"""The documentation site: it builds without warnings, its links work, and its pages make no outside request."""

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import qkv
from tests.docs.blocks import ROOT

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
)
MAIN = ("index.html", "lectures/003.html", "results.html", "tutorials/align-dates.html", "api/attention.html")
ANCHOR = re.compile(r'\s(?:id|name)="([^"]*)"')
URL = re.compile(r'<(a|img|script|link|iframe|source)\s(?:[^>]*?\s)?(?:href|src)="([^"]*)"')


class Links:
    """The anchors of a page, its links, and the files that it loads."""

    def __init__(self, text: str) -> None:
        self.anchors = set(ANCHOR.findall(text))
        self.links = [html.unescape(url) for tag, url in URL.findall(text) if tag == "a"]
        self.loaded = [html.unescape(url) for tag, url in URL.findall(text) if tag != "a"]


def build(folder: Path) -> Path:
    """Build the site with warnings as errors, as `make docs` does."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, to drive a real browser")
    from selenium.webdriver.chrome.service import Service

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


def broken_links(site: Path) -> list[str]:
    """Return the links of all pages to files or anchors that do not exist."""
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    assert pages
    broken = []
    for path, page in pages.items():
        for link in {*page.links, *page.loaded}:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment) if link in page.links else ""  # that of an iframe is its state
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def outside_requests(site: Path) -> list[str]:
    """Return what pages and style sheets load from elsewhere."""
    found = []
    for path in site.rglob("*.html"):
        page = Links(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: {url}" for url in page.loaded if urlsplit(url).scheme not in ("", "data")]
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        found += [path.name] if "url(http" in text or "@import" in text else []
    return found


def problems_in_browser(driver: Any, site: Path, page: str) -> list[str]:
    """Open a page from disk; return messages of the console and requests that leave the machine."""
    driver.get_log("performance")
    driver.get((site / page).as_uri())
    messages = [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return messages + [url for url in urls if urlsplit(url).scheme not in ("file", "data", "blob", "about", "chrome")]


@pytest.mark.browser
def test_site_builds_without_warnings_and_opens_from_disk(site: Path, driver: Any) -> None:
    assert broken_links(site) == []
    assert outside_requests(site) == []
    text = (site / "api" / "index.html").read_text(encoding="utf-8")
    assert [name for name in qkv.__all__ if name[0] != "_" and f"qkv.{name}<" not in text] == []
    tokens = (site / "api" / "tokenizers.html").read_text(encoding="utf-8")
    assert "<s>" not in tokens
    assert "&lt;s&gt;" in tokens
    for page in MAIN:
        assert problems_in_browser(driver, site, page) == []
    assert "Sparsemax" in search(driver, "sparsemax")


@pytest.mark.browser
def test_plots_of_results_show_their_labels_and_headings_differ(site: Path, driver: Any) -> None:
    driver.get((site / "results.html").as_uri())
    left = driver.execute_script(
        "return [...document.querySelectorAll('.results text')].map(label => label.getBBox().x)"
    )
    assert len(left) > 100
    assert min(left) >= 0
    headings = re.findall(r'<h2 id="[^"]*">(.*?)<', (site / "results.html").read_text(encoding="utf-8"))
    assert len(set(headings)) == len(headings) > 30


@pytest.mark.browser
def test_the_explorer_is_embedded_and_works_from_disk(site: Path, driver: Any) -> None:
    assert (site / "explorer-dates.html").stat().st_size < 1_000_000
    assert problems_in_browser(driver, site, "explorer.html") == []
    frame = driver.find_element("css selector", "iframe.explorer")
    driver.execute_script("arguments[0].scrollIntoView()", frame)
    driver.switch_to.frame(frame)
    assert "2026-03-05" in driver.find_element("css selector", "body").text
    assert driver.execute_script("return document.querySelectorAll('canvas, svg').length") > 0
    driver.switch_to.default_content()


@pytest.mark.browser
def test_the_dark_theme_follows_the_system_and_darkens_plots_but_not_photographs(site: Path, driver: Any) -> None:
    def filters(page: str) -> dict[str, str]:
        driver.get((site / page).as_uri())
        images = "[...document.querySelectorAll('.md-typeset img')]"
        script = f"return {images}.map(image => [image.src.split('/').pop(), getComputedStyle(image).filter])"
        return dict(driver.execute_script(script))

    def prefer(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    try:
        prefer("dark")
        assert filters("index.html")["attention.png"].startswith("invert")
        assert filters("tour.html")["by-length.png"].startswith("invert")
        assert filters("how-to/caption-photographs.html")["photographs.png"] == "none"
        prefer("light")
        assert set(filters("tour.html").values()) == {"none"}
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def search(driver: Any, word: str) -> list[str]:
    """Return the titles that the search of the open page finds."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    driver.execute_script("document.querySelector('[name=query]').focus()")
    driver.find_element(By.NAME, "query").send_keys(word)
    wait = WebDriverWait(driver, 20)
    found = wait.until(lambda chrome: chrome.find_elements(By.CSS_SELECTOR, ".md-search-result__item mark"))
    return [element.text for element in found]


@pytest.mark.slow
@pytest.mark.browser
def test_every_page_opens_without_errors(site: Path, driver: Any) -> None:
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    pages.remove("404.html")  # its paths are those of a server
    assert len(pages) > 200
    assert {page: found for page in pages if (found := problems_in_browser(driver, site, page))} == {}
