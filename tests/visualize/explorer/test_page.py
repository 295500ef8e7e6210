"""The explorer's page in a real browser: examples, policy, escaping, permalinks, export and phone width."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from qkv import __version__
from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize import save_page
from qkv.visualize.explorer import build_payload
from qkv.visualize.explorer.bundle import render
from qkv.visualize.explorer.payload import to_script
from tests.visualize.explorer.browser import (
    DATE,
    HOSTILE,
    LAYERS,
    SOURCE,
    TEXT,
    Keys,
    Page,
    WebDriver,
    WebDriverWait,
    narrow,
    requests,
)

pytestmark = pytest.mark.browser


def test_the_page_opens_without_errors_or_network_access(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    driver.get_log("performance")
    path = save_page([DATE, LAYERS], tmp_path / "page.html", title="Dates")
    page = Page(driver, path)
    for view in ("matrix", "lines"):
        page.tab(view)
    page.tokens("examples")[1].click()
    for view in ("matrix", "lines", "model"):
        page.tab(view)
    assert driver.title == "Dates"
    assert page.complaints() == []
    assert requests(driver, path) == [path.as_uri()]  # the page itself, and nothing on its behalf


def test_the_page_names_model_command_and_version(driver: WebDriver, tmp_path: Path) -> None:
    path = save_page([DATE], tmp_path / "page.html", model="runs/dates", command="qkv view runs/dates 'x y'")
    page = Page(driver, path)
    assert page.text("title") == "Attention of runs/dates"
    assert driver.title == f"Attention: runs/dates, {SOURCE}"
    facts = page.text("facts")
    assert all(fact in facts for fact in ("runs/dates", "qkv view runs/dates 'x y'", __version__))
    assert "65535" in page.text("notes")


def test_the_window_title_names_the_selected_input(driver: WebDriver, tmp_path: Path) -> None:
    long = Answer("word " * 40, "", 0.0, DATE.attention)
    path = save_page([LAYERS, long], tmp_path / "page.html", model="m")
    assert "<title>Attention: m, abcd</title>" in path.read_text(encoding="utf-8")
    page = Page(driver, path)
    assert driver.title == "Attention: m, abcd"
    page.tokens("examples")[1].click()
    assert driver.title == f"Attention: m, {('word ' * 40)[:60]}…"


def test_a_long_command_takes_one_line_and_can_be_copied(driver: WebDriver, tmp_path: Path) -> None:
    command = "qkv view runs/dates " + " ".join(f"'input {i}'" for i in range(100))
    page = Page(driver, save_page([DATE], tmp_path / "page.html", model="runs/dates", command=command))
    shown = page.one("footer .command dd")
    assert shown.size["height"] < 40
    assert page.one("footer .command dt").size["height"] < 40
    assert shown.get_attribute("title") == command
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.one("#copy-command").click()
    assert page.run("return window.copied") == command
    assert page.text("status") == "The command is copied."


def test_a_long_input_does_not_hide_the_output(driver: WebDriver, tmp_path: Path) -> None:
    answer = Answer("word " * 300, "out " * 300, 0.0, DATE.attention)
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    source, target = page.one("#heading .source"), page.one("#heading .target")
    assert 0 < source.size["height"] < 120
    assert 0 < target.size["height"] < 120
    assert target.location["y"] >= source.location["y"] + source.size["height"]


def test_notes_on_an_example_are_at_the_top(driver: WebDriver, tmp_path: Path) -> None:
    payload = build_payload([DATE, LAYERS])
    payload["examples"][0]["notes"] = ["The input is truncated to 12 tokens."]
    path = tmp_path / "page.html"
    path.write_text(render("Attention", to_script(payload)), encoding="utf-8")
    page = Page(driver, path)
    note = page.one("#example-notes")
    assert note.text == "The input is truncated to 12 tokens."
    assert note.location["y"] < page.one("#tabs").location["y"]
    page.tokens("examples")[1].click()
    assert not page.shown("#example-notes")


def test_unknown_tokens_keep_their_direction(driver: WebDriver, tmp_path: Path) -> None:
    answer = Answer("x", "y", 0.0, DATE.attention, unknown=("ä", "שלום"))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    names = page.run("return [...document.querySelectorAll('#meta bdi')].map(name => name.textContent)")
    assert names == ["ä", "שלום"]  # the quotes have the direction of the page
    assert "out of vocabulary: “ä” “שלום”" in page.run("return document.querySelector('#meta').textContent")


def test_an_embedded_page_links_to_the_full_page(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS], tmp_path / "page.html"), "#layer=encoder.0&embed=1")
    assert not any(page.shown(f"#{name}") for name in ("link", "theme", "svg", "png", "title"))
    page.tokens("heads")[1].click()
    assert page.run("return document.querySelector('#full').hash") == "#layer=encoder.0&head=0"


def test_the_footer_lists_the_keys_that_have_an_effect(driver: WebDriver, tmp_path: Path) -> None:
    path = save_page([DATE, LAYERS], tmp_path / "page.html")
    listed = {"view-keys": True, "layer-keys": False, "head-keys": False}
    assert {name: Page(driver, path).shown(f"#{name}") for name in listed} == listed
    page = Page(driver, path, "#example=1")
    assert all(page.shown(f"#{name}") for name in listed)


def test_the_selected_tab_is_visible_on_a_phone(driver: WebDriver, tmp_path: Path) -> None:
    narrow(driver, 390)
    try:
        page = Page(driver, save_page([LAYERS, LAYERS], tmp_path / "page.html"), "#view=compare")
        tab = page.one("#tabs [aria-selected=true]")
        assert tab.text == "Side by side"
        assert 0 <= tab.rect["x"] <= 390 - tab.rect["width"]
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_selections_of_a_view_are_next_to_its_controls(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS], tmp_path / "page.html"), "#view=model")
    page.choose("Sort by", "entropy")
    top = {label: page.one(f"select[aria-label='{label}']").rect["y"] for label in ("Color scale", "Sort by", "Order")}
    assert len(set(top.values())) == 1
    page.tab("matrix")
    assert not page.all("select[aria-label='Sort by']")


def test_options_are_behind_a_disclosure_on_a_phone(driver: WebDriver, tmp_path: Path) -> None:
    path = save_page([LAYERS, DATE], tmp_path / "page.html", model="runs/dates", command="qkv view " + "x" * 300)
    assert Page(driver, path).shown("select[aria-label='Layer']")
    narrow(driver, 390)
    try:
        page = Page(driver, path)
        assert not page.shown("select[aria-label='Layer']")
        assert page.one(".map").rect["y"] < 700
        page.one("#options summary").click()
        page.choose("Layer", "encoder.0")
        assert page.run("return location.hash") == "#layer=encoder.0"
        assert page.shown("select[aria-label='Layer']")
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_picking_another_example_shows_its_tokens(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS, DATE], tmp_path / "page.html"))
    page.tokens("examples")[1].click()
    assert page.text("heading") == f"{SOURCE} → {TEXT}"
    assert "length-normalized log-probability −0.25" in page.text("meta")
    assert "out of vocabulary: “ä”" in page.text("meta")
    assert len(page.tokens("cols")) == len(SOURCE)


def test_arrow_keys_move_through_the_examples(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE, LAYERS], tmp_path / "page.html"))
    page.run("document.querySelector('#theme').focus()")
    page.press(Keys.TAB, Keys.ARROW_DOWN)
    assert page.text("heading") == "abcd → wxyz"


def test_keys_change_the_view_the_layer_and_the_head(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS], tmp_path / "page.html"))
    page.press("[.")
    assert page.run("return location.hash") == "#layer=encoder.0&head=0"
    page.press("v")
    assert page.one("#tabs [aria-selected=true]").text == "Lines"


def test_layers_go_from_the_bottom_to_the_top(driver: WebDriver, tmp_path: Path) -> None:
    names = [
        "decoder.1.cross",
        "decoder.0.cross",
        "decoder.0.self",
        "decoder.1.self",
        *map("encoder.{}".format, range(11)),
    ]
    weights = np.full((1, 2, 2), 0.5)
    answer = Answer("ab", "ab", 0.0, tuple(AttentionMap(name, tuple("ab"), tuple("ab"), weights) for name in names))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    listed = page.run("return [...document.querySelector('select[aria-label=Layer]').options].map(each => each.value)")
    assert listed == [*names[4:], "decoder.0.self", "decoder.1.self", "decoder.0.cross", "decoder.1.cross"]
    assert page.run("return document.querySelector('select[aria-label=Layer]').value") == "decoder.1.cross"
    page.press("[[[")
    assert page.run("return location.hash") == "#layer=decoder.0.self"
    page.press("[]")
    assert page.run("return location.hash") == "#layer=decoder.0.self"


def test_one_head_has_no_choice_of_the_color_scale(driver: WebDriver, tmp_path: Path) -> None:
    path = save_page([DATE, LAYERS], tmp_path / "page.html")
    for state, shown in (("", False), ("#example=1", True), ("#view=compare", True)):
        page = Page(driver, path, state)
        assert page.shown("select[aria-label='Color scale']") == shown
        assert ("one for all" in page.one(".legend .note").text) == shown


def test_a_permalink_reproduces_the_view(driver: WebDriver, tmp_path: Path) -> None:
    path = save_page([DATE, LAYERS], tmp_path / "page.html")
    page = Page(driver, path)
    page.tokens("examples")[1].click()
    page.choose("Layer", "encoder.0")
    page.tokens("heads")[1].click()
    page.tokens("rows")[2].click()
    link = page.run("return location.hash")
    again = Page(driver, path, link)
    assert again.text("heading") == "abcd → wxyz"
    assert (again.selected("heads"), again.selected("rows"), again.lit("cols")) == ([1], [2], 1)


def test_a_permalink_with_unknown_values_shows_the_defaults(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    path = save_page([LAYERS], tmp_path / "page.html")
    page = Page(driver, path, "#view=none&example=99&layer=gone&head=77&row=1000&column=x&theme=pink&scale=%3Cb%3E")
    assert page.text("heading") == "abcd → wxyz"
    assert page.selected("rows") == [0]
    ignored = "view=none, example=99, layer=gone, head=77, row=1000, column=x, theme=pink, scale=<b>"
    assert page.text("status") == f"Ignored in the address: {ignored}."
    assert page.run("return location.hash") in ("", "#")
    assert page.complaints() == []


def test_keys_of_views_take_the_values_of_their_rules(driver: WebDriver, tmp_path: Path) -> None:
    path = save_page([LAYERS], tmp_path / "page.html")
    page = Page(driver, path, "#view=heads&sort=entropy&order=descending&heads=0+1")
    assert page.text("status") == ""
    assert page.run("return qkvExplorer.state.view") == "model"
    page = Page(driver, path, "#sort=size&order=up&heads=0+7&stage=x&side=left")
    ignored = "sort=size, order=up, heads=0 7, stage=x, side=left"
    assert page.text("status") == f"Ignored in the address: {ignored}."


def test_the_rest_of_a_permalink_is_kept(driver: WebDriver, tmp_path: Path) -> None:
    path = save_page([LAYERS], tmp_path / "page.html")
    page = Page(driver, path, "#view=bogus&layer=encoder.0&nonsense=1&head=1")
    assert page.text("status") == "Ignored in the address: view=bogus, nonsense=1."
    assert page.run("return location.hash") == "#layer=encoder.0&head=1"
    assert page.selected("heads") == [2]
    page.run("location.hash = '#view=lines&heads=0+1&head=9'")
    WebDriverWait(driver, 5).until(lambda _: page.text("status") == "Ignored in the address: head=9.")
    assert page.run("return location.hash") == "#view=lines&heads=0+1"
    page.run("location.hash = '#view=lines&head=1'")
    WebDriverWait(driver, 5).until(lambda _: page.text("status") == "")
    assert page.run("return qkvExplorer.state.heads") == ""


@pytest.mark.parametrize(
    ("name", "tab"), [("heads", "All heads"), ("side-by-side", "Side by side"), ("lines", "Lines")]
)
def test_views_have_the_names_of_their_tabs(driver: WebDriver, tmp_path: Path, name: str, tab: str) -> None:
    page = Page(driver, save_page([LAYERS, LAYERS], tmp_path / "page.html"), f"#view={name}")
    assert page.one("#tabs [aria-selected=true]").text == tab
    assert page.text("status") == ""


def test_hostile_tokens_are_escaped_in_every_view(driver: WebDriver, tmp_path: Path) -> None:
    tokens = (HOSTILE, "{{data}}", "\u2028", "&lt;", "\x1b[2J", "\u202eabc", "مرحبا", "שלום", "👩‍👩‍👧", "<b>x</b>")
    layer = AttentionMap(HOSTILE, tokens, tokens, np.stack([np.eye(10)] * 2))
    hostile = Answer(HOSTILE, HOSTILE, 0.0, (layer,), (HOSTILE,), special=(HOSTILE,))
    driver.get_log("browser")
    path = save_page(
        [hostile, DATE], tmp_path / "page.html", title=f"{HOSTILE}{{{{policy}}}}", model=HOSTILE, command=HOSTILE
    )
    page = Page(driver, path)
    page.hover(page.tokens("cols")[0])
    assert driver.title == f"{HOSTILE}{{{{policy}}}}"
    assert page.texts("cols") == [*tokens]
    page.tab("lines")
    assert page.texts("key") == [*tokens]
    page.tab("model")
    assert page.run("return document.querySelectorAll('img, b, [onerror]').length") == 0
    assert page.complaints() == []


def test_right_to_left_tokens_keep_their_direction(driver: WebDriver, tmp_path: Path) -> None:
    tokens = ("مرحبا", "world", "שלום")
    answer = Answer(" ".join(tokens), "", 0.0, (AttentionMap("encoder.0", tokens, tokens, np.eye(3)[None]),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    directions = "return [...document.querySelectorAll('#cols [role=option]')].map(c => getComputedStyle(c).direction)"
    assert page.run(directions) == ["rtl", "ltr", "rtl"]
    assert page.text("readout") == "“مرحبا” attends to “مرحبا” 1.0000"


def test_marks_of_spaces_are_on_the_line_of_their_token(driver: WebDriver, tmp_path: Path) -> None:
    tokens = ("a", " b")
    answer = Answer("a b", "", 0.0, (AttentionMap("encoder.0", tokens, tokens, np.eye(2)[None]),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#view=lines")
    script = """
        const token = document.querySelector(".side .mark").closest("[role=option]").getBoundingClientRect();
        const mark = document.querySelector(".side .mark").getBoundingClientRect();
        return [mark.top - token.top, token.bottom - mark.bottom];
    """
    above, below = page.run(script)
    assert above > 0
    assert abs(above - below) <= 3


def test_very_long_tokens_and_texts_are_truncated(driver: WebDriver, tmp_path: Path) -> None:
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
    for name, most in (("heading", 5000), ("meta", 3000), ("readout", 3000)):
        assert len(page.text(name)) < most
    shown = page.run("document.querySelectorAll('script').forEach(s => s.remove()); return document.body.textContent")
    assert len(shown) < 1e5


def test_the_content_security_policy_blocks_other_scripts(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([DATE], tmp_path / "page.html"))
    page.run("const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)")
    assert page.run("return window.ran") is None
    assert any("Content Security Policy" in message for message in page.complaints())


def test_an_answer_without_attention_shows_a_message(driver: WebDriver, tmp_path: Path) -> None:
    empty = AttentionMap("decoder", (), ("a",), np.ones((1, 0, 1)))
    answers = [Answer("a", "b", float("-inf")), Answer("c", "", 0.0, (empty,)), DATE]
    page = Page(driver, save_page(answers, tmp_path / "page.html"))
    assert page.text("silence") == "No attention weights were recorded."
    assert not page.shown(".map")
    page.tokens("examples")[1].click()
    assert page.text("silence") == "No tokens to show."
    page.tokens("examples")[2].click()
    assert not page.shown("#silence")
    assert page.shown(".map")


def test_an_empty_page_shows_a_message(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([], tmp_path / "page.html"))
    assert page.text("silence") == "This page has no examples."


def test_many_answers_can_be_searched(driver: WebDriver, tmp_path: Path) -> None:
    answers = [Answer(f"source {i}", f"text {i}", 0.0) for i in range(130)]
    page = Page(driver, save_page(answers, tmp_path / "page.html"))
    page.one("#filter").send_keys("TEXT 123")
    assert [cell.text for cell in page.tokens("examples") if cell.is_displayed()] == ["source 123\ntext 123"]


@pytest.mark.parametrize("view", ["matrix", "lines", "model"])
def test_every_view_is_exported_as_valid_svg_and_as_png(driver: WebDriver, tmp_path: Path, view: str) -> None:
    tokens = ("<b>&\x01", "ab", "]]>", "👩‍👧")
    weights = np.stack([np.eye(4), np.full((4, 4), 0.25)])
    answer = Answer("x", "", 0.0, (AttentionMap("encoder.0", tokens, tokens, weights),))
    path = save_page([answer], tmp_path / "page.html", title="A & <B>")
    folder = tmp_path / "downloads"
    folder.mkdir()
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    page = Page(driver, path, f"#view={view}")
    for name in ("svg", "png"):
        page.one(f"#{name}").click()
    wait_for(folder, 2)
    (svg,), (png,) = folder.glob("*.svg"), folder.glob("*.png")
    root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root[0].text == "A & <B>"
    assert len(root) > 5
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def wait_for(folder: Path, files: int) -> None:
    """Wait until this many downloads are complete."""

    def complete(_: object) -> bool:
        return sum(path.suffix in {".svg", ".png"} and path.stat().st_size > 0 for path in folder.iterdir()) == files

    WebDriverWait(None, 10).until(complete)


@pytest.mark.parametrize("view", ["matrix", "lines", "model", "matrix&embed=1"])
def test_a_phone_shows_the_page_without_sideways_scrolling(driver: WebDriver, tmp_path: Path, view: str) -> None:
    narrow(driver, 390)
    try:
        long = ("x" * 200, "y")
        wide = Answer("x" * 200, "y", 0.0, (AttentionMap("d", long, long, np.full((16, 2, 2), 0.5)),))
        page = Page(driver, save_page([LAYERS, DATE, wide], tmp_path / "page.html", model="m" * 100), f"#view={view}")
        for example in page.tokens("examples"):
            example.click()
            assert page.run("return document.documentElement.scrollWidth") == 390
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_controls_and_canvases_have_names_for_screen_readers(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS], tmp_path / "page.html"))
    for view in ("matrix", "lines", "model"):
        page.tab(view)
        unnamed = page.run(
            """
            const named = e => e.ariaLabel || e.textContent.trim() || e.getAttribute("aria-labelledby");
            const roles = "[role=listbox], [role=application], [role=tablist]";
            const all = document.querySelectorAll(`button, select, input, textarea, ${roles}`);
            return [...all].filter(e => !named(e)).map(e => e.outerHTML);
            """
        )
        assert unnamed == []
    assert page.one("#view").get_attribute("role") == "tabpanel"
    assert page.run("return document.querySelector('#view').ariaLabel") == "All heads"


def test_the_page_has_no_external_references(tmp_path: Path) -> None:
    text = save_page([DATE], tmp_path / "page.html").read_text(encoding="utf-8")
    text = text.replace("http://www.w3.org/2000/svg", "")  # the name of a format, never requested
    assert not re.search(r"https?:|[\"'(]//[a-z]|\bsrc=|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "unsafe" not in text
