"""Training stops early when it is told to, and stays stopped."""

from dataclasses import replace

import pytest

from qkv.tasks.language_model import LanguageModelTask
from qkv.training import job


@pytest.mark.parametrize(
    ("losses", "patience", "steps", "best"),
    [
        ([3.0, 2.0, 2.5, 2.4, 1.0], 2, 16, 8),  # the fourth validation is the second without a better one
        ([3.0, 2.0, 2.5, 2.0, 2.5, 2.5], 2, 24, 16),  # as good as the best is good enough
        ([3.0, float("nan"), float("nan")], 2, 12, 4),
        ([3.0] + [4.0] * 50, 0, 53, 4),  # never: the end of the sixth epoch
    ],
)
def test_a_run_ends_after_so_many_validations_without_a_better_one(
    losses, patience, steps, best, tiny_text, tmp_path, monkeypatch
):
    given = iter(losses)
    monkeypatch.setattr(LanguageModelTask, "validate", lambda self, model: {"loss": next(given)})
    recipe = replace(tiny_text, train=replace(tiny_text.train, patience=patience, epochs=6))
    done = job.begin(recipe, tmp_path / "run", "cpu")
    assert done.place.finished
    assert done.place.step == steps
    assert done.place.best.step == best
    assert job.resume(tmp_path / "run", "cpu").place == done.place


def test_patience_survives_an_interruption(tiny_text, tmp_path, monkeypatch):
    given = iter([3.0, 4.0, 4.0, 1.0])
    monkeypatch.setattr(LanguageModelTask, "validate", lambda self, model: {"loss": next(given)})
    recipe = replace(tiny_text, train=replace(tiny_text.train, patience=2))
    with monkeypatch.context() as patch:
        asked = iter([False] * 8 + [True] * 100)
        patch.setattr("qkv.training.interrupt.Interrupt.__bool__", lambda self: next(asked))
        assert job.begin(recipe, tmp_path / "run", "cpu").place.stale == 1
    assert job.resume(tmp_path / "run", "cpu").place.step == 12
