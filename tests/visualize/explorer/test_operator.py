"""The steps of attention with the numbers of a head, in a real browser."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.attention import Attend
from qkv.interpret.attention_probe import AttentionProbe, TextAnswer
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.tokenizers import CharTokenizer
from qkv.visualize import save_page
from tests.visualize.explorer.browser import HOSTILE, LAYERS, Keys, Page, WebDriver, prefer

pytestmark = pytest.mark.browser
TEXT = "<b>cat"
TOKENIZER = CharTokenizer.train([HOSTILE + "the cat"])
DIM = 8


def gpt2() -> GPT2:
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=len(TOKENIZER), dim=2 * DIM, heads=2, layers=2, max_length=64)
    model = GPT2(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(4)  # of a new model, all weights are about even
    return model


def probed(model: GPT2) -> TextAnswer:
    answer = AttentionProbe(model, TOKENIZER)(TEXT)
    assert isinstance(answer, TextAnswer)
    return answer


def operands(model: GPT2, layer: int, head: int) -> tuple[np.ndarray, ...]:
    """Return query, key and value of a head, from the arguments of the layer's operator."""
    seen: list[Any] = []
    attend = [module for module in model.modules() if isinstance(module, Attend)][layer]
    hook = attend.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[:3]))
    with torch.no_grad():
        model(torch.tensor([TOKENIZER.encode(TEXT)]))
    hook.remove()
    query, key, value = (each if isinstance(each, torch.Tensor) else each.tensor for each in seen[0])
    return tuple(each[0, head].double().numpy() for each in (query, key, value))


def column(page: Page, name: str) -> list[str]:
    cells = f".operand-row.key .{name}"
    return page.run("return [...document.querySelectorAll(arguments[0])].map(cell => cell.textContent)", cells)


def numbers(texts: list[str]) -> list[float]:
    return [float(text.replace("−", "-")) for text in texts]


def test_scores_mask_weights_and_output_are_those_of_the_head(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    model, row, layer, head = gpt2(), 4, 1, 1
    query, key, value = operands(model, layer, head)
    scores = query[row] @ key.T / np.sqrt(DIM)
    weights = np.exp(scores[: row + 1] - scores[: row + 1].max())
    weights /= weights.sum()
    state = f"#view=operator&layer=blocks.1&head={head}&row={row}&stage=3"
    page = Page(driver, save_page([probed(model)], tmp_path / "page.html"), state)
    np.testing.assert_allclose(numbers(column(page, "score")), scores, atol=1e-4)
    assert column(page, "weight") == [""] * len(TEXT)
    page.one("[data-stage='4']").click()
    assert column(page, "score")[row + 1 :] == ["−∞"]
    assert "Hatched keys are masked." in page.text("operand-scale")
    page.one("[data-stage='5']").click()
    assert column(page, "weight")[-1] == "masked"
    np.testing.assert_allclose(numbers(column(page, "weight")[:-1]), weights, atol=1e-4)
    sentence = page.one("#explanation .numbers").text
    assert sentence.endswith(f"= {weights.max():.4f}")
    page.one("[data-stage='6']").click()
    (vector,) = re.findall(r"Output: \[(.*)\]", page.one("#explanation .numbers").text)
    np.testing.assert_allclose(numbers(vector.split(", ")), weights @ value[: row + 1], atol=1e-4)
    assert column(page, "token") == [*TEXT]  # text, not markup
    assert page.all("#operands b, img") == []
    assert page.complaints() == []


def test_arrow_keys_change_the_step_and_the_key(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([probed(gpt2())], tmp_path / "page.html"), "#view=operator&row=3&column=1")
    assert column(page, "score") == [""] * len(TEXT)
    page.run("document.querySelector('#operands').focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert page.run("return location.hash") == "#view=operator&row=3&column=2&stage=3"
    query, key, _ = operands(gpt2(), 0, 0)
    expected = f"{query[3] @ key[2] / np.sqrt(DIM):.4f}".replace("-", "−")
    assert page.one("#explanation .numbers").text.endswith(f"score {expected}")
    page.press(Keys.ARROW_LEFT)
    assert page.one("[aria-current=step]").text == "2 Keys"


def test_nothing_moves_if_reduced_motion_is_preferred(driver: WebDriver, tmp_path: Path) -> None:
    path = save_page([probed(gpt2())], tmp_path / "page.html")
    page = Page(driver, path, "#view=operator")
    animation = "return getComputedStyle(document.querySelector('.enter')).animationName"
    assert page.run(animation) == "enter"
    assert page.shown("#stage-play")
    reduced = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": reduced})
    driver.refresh()
    assert page.run(animation) == "none"
    assert not page.shown("#stage-play")
    prefer(driver, "light")


def test_rows_of_keys_that_do_not_fit_are_replaced_by_their_number(driver: WebDriver, tmp_path: Path) -> None:
    answer = AttentionProbe(gpt2(), TOKENIZER)("the cat " * 5)
    assert isinstance(answer, TextAnswer)
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#view=operator&head=0&row=39&stage=6")
    weights = answer.attention[0].weights[0, 39]
    assert len(column(page, "token")) == 32
    hidden = sorted(np.argsort(-weights, kind="stable")[32:])
    runs = np.split(hidden, np.flatnonzero(np.diff(hidden) > 1) + 1)
    rows = page.run("return [...document.querySelectorAll('.hidden-keys')].map(row => row.textContent)")
    found = [re.fullmatch(r"(\d+) keys? with weight (\d\.\d{4}) hidden", row) for row in rows]
    assert [int(each[1]) for each in found if each] == [len(run) for run in runs]
    np.testing.assert_allclose(
        [float(each[2]) for each in found if each], [weights[run].sum() for run in runs], atol=1e-4
    )
    opacities = page.run(
        "return [...document.querySelectorAll('.strip')].map(strip => getComputedStyle(strip).opacity)"
    )
    assert set(opacities) == {"1"}


def test_a_page_says_why_there_is_no_operator(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([LAYERS, probed(gpt2())], tmp_path / "page.html"))
    assert "text encoders and language models only" in page.text("notes")
    page.tokens("examples")[1].click()
    assert "Operator" not in page.text("notes")
    assert page.shown("#tabs [data-view=operator]")


def test_a_step_can_be_exported(driver: WebDriver, tmp_path: Path) -> None:
    answer = probed(gpt2())
    path = save_page([answer], tmp_path / "page.html")
    page = Page(driver, path, "#view=operator&layer=blocks.1&head=1&row=2&stage=5")
    assert page.shown("#svg")
    items = page.run("return qkvExplorer.shown().handle.figure().items.map(({ canvas, ...item }) => item)")
    texts = [item["text"] for item in items if item["type"] == "text"]
    assert texts[0] == "blocks.1, head 1: step 5, Weights"
    shown = [*column(page, "token"), *column(page, "score"), *column(page, "weight")]
    assert set(shown) <= {*texts}
    assert texts.count("masked") == 3  # the later keys
    assert "Blue is positive" in texts[-1]
    assert sum(item["type"] == "image" for item in items) == 1 + len(TEXT)  # query and keys, but not values
    colors = page.run("return getComputedStyle(document.querySelector('.share .fill')).backgroundColor")
    bars = [item["w"] for item in items if item["type"] == "rect" and item["fill"] == colors]
    weights = answer.attention[1].weights[1, 2, :3]
    np.testing.assert_allclose(np.array(bars[:3]) / sum(bars), weights, atol=0.02)
