"""Early stopping."""

import pytest

from qkv.tasks.language_modeling import LanguageModelingTask
from qkv.training import job

from .stopping import stop_after


@pytest.mark.parametrize(
    ("losses", "patience", "steps", "best"),
    [
        ([3.0, 2.0, 2.5, 2.4, 1.0], 2, 16, 8),  # the fourth validation is the second without improvement
        ([3.0, 2.0, 2.5, 2.0, 2.5, 2.5], 2, 24, 16),  # a tie with the best counts as an improvement
        ([3.0, float("nan"), float("nan")], 2, 12, 4),
        ([3.0] + [4.0] * 50, 0, 53, 4),  # never: the end of the sixth epoch
    ],
)
def test_a_run_stops_after_patience_validations_without_improvement(
    losses, patience, steps, best, tiny_text, tmp_path, monkeypatch
):
    validation_losses = iter(losses)
    monkeypatch.setattr(LanguageModelingTask, "validate", lambda self, model: {"loss": next(validation_losses)})
    recipe = tiny_text.replace(train=tiny_text.train.replace(patience=patience, epochs=6))
    done = job.begin(recipe, tmp_path / "run", "cpu")
    assert done.state.finished
    assert done.state.step == steps
    assert done.state.best.step == best
    assert job.resume(tmp_path / "run", "cpu").state == done.state


def test_patience_survives_a_resume(tiny_text, tmp_path, monkeypatch):
    validation_losses = iter([3.0, 4.0, 4.0, 1.0])
    monkeypatch.setattr(LanguageModelingTask, "validate", lambda self, model: {"loss": next(validation_losses)})
    recipe = tiny_text.replace(train=tiny_text.train.replace(patience=2))
    with monkeypatch.context() as patch:
        stop_after(patch, 9)
        assert job.begin(recipe, tmp_path / "run", "cpu").state.evals_since_best == 1
    assert job.resume(tmp_path / "run", "cpu").state.step == 12
