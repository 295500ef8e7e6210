"""Predictions of answers in notebooks."""

from qkv.pipelines.output import Answer, Candidate, Prediction
from qkv.visualize.notebook import answers  # noqa: F401  (registers the types)
from qkv.visualize.notebook.html import to_html


def test_probabilities_replace_the_score() -> None:
    labels = (Candidate("<b>good", 0.75), Candidate("bad", 0.25))
    shown = to_html(Answer("a film", "<b>good", -0.3, predictions=(Prediction("", labels),)))
    assert "75.0%" in shown
    assert "25.0%" in shown
    assert "score" not in shown
    assert "<b>good" not in shown.replace("<b>&lt;b&gt;good</b>", "")
    assert "score -0.3" in to_html(Answer("ein Film", "a film", -0.3))


def test_several_predictions_are_a_table() -> None:
    words = tuple(Prediction(word, (Candidate(f"{word}-tag", 0.5),)) for word in ("cats", "sleep"))
    shown = to_html(Answer("cats sleep", "N V", float("nan"), predictions=words))
    for part in ("cats", "cats-tag", "sleep", "sleep-tag", "50.0%"):
        assert part in shown
