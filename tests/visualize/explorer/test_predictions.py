"""Probabilities of labels, tags, masked tokens and answers in the explorer, in a real browser."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.datasets.examples.tagged import Tagged
from qkv.interpret.attention_probe import AttentionProbe, TextAnswer
from qkv.pipelines.inputs.text_inputs import inference_batch_size
from qkv.pipelines.output import Candidate, Prediction
from qkv.pipelines.tagger import tag_logits
from qkv.visualize import save_page
from qkv.visualize.explorer import build_payload
from tests.serve.small_models import encoders
from tests.visualize.explorer.browser import HOSTILE, LAYERS, Keys, Page, WebDriver, narrow

pytestmark = pytest.mark.browser
TEXT = "The cat sat on the mat"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "encoders"
    encoders(folder)
    return folder


def test_a_classifier_shows_the_probability_of_each_label(driver: WebDriver, tmp_path: Path, models: Path) -> None:
    driver.get_log("browser")
    answer = AttentionProbe(models / "classifier")(TEXT)
    expected = qkv.Classifier(models / "classifier")(TEXT)
    page = Page(driver, save_page([answer], tmp_path / "page.html"), "#embed=1")
    labels, percentages = zip(*page.candidates(), strict=True)
    assert [*labels] == [*expected.probabilities]
    np.testing.assert_allclose(percentages, [100 * p for p in expected.probabilities.values()], atol=6e-3)
    widths = page.run("return [...document.querySelectorAll('#predictions .fill')].map(bar => bar.style.width)")
    np.testing.assert_allclose([float(width[:-1]) for width in widths], percentages, atol=6e-3)
    assert "log-probability" not in page.one("body").text
    assert page.complaints() == []


def test_a_tagger_shows_the_tags_of_each_word(driver: WebDriver, tmp_path: Path, models: Path) -> None:
    answer = AttentionProbe(models / "tagger")(TEXT)
    tagged = qkv.Tagger(models / "tagger")(TEXT)
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    chips = page.all("#predictions [role=option]")
    assert [chip.text.split("\n")[:2] for chip in chips] == [
        [word, tag] for word, tag in zip(tagged.words, tagged.tags, strict=True)
    ]
    words = Tagged(tagged.words, ("",) * len(tagged.words))
    tagger = qkv.Tagger(models / "tagger")
    (logits,) = tag_logits(tagger.model, tagger.encoder, [words], inference_batch_size(1))
    expected = logits.softmax(dim=-1).max(dim=-1).values
    assert len({round(p, 4) for p in expected.tolist()}) == len(tagged.words)  # each word has its own distribution
    shown = [float(chip.text.split("\n")[2][:-2]) for chip in chips]
    np.testing.assert_allclose(shown, 100 * expected, atol=6e-3)
    page.hover(chips[2])
    assert page.candidates()[0] == (tagged.tags[2], shown[2])
    assert sum(percent for _, percent in page.candidates()) == pytest.approx(100, abs=0.02)
    chips[1].click()
    assert page.run("return location.hash") == "#part=1"


def test_a_masked_language_model_shows_the_tokens_of_each_mask(driver: WebDriver, tmp_path: Path, models: Path) -> None:
    text = "The [MASK] sat on the [MASK]."
    answer = AttentionProbe(models / "filler")(text)
    filled = qkv.MaskFiller(models / "filler")(text)
    assert answer.text == filled.filled
    assert answer.attention[0].columns.count("[MASK]") == 2
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    for number, guesses in enumerate(filled.guesses):
        page.run("qkvExplorer.state.set({ part: String(arguments[0]) })", number)
        shown = page.candidates()
        assert [token for token, _ in shown[:5]] == [guess.word for guess in guesses]
        np.testing.assert_allclose([p for _, p in shown[:5]], [100 * guess.probability for guess in guesses], atol=6e-3)
        assert sum(percent for _, percent in shown) == pytest.approx(100, abs=0.04)


def test_a_text_that_ends_with_a_question_has_answers(models: Path) -> None:
    context, question = "The cat sat on the mat. It was good.", "The cat sat?"
    answer = AttentionProbe(models / "answerer")(f"{context} {question}")
    expected = qkv.QuestionAnswerer(models / "answerer")(question, f"{context} ", top_k=5)
    (prediction,) = answer.predictions
    found = {candidate.text: candidate.probability for candidate in prediction.candidates}
    assert found == {span.text: span.probability for span in expected.candidates} | {"[no answer]": expected.no_answer}
    assert answer.text == prediction.candidates[0].text
    tokens = answer.attention[0].columns
    assert tokens.count("[SEP]") == 2  # the question, then the text
    assert tokens[1:4] == ("the", "cat", "sat")
    assert AttentionProbe(models / "answerer")(TEXT).predictions == ()


@pytest.mark.parametrize("seed", [0, 4, 5])  # whose answers have several words, far from the start
def test_the_window_with_the_answer_is_shown(models: Path, seed: int) -> None:
    words = ["the", "cat", "sat", "on", "the", "mat", "good"] * 50
    random.Random(seed).shuffle(words)
    context, question = " ".join(words) + ".", "The cat sat?"
    answer = AttentionProbe(models / "answerer")(f"{context} {question}")
    span = qkv.QuestionAnswerer(models / "answerer")(question, f"{context} ").candidates[0]
    question_and_text = " ".join(answer.attention[0].columns)
    assert span.text in question_and_text
    assert span.text not in context[: len(question_and_text)]


def test_hostile_labels_and_words_stay_text(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    candidates = (Candidate(HOSTILE, 0.7), Candidate("a\u202eb\nc", 0.1), Candidate("x" * 5000, 0.1))
    predictions = tuple(Prediction(part, candidates) for part in (HOSTILE, ""))
    answer = TextAnswer("a", HOSTILE, 0.0, LAYERS.attention, predictions=predictions)
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    shown = page.candidates()
    assert [text for text, _ in shown[:2]] == [HOSTILE, "a⟨202E⟩b⏎c"]
    assert len(shown[2][0]) < 100
    assert shown[3] == ("others", 10.0)
    assert page.all("img") == []
    assert page.run("return document.title") != "broken"
    assert page.complaints() == []


def test_generated_texts_have_a_named_log_probability() -> None:
    (example,) = build_payload([LAYERS])["examples"]
    assert (example["score"], example["score_name"]) == (-1.5, "length-normalized log-probability")
    assert example["predictions"] == []


def test_long_words_many_words_and_long_labels_fit_a_phone(driver: WebDriver, tmp_path: Path) -> None:
    candidates = (Candidate("x" * 300, 0.7), Candidate("y " * 100, 0.2))
    many = tuple(Prediction("w" * 200, candidates) for _ in range(300))
    answers = [replace(LAYERS, predictions=predictions) for predictions in (many[:1], many)]
    narrow(driver, 390)
    try:
        page = Page(driver, save_page(answers, tmp_path / "page.html"))
        for example in page.tokens("examples"):
            example.click()
            assert page.run("return document.documentElement.scrollWidth") == 390
            assert page.one("#predictions").size["height"] < 600
            assert page.one("#predictions .track").size["width"] > 80
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_predictions_are_reached_by_the_keyboard_and_have_names(driver: WebDriver, tmp_path: Path) -> None:
    words = tuple(Prediction(word, (Candidate(f"tag of {word}", 1.0),)) for word in ("cats", "sleep"))
    page = Page(driver, save_page([replace(LAYERS, predictions=words)], tmp_path / "page.html"))
    assert page.one("#predictions [role=listbox]").accessible_name == "Predictions"
    assert page.one("#predictions ol").get_attribute("aria-label") == "Most probable for cats"
    page.run("document.querySelector('#predictions [role=option]').focus()")
    page.press(Keys.ARROW_RIGHT)
    assert page.candidates() == [("tag of sleep", 100.0)]
    assert page.one("#predictions ol").get_attribute("aria-label") == "Most probable for sleep"
    page.press(Keys.ENTER)
    assert page.run("return location.hash") == "#part=1"
