"""The served page in a real browser, against a small server of this test."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed")

from qkv.pipelines.output import Answer, Candidate, Prediction
from qkv.serve.api_page import POLICY, api_page
from qkv.serve.api_page import Server as ApiServer
from qkv.visualize.explorer import build_payload, served_page
from tests.visualize.explorer.browser import HOSTILE, Keys, Page, WebDriver, WebDriverWait, attention

pytestmark = pytest.mark.browser


FIELDS = {"properties": {"input": {"type": "string", "examples": ["a"]}}, "required": ["input"]}
OPERATION = {
    "summary": "Show",
    "responses": {"200": {}},
    "requestBody": {"content": {"application/json": {"schema": FIELDS}}},
}
INFO = {"title": "qkv", "version": "1", "description": "Models."}
SCHEMA = {
    "info": INFO,
    "paths": {"/attention": {"post": OPERATION}},
    "components": {"schemas": {"ErrorResponse": {"description": "An error.", "properties": {}}}},
    "security": [{"key": []}],
}
SERVER = ApiServer(SCHEMA, "testserver", {})


class Server(ThreadingHTTPServer):
    """Answers with the input, and with what was changed."""

    requests: list[Any]
    inputs: dict[str, str]
    key: str | None = None


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/docs":
            return self.reply(200, api_page(SERVER).encode(), "text/html; charset=utf-8")
        page = served_page(["first", "second"], inputs=self.server.inputs)
        self.reply(200, page.encode(), "text/html; charset=utf-8")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        if self.server.key is not None and self.headers["Authorization"] != f"Bearer {self.server.key}":
            return self.reply(401, json.dumps({"error": {"message": "wrong key"}}).encode())
        if body["input"] == "bad":
            return self.reply(400, json.dumps({"error": {"message": f"too {HOSTILE}"}}).encode())
        text = body["input"].upper() + "!" * len(body["options"]["ablate"]) + "?" * len(body["options"]["mask"])
        reading = [list(range(len(body["input"])))] * 2
        maps = tuple(attention(f"decoder.{i}.cross", body["input"], body["input"], reading) for i in range(2))
        answer = Answer(body["input"], text, -1.0, maps)
        if body["input"].startswith("class"):
            p = 0.9 - 0.2 * len(body["options"]["ablate"])
            labels = (Candidate("good", p), Candidate("bad", 1 - p))
            answer = replace(answer, text="good", predictions=(Prediction("", labels),))
        self.reply(200, json.dumps(build_payload([answer], model=body["model"])).encode())

    def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if self.path == "/docs":
            self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server(("127.0.0.1", 0), Handler)
    served.requests, served.inputs = [], {}
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


class ServedPage(Page):
    """The page of the server."""

    def __init__(self, driver: WebDriver, server: Server, state: str = "") -> None:
        self.driver = driver
        driver.get("about:blank")
        driver.get(f"http://127.0.0.1:{server.server_port}/{state}")

    def until(self, name: str, text: str) -> None:
        WebDriverWait(self.driver, 10).until(lambda _: text in self.text(name))


def test_typing_shows_the_attention_of_the_input(driver: WebDriver, server: Server) -> None:
    driver.get_log("browser")
    page = ServedPage(driver, server)
    page.one("#server-input").send_keys("abcd")
    page.until("heading", "abcd → ABCD")
    assert page.texts("cols") == list("abcd")
    assert driver.title == "Attention: first, abcd"
    assert server.requests[-1] == {
        "model": "first",
        "input": "abcd",
        "options": {"ablate": [], "mask": [], "layer": None},
    }
    assert [message for message in page.complaints() if "favicon" not in message] == []


def test_ablated_heads_and_masked_tokens_are_sent_and_their_effect_is_shown(driver: WebDriver, server: Server) -> None:
    page = ServedPage(driver, server, "#input=abcd&head=1")
    page.until("heading", "ABCD")
    page.one("#ablate").click()
    page.until("heading", "ABCD!")
    assert server.requests[-1]["options"]["ablate"] == [{"layer": "decoder.0.cross", "head": 1}]
    page.until("server-status", "Original output: ABCD")
    page.tokens("cols")[2].click()
    page.one("#mask").click()
    page.until("heading", "ABCD!?")
    assert server.requests[-1]["options"]["mask"] == [2]
    assert "token 3 “c” masked" in page.text("server-changes")
    page.one("#server-changes button:nth-of-type(4)").click()
    WebDriverWait(driver, 10).until(lambda _: page.text("heading").endswith("ABCD?"))


def test_disabled_changes_say_what_to_select(driver: WebDriver, server: Server) -> None:
    page = ServedPage(driver, server, "#input=abcd")
    page.until("heading", "ABCD")
    assert page.one("#ablate").get_attribute("title") == "Select a head first"
    assert page.one("#mask").get_attribute("title") == "Click on a token of the input first"
    page.tokens("heads")[1].click()
    page.tokens("cols")[2].click()
    assert [page.one(f"#{name}").get_attribute("title") for name in ("ablate", "mask")] == ["", ""]


def test_an_answer_is_kept_and_compared_with_others(driver: WebDriver, server: Server) -> None:
    driver.get_log("browser")
    page = ServedPage(driver, server, "#input=abcd")
    page.until("heading", "ABCD")
    page.one("#keep").click()
    assert page.one("#tabs [aria-selected=true]").text == "Side by side"
    page.one("#server-input").send_keys("x")
    page.until("heading", "abcdx → ABCDX")
    assert page.text("b-title") == "B abcd → ABCD"
    page.hover(page.tokens("a-cols")[2])
    assert page.selected("b-cols") == [2]
    page.choose("Model", "second")
    page.until("a-title", "second: abcdx")
    assert page.text("b-title") == "B first: abcd → ABCD"
    again = ServedPage(driver, server, page.run("return location.hash"))
    again.until("b-title", "B first: abcd → ABCD")
    assert again.text("a-title") == "A second: abcdx → ABCDX"
    again.one("#keep").click()
    assert again.one("#tabs [aria-selected=true]").text == "Matrix"
    assert "kept" not in again.run("return location.hash")
    assert [message for message in page.complaints() if "favicon" not in message] == []


def test_a_kept_request_that_is_not_valid_is_ignored(driver: WebDriver, server: Server) -> None:
    page = ServedPage(driver, server, "#input=abcd&kept=%7Bnone")
    page.until("heading", "ABCD")
    assert "kept" not in page.run("return location.hash")


def test_an_error_of_the_server_is_shown_as_text(driver: WebDriver, server: Server) -> None:
    page = ServedPage(driver, server, "#input=bad")
    page.until("server-status", f"No answer: too {HOSTILE}")
    assert page.run("return document.querySelectorAll('img').length") == 0
    page.complaints()  # the browser reports the status 400


def test_a_server_with_a_key_asks_for_it(driver: WebDriver, server: Server) -> None:
    server.key = "secret"
    page = ServedPage(driver, server, "#input=ab")
    page.until("server-status", "wrong key")
    page.one("#server-key").send_keys("secret", Keys.TAB)
    page.one("#server-send").click()
    page.until("heading", "ab → AB")
    assert "secret" not in page.run("return location.href")
    page.complaints()


def test_probabilities_of_a_classifier_without_and_with_a_head(driver: WebDriver, server: Server) -> None:
    driver.get_log("browser")
    page = ServedPage(driver, server, "#input=class&head=1")
    page.until("heading", "good")
    assert page.candidates() == [("good", 90.0), ("bad", 10.0)]
    page.one("#ablate").click()
    page.until("server-status", "After intervention")
    assert page.text("server-status") == (
        "Original output: good 90.00 %, bad 10.00 %. After intervention: good 70.00 %, bad 30.00 %"
    )
    assert page.candidates() == [("good", 70.0), ("bad", 30.0)]
    assert page.complaints() == []


def test_the_page_starts_with_an_example_of_the_model(driver: WebDriver, server: Server) -> None:
    server.inputs = {"first": "abcd", "second": "wxyz"}
    page = ServedPage(driver, server)
    page.until("heading", "abcd → ABCD")
    assert "attention weights" in page.text("server-intro")
    assert page.run("return document.querySelector('#server-intro a').pathname") == "/docs"
    page.choose("Model", "second")
    page.until("heading", "wxyz → WXYZ")
    page.one("#server-input").send_keys("!")
    page.until("heading", "wxyz!")
    page.choose("Model", "first")  # an input that was typed stays
    page.until("heading", "wxyz! → WXYZ!")
    again = ServedPage(driver, server, "#input=abab")
    again.until("heading", "abab → ABAB")


def test_pins_and_masks_are_removed_when_the_tokens_change(driver: WebDriver, server: Server) -> None:
    page = ServedPage(driver, server, "#input=abcd&head=1&row=1")
    page.until("heading", "ABCD")
    assert page.selected("rows") == [1]
    page.tokens("cols")[2].click()
    page.one("#mask").click()
    page.until("heading", "ABCD?")
    assert "column=2" in page.run("return location.hash")
    page.one("#server-input").send_keys("e")
    page.until("heading", "abcde → ABCDE")
    assert page.text("server-status") == "The mask was removed, because the input changed."
    assert page.run("return location.hash") == "#head=1&input=abcde&model=first"
    page.tokens("cols")[2].click()
    page.one("#mask").click()
    page.until("heading", "ABCDE?")
    page.choose("Model", "second")
    page.until("server-status", "The mask was removed, because the model changed.")
    assert server.requests[-1]["options"]["mask"] == []
    assert "column" not in page.run("return location.hash")


def test_a_change_of_the_model_is_one_request_without_changes(driver: WebDriver, server: Server) -> None:
    page = ServedPage(driver, server, "#input=abcd&layer=decoder.1.cross&ablate=decoder.1.cross:0&mask=2")
    page.until("server-status", "After intervention")
    sent = len(server.requests)
    page.choose("Model", "second")
    page.until("server-status", "The mask was removed, because the model changed.")
    assert server.requests[sent:] == [
        {"model": "second", "input": "abcd", "options": {"ablate": [], "mask": [], "layer": None}}
    ]


def test_a_link_with_changes_shows_their_effect(driver: WebDriver, server: Server) -> None:
    page = ServedPage(driver, server, "#input=abcd&ablate=decoder.0.cross:1&mask=2")
    page.until("server-status", "Original output: ABCD (")
    assert "After intervention: ABCD!?" in page.text("server-status")
    assert page.text("heading") == "abcd → ABCD!?"
    assert [request["options"]["mask"] for request in server.requests] == [[2], []]


def test_an_empty_input_has_no_output(driver: WebDriver, server: Server) -> None:
    driver.get_log("browser")
    page = ServedPage(driver, server, "#input=class&head=1")
    page.until("heading", "good")
    page.one("#keep").click()
    page.one("#server-input").send_keys(*[Keys.BACKSPACE] * 5)
    WebDriverWait(driver, 10).until(lambda _: page.text("heading") == "")
    assert not any(page.shown(each) for each in ("#predictions", "#view *", "#tabs", "#options"))
    assert "&input=" not in page.run("return location.hash")
    page.one("#keep").click()  # stops comparing
    page.one("#server-input").send_keys("abcd")
    page.until("heading", "abcd → ABCD")
    assert page.texts("cols") == list("abcd")
    assert page.complaints() == []


def test_the_page_of_the_endpoints_sends_requests(driver: WebDriver, server: Server) -> None:
    server.key = "right"
    driver.get_log("browser")
    driver.get(f"http://127.0.0.1:{server.server_port}/docs")
    page = Page.__new__(Page)
    page.driver = driver
    body = page.one("textarea")
    assert body.get_attribute("value") == '{"input": "a"}'
    body.clear()
    body.send_keys('{"input": "bad", "options": {}}')

    def answered(status: int, text: str) -> None:
        page.one("form button").click()
        WebDriverWait(driver, 10).until(lambda _: page.one("output").text.startswith(f"Status {status}\n"))
        assert text in page.one("output").text

    answered(401, "wrong key")
    page.one("#key").send_keys("right")
    answered(400, "too </script>")
    assert server.requests[-1] == {"input": "bad", "options": {}}
    assert not any("Content Security Policy" in complaint for complaint in page.complaints())
