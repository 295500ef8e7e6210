"""Explanations in the explorer, in a real browser: the scores shown are those of the attribution methods."""

from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.interpret.explainable_images import ImageCaption
from qkv.interpret.explanation import Explanation, explain_all
from qkv.pipelines.captioner import Captioner, NamedImage
from qkv.pipelines.classifier import Classifier
from qkv.visualize import save_page
from qkv.visualize.explorer import explanation_answer
from tests.interpret.known_models import FINE, HONEST, TEXT, bag_of_words
from tests.visualize.explorer.browser import HOSTILE, Keys, Page, WebDriver

pytestmark = pytest.mark.browser
TITLES = "return qkvExplorer.shown().handle.figure().items.filter(item => item.type === 'text').map(item => item.text)"
METHODS = ("attention", "gradient", "leave_one_out")


class Known:
    """The attributes of an explained text."""

    unit = "token"
    grid = None
    labels = ()


def explained(
    scores: list[list[float]], units: tuple[str, ...], outputs: tuple[str, ...] = ("yes",), unit: str = "token"
) -> Explanation:
    known = Known()
    known.unit = unit
    probabilities = tuple(0.75 for _ in outputs)
    return Explanation("gradient", units, outputs, np.array(scores), " ".join(outputs), probabilities, known)  # type: ignore[arg-type]


def decimal(value: float) -> str:
    """Return a number as the page writes it."""
    text = f"{value:.4f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def shades(page: Page, group: str) -> list[list[int]]:
    """Return the red, green and blue of each token."""
    script = """
        return [...document.querySelectorAll(`#${arguments[0]} [role=option]`)].map(cell =>
          getComputedStyle(cell).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number));
    """
    return list(page.run(script, group))


