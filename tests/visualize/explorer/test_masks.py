"""Masked cells of attention maps in the explorer, in a real browser."""

from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.interpret.attention_probe import AttentionProbe, TextAnswer
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.pipelines.output import Answer, AttentionMap
from qkv.tokenizers import CharTokenizer
from qkv.visualize import save_page
from qkv.visualize.explorer import build_payload
from qkv.visualize.explorer.bundle import render
from qkv.visualize.explorer.payload import to_script
from tests.visualize.explorer.browser import Page, WebDriver

pytestmark = pytest.mark.browser
TOKENIZER = CharTokenizer.train(["the cat sat on the mat"])
NAMES = tuple(f"t{i}" for i in range(120))


def probed() -> TextAnswer:
    torch.manual_seed(3)
    model = GPT2(GPT2Config(vocab_size=len(TOKENIZER), dim=16, heads=2, layers=2, max_length=64)).eval()
    answer = AttentionProbe(model, TOKENIZER)("the cat")
    assert isinstance(answer, TextAnswer)
    return answer


def masked(page: Page) -> np.ndarray:
    """Return which cells of the heat map are masked."""
    script = """
        const { rows, columns, masked } = qkvExplorer.shown().handle.heatMap.plane();
        return rows.map(row => columns.map(column => Boolean(masked?.(row, column))));
    """
    return np.array(page.run(script))


def empty(page: Page, selector: str, rows: int, columns: int) -> np.ndarray:
    """Return which cells of a canvas are transparent at their middles."""
    script = """
        const [selector, rows, columns] = arguments, canvas = document.querySelector(selector);
        const context = canvas.getContext("2d"), at = (index, count, size) => Math.floor((index + 0.5) / count * size);
        return Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (_, j) => context.getImageData(
          at(j, columns, canvas.width), at(i, rows, canvas.height), 1, 1).data[3] === 0));
    """
    return np.array(page.run(script, selector, rows, columns))


def test_masked_cells_are_those_of_the_causal_mask(driver: WebDriver, tmp_path: Path) -> None:
    answer = probed()
    future = ~np.tri(7, dtype=bool)
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#view=matrix")
    assert (masked(page) == future).all()
    assert "masked" in page.one(".legend").text
    assert (empty(page, "#heads canvas", 7, 7) == future).all()
    page.hover_cell(1, 5)
    assert page.one(".tip").text == "“c” is masked for “h”".replace("c", answer.source[5]).replace(
        "h", answer.source[1]
    )
    page.hover_cell(5, 1)
    assert page.one(".tip").text.endswith(f"{answer.attention[0].average[5, 1]:.4f}")
    page.tab("model")
    assert (empty(page, "#grid canvas", 7, 7) == future).all()
    assert "masked" in page.one(".legend").text


def test_a_text_encoder_has_no_masked_cells(driver: WebDriver, tmp_path: Path) -> None:
    weights = np.tri(4) / np.arange(1, 5)[:, None]  # zeros of an encoder are weights
    answer = Answer("abcd", "", 0.0, (AttentionMap("encoder.0", tuple("abcd"), tuple("abcd"), weights[None]),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    assert not masked(page).any()
    assert "masked" not in page.one(".legend").text


def test_masks_with_gaps_and_hidden_tokens(driver: WebDriver, tmp_path: Path) -> None:
    allowed = np.random.default_rng(0).random((5, 5)) < 0.5
    allowed[:, 2] = True
    weights = allowed / allowed.sum(axis=1, keepdims=True)
    tokens = ("a", "b", "c", "d", "[SEP]")
    layer = AttentionMap("encoder.0", tokens, tokens, weights[None])
    answer = TextAnswer("abcd", "", 0.0, (layer,), special=("[SEP]",), masks={"encoder.0": allowed})
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    assert (masked(page) == ~allowed).all()
    page.choose("Special tokens", "hidden")
    assert (masked(page) == ~allowed[:4, :4]).all()


@pytest.mark.parametrize("size", [14_500_000, 60_000])
def test_masks_of_long_texts_are_small_and_drawn_at_every_detail(size: int) -> None:
    weights = np.tri(120) / np.arange(1, 121)[:, None]
    answer = Answer(
        "a", "b", 0.0, tuple(AttentionMap(f"decoder.{i}.self", NAMES, NAMES, weights[None]) for i in (0, 1))
    )
    (example,) = build_payload([answer], max_bytes=size)["examples"]
    assert len(example["masks"]) == 1
    assert len(example["masks"][0]["values"]) <= 120 * 12
    assert {stored["mask"] for stored in example["maps"]} == {0}


@pytest.mark.parametrize("size", [14_500_000, 30_000])
def test_parts_and_thumbnails_of_a_large_map_are_masked(driver: WebDriver, tmp_path: Path, size: int) -> None:
    weights = np.tri(120) / np.arange(1, 121)[:, None]
    answer = Answer("a", "b", 0.0, (AttentionMap("decoder.0.self", NAMES, NAMES, np.stack([weights] * 2)),))
    payload = build_payload([answer], max_bytes=size)
    assert payload["examples"][0]["maps"][0]["weights"]["encoding"] == ("dense" if size > 1e6 else "sparse")
    path = tmp_path / "page.html"
    path.write_text(render("Attention", to_script(payload)), encoding="utf-8")
    page = Page(driver, path)
    script = """
        const [detail] = arguments, plane = qkvExplorer.shown().handle.heatMap.plane(), size = 120 >> detail;
        const values = plane.read(detail, { top: 0, left: 0, height: size, width: size });
        return Array.from({ length: size }, (_, i) => [...values.subarray(i * size, (i + 1) * size)].map(v => v < 0));
    """
    for detail in (0, 2):
        future = np.array(page.run(script, detail))
        assert (future == ~np.tri(120 >> detail, dtype=bool)).all()
    thumbnail = empty(page, "#heads canvas", 24, 24)  # of 48 x 48 blocks
    assert (thumbnail == ~np.tri(24, dtype=bool)).all()
