"""The next tokens of language models in the explorer, in a real browser."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.interpret.attention_probe import AttentionProbe, TextAnswer
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.llama import Llama, LlamaConfig
from qkv.models.lstmn import LSTMN, LSTMNConfig
from qkv.pipelines.generator import Generator
from qkv.pipelines.output import AttentionMap
from qkv.tokenizers import CharTokenizer
from qkv.visualize import save_page
from tests.visualize.explorer.browser import HOSTILE, Keys, Page, WebDriver

pytestmark = pytest.mark.browser
PROMPT, NEW = f"the cat {HOSTILE[:14]}", 6
TOKENIZER = CharTokenizer.train([f"the cat sat on the mat {HOSTILE}"])
SIZES = {"vocab_size": len(TOKENIZER), "dim": 16, "heads": 2, "layers": 2, "max_length": 64}


def language_model(kind: str) -> Any:
    torch.manual_seed(3)
    if kind == "rnn":
        return LSTMN(LSTMNConfig(vocab_size=len(TOKENIZER), embedding_dim=16, hidden_dim=16, layers=1)).eval()
    return (GPT2(GPT2Config(**SIZES)) if kind == "gpt2" else Llama(LlamaConfig(**SIZES))).eval()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "rnn"])
def test_candidates_and_attention_of_each_step_are_those_of_the_model(
    driver: WebDriver, tmp_path: Path, kind: str
) -> None:
    driver.get_log("browser")
    model = language_model(kind)
    answer = AttentionProbe(model, TOKENIZER)(PROMPT, max_new_tokens=NEW)
    assert isinstance(answer, TextAnswer)
    assert answer.text == Generator(model, TOKENIZER)(PROMPT, max_new_tokens=NEW, temperature=0.0).continuation
    ids = TOKENIZER.encode(PROMPT + answer.text)
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0].softmax(dim=-1)
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#view=generation&head=0")
    assert page.text("step") == f"Step {len(PROMPT)} of {len(ids)}"  # the first generated token
    for step in (len(PROMPT), len(PROMPT) + 1, len(ids)):
        page.run("qkvExplorer.state.set({ step: String(arguments[0]) })", step)
        best = expected[step - 1].topk(10)
        tokens, percentages = zip(*page.candidates("candidates"), strict=True)
        assert [*tokens] == [TOKENIZER.piece(int(i)) for i in best.indices]
        np.testing.assert_allclose(percentages, 100 * best.values, atol=6e-3)
        weights = answer.attention[0].weights[0, step - 1]
        largest = int(np.argmax(weights[:step]))
        assert f"“{TOKENIZER.piece(ids[largest])}”".replace(" ", "␣") in page.text("readout")
        assert f"{weights[largest]:.4f}" in page.text("readout")
    assert page.all("img") == []
    assert page.complaints() == []


def test_steps_are_changed_by_click_buttons_and_arrow_keys(driver: WebDriver, tmp_path: Path) -> None:
    answer = AttentionProbe(language_model("gpt2"), TOKENIZER)("the cat sat")
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#view=generation")
    assert page.text("step") == "Step 11 of 11: after the last token"
    assert page.one("#next-step").get_attribute("disabled")
    page.one("#previous-step").click()
    assert page.selected("steps") == [10]
    page.tokens("steps")[4].click()
    assert page.run("return location.hash") == "#view=generation&step=4"
    assert page.text("outcome").startswith("“c” has probability")
    page.press(Keys.ARROW_RIGHT)
    assert page.selected("steps") == [5]
    later = page.run("return [...document.querySelectorAll('#steps [role=option]')].map(c => c.dataset.weight)")[5:]
    assert later == [""] * 6  # tokens after the query are not attended to


def test_a_text_encoder_has_no_next_tokens(driver: WebDriver, tmp_path: Path) -> None:
    answer = AttentionProbe(language_model("gpt2"), TOKENIZER)("cat")
    page = Page(driver, save_page([TextAnswer(answer.source, "", 0.0, answer.attention)], tmp_path / "page.html"))
    assert page.all("#tabs [data-view=generation]") == []


def test_a_language_model_opens_on_its_next_tokens_or_its_last_query(driver: WebDriver, tmp_path: Path) -> None:
    probe = AttentionProbe(language_model("gpt2"), TOKENIZER)
    generated, plain = probe("the cat", max_new_tokens=3), probe("the cat")
    page = Page(driver, save_page([generated, plain], tmp_path / "page.html"))
    assert page.one("#tabs [aria-selected=true]").text == "Next token"
    page.tokens("examples")[1].click()
    assert page.one("#tabs [aria-selected=true]").text == "Matrix"
    assert page.selected("rows") == [6]
    best = int(np.argmax(plain.attention[0].average[6]))
    assert page.lit("cols") == best


def test_an_empty_token_is_a_space_of_full_height(driver: WebDriver, tmp_path: Path) -> None:
    tokens = ("", "ab", "c")
    answer = TextAnswer("ab c", "", 0.0, (AttentionMap("encoder.0", tokens, tokens, np.eye(3)[None]),))
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    empty, full = page.tokens("rows")[:2]
    assert empty.size["height"] == full.size["height"]
    assert page.run("return document.querySelector('#rows .mark').dataset.mark") == "␣"
    assert page.text("readout") == "“␣” attends to “␣” 1.0000"
    page.tab("lines")
    assert page.run("return document.querySelector('#query .mark').dataset.mark") == "␣"
