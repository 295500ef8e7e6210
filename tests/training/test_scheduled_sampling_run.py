"""Scheduled sampling in the training loop."""

import pytest

from qkv.training import job
from qkv.training.recipe import read_recipe

from .conftest import TINY
from .stopping import assert_bit_equal, stop_after, tensors

SCHEDULES = ("linear", "exponential", "inverse_sigmoid")


def recipe_with(schedule):
    return read_recipe("dates-gru", [*TINY, "train.epochs=1", f"task.scheduled_sampling.schedule={schedule}"])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_changes_a_training_of_one_epoch(schedule, short, tmp_path):
    job.begin(short, tmp_path / "teacher-forcing", "cpu")
    job.begin(recipe_with(schedule), tmp_path / schedule, "cpu")
    weights, changed = tensors(tmp_path / "teacher-forcing"), tensors(tmp_path / schedule)
    assert not weights["readout.weight"].equal(changed["readout.weight"])


def test_a_resumed_run_has_the_weights_of_an_uninterrupted_one(tmp_path, monkeypatch: pytest.MonkeyPatch):
    job.begin(recipe_with("linear"), tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        job.begin(recipe_with("linear"), tmp_path / "stopped", "cpu")
    job.resume(tmp_path / "stopped", "cpu")
    assert_bit_equal(tmp_path / "whole", tmp_path / "stopped")
