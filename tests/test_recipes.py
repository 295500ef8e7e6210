"""The recipes that ship reach what the documentation says of them. Minutes each: run with -m slow."""

import pytest

from qkv.evaluation.translation import evaluate
from qkv.tasks.translator import Translator
from qkv.training import job
from qkv.training.recipe import read_recipe

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "exact", "alignment", "seconds"), [("dates-gru", 0.995, 0.90, 60), ("dates-transformer", 0.99, 0.90, 180)]
)
def test_dates_are_read_as_well_and_as_fast_as_promised_on_two_cores(name, exact, alignment, seconds, tmp_path):
    done = job.begin(read_recipe(name), tmp_path / "run", "cpu")
    report = evaluate(Translator(tmp_path / "run", device="cpu"), done.run.data().splits["test"])
    assert report.pairs == 2000
    assert report.exact >= exact
    assert report.alignment >= alignment
    assert done.place.seconds <= seconds