def test_scores_of_the_methods_are_side_by_side(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    explanations = explain_all(bag_of_words(HONEST), METHODS)
    assert explanations[0].faithfulness
    page = Page(driver, save_page([explanation_answer(explanations, TEXT)], tmp_path / "page.html"))
    assert [title.text for title in page.all(".pane h3")] == ["attention", "gradient", "leave one out"]
    measured = explanations[0].faithfulness[0]
    assert page.one(".pane .meta").text == (
        f"AOPC: comprehensiveness {decimal(measured.aopc_comprehensiveness)}, "
        f"sufficiency {decimal(measured.aopc_sufficiency)}"
    )
    assert page.candidates()[0] == (explanations[0].outputs[0], pytest.approx(100 * explanations[0].probabilities[0]))
    for number, explanation in enumerate(explanations):
        assert page.texts(f"method-{number}") == [*explanation.units]
        for index, score in enumerate(explanation.scores):
            page.hover(page.tokens(f"method-{number}")[index])
            assert f"{explanation.method.replace('_', ' ')} {decimal(score)}" in page.text("readout")
    assert page.lit("method-0") == FINE
    page.tokens("method-1")[FINE].click()
    assert page.run("return location.hash") == f"#column={FINE}"
    assert all(page.selected(f"method-{number}") == [FINE] for number in range(3))
    assert not page.shown("#tabs")
    assert page.complaints() == []


@pytest.mark.parametrize("target", ["good", "bad"])
def test_the_explained_label_is_named_next_to_the_probabilities_of_all(
    driver: WebDriver, tmp_path: Path, target: str
) -> None:
    prediction = bag_of_words(HONEST, target=target)
    (classified,) = Classifier(prediction.model)([TEXT])
    answer = explanation_answer(explain_all(prediction, ["attention"]), TEXT)
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    expected = sorted(classified.probabilities.items(), key=lambda item: -item[1])
    assert page.candidates() == [(label, pytest.approx(100 * p, abs=0.006)) for label, p in expected]
    assert f"support “{target}”" in page.one("#view > .note").text


def test_negative_scores_have_another_hue(driver: WebDriver, tmp_path: Path) -> None:
    answer = explanation_answer([explained([[0.5, -0.5, 0.0]], ("good", "bad", "so"))], "good bad so")
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    good, bad, neutral = shades(page, "method-0")
    assert good[2] > good[0] + 40  # blue
    assert bad[0] > bad[2] + 40  # orange
    assert min(neutral) > 230
    weights = page.run("return [...document.querySelectorAll('#method-0 [role=option]')].map(c => c.dataset.weight)")
    assert weights == [".50", "−.50", ""]
    assert page.run(TITLES) == ["gradient", "good", ".50", "bad", "−.50", "so"]
    ticks = "return [...document.querySelectorAll('.ticks span')].map(tick => tick.textContent)"
    assert page.run(ticks) == ["−0.50", "−0.25", "0", "0.25", "0.50"]


@pytest.mark.parametrize(
    ("scores", "texts", "ticks"),
    [
        ([0.0084, -0.0042, 0.0001], [".0084", "−.0042", ""], ["−0.0084", "−0.0042", "0", "0.0042", "0.0084"]),
        ([0.04, 0.012, 0.001], [".040", ".012", ""], ["0", "0.010", "0.020", "0.030", "0.040"]),
        ([0.0132, 0.001, 0.0], [".013", ".001", ""], ["0", "0.003", "0.007", "0.010", "0.013"]),
        ([4e-7, -2e-7, 0.0], ["4e−7", "−2e−7", ""], ["−4.0e−7", "−2.0e−7", "0", "2.0e−7", "4.0e−7"]),
    ],
)
def test_small_scores_are_written_with_the_precision_of_the_scale(
    driver: WebDriver, tmp_path: Path, scores: list[float], texts: list[str], ticks: list[str]
) -> None:
    answer = explanation_answer([explained([scores], ("good", "bad", "so"))], "good bad so")
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    weights = page.run("return [...document.querySelectorAll('#method-0 [role=option]')].map(c => c.dataset.weight)")
    assert weights == texts
    assert page.run("return [...document.querySelectorAll('.ticks span')].map(tick => tick.textContent)") == ticks


@pytest.mark.parametrize(("score", "opposes"), [(0.1, False), (-0.1, True)])
def test_the_note_mentions_negative_scores_if_there_are_any(
    driver: WebDriver, tmp_path: Path, score: float, opposes: bool
) -> None:
    explanation = explained([[0.5, 0.2], [score, 0.4]], ("a", "b"), (" x", " y"))
    page = Page(driver, save_page([explanation_answer([explanation], "ab")], tmp_path / "page.html"))
    note = page.one("#view > .note").text
    assert "support “x”" in note
    assert ("oppose" in note) == opposes
    assert "Each method" not in note


def test_each_output_of_a_generated_text_has_its_scores(driver: WebDriver, tmp_path: Path) -> None:
    explanation = explained([[1.0, 0.0], [0.0, 1.0]], ("a", "b"), (" x", " y"))
    page = Page(driver, save_page([explanation_answer([explanation], "ab")], tmp_path / "page.html"))
    assert [chip.text for chip in page.all("#outputs [role=option]")] == ["x\n75.00 %", "y\n75.00 %"]
    assert page.lit("method-0") == 0
    page.hover(page.tokens("outputs")[1])
    assert page.lit("method-0") == 1
    page.tokens("outputs")[1].click()
    page.hover(page.one("h1"))
    assert page.lit("method-0") == 1
    assert page.run("return location.hash") == "#row=1"


def test_regions_of_an_image_are_colored_by_their_scores(driver: WebDriver, tmp_path: Path) -> None:
    from tests.pipelines.test_captioner import make_captioner

    captioner: Captioner = make_captioner()
    torch.manual_seed(1)
    pixels = np.random.default_rng(0).integers(100, 110, (3, 8, 12), dtype=np.uint8)
    explanations = explain_all(ImageCaption(captioner, NamedImage("a.png", pixels)), ["attention"])
    page = Page(driver, save_page([explanation_answer(explanations, "a.png")], tmp_path / "page.html"))
    scores = explanations[0].all_scores[0]
    page.run("document.querySelector('#method-0').focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)  # region 1,1, then 2,1
    assert page.text("readout") == f"row 2, column 1: attention {scores[3]:.4f}"
    page.run("document.querySelector('#method-0').dispatchEvent(new PointerEvent('pointerleave'))")
    script = """
        const canvas = document.querySelector("#method-0"), context = canvas.getContext("2d");
        return Array.from({ length: 6 }, (_, i) => {
          const x = (i % 3 + 0.5) / 3 * canvas.width, y = (Math.floor(i / 3) + 0.5) / 2 * canvas.height;
          const [r, , b] = context.getImageData(x, y, 1, 1).data;
          return b - r;
        });
    """
    blue = page.run(script)
    np.testing.assert_allclose(np.array(blue) / max(blue), scores / scores.max(), atol=0.06)
    assert page.run(TITLES) == ["attention"]


def test_hostile_units_and_long_sentences_stay_text(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    units = (HOSTILE, "A sentence with several words, which is not cut off after eighty characters, is readable.")
    answer = explanation_answer([explained([[0.5, 0.1]], units, (HOSTILE,), "sentence")], HOSTILE)
    page = Page(driver, save_page([answer], tmp_path / "page.html"))
    assert page.texts("method-0") == [*units]
    assert page.all("img") == []
    assert page.run("return document.title") != "broken"
    assert page.complaints() == []
