"""Every registered claim: its attributes, its criteria, its code, and its shipped record."""

import re
import string

import pytest

from qkv.errors import InputError
from qkv.experiments.claims.claim import SCALES, Claim, Note, RecipeClaim, SweepClaim
from qkv.experiments.claims.figure import MAX_FIGURE_BYTES, axis_label
from qkv.experiments.claims.record import read_records, shipped_records
from qkv.experiments.claims.report import NOTES, claim_page, index_page, page_path
from qkv.experiments.claims.runner import all_claims, find_claim
from qkv.experiments.claims.source_symbols import find_symbol
from qkv.experiments.claims.verdict import combine, judge
from qkv.experiments.sweep import Sweep
from tests.experiments.claims.made_up import numbers_for

CLAIMS = all_claims()
RECORDS = read_records(shipped_records())
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.registered_name)
each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.file_name)


@each_claim
def test_everything_known_about_a_claim_is_an_attribute(claim: type[Claim]):
    for name in ("title", "statement", "equation", "hypothesis", "limits"):
        assert getattr(claim, name).strip(), name
    assert claim.notes
    assert all(isinstance(note, Note) and note.number in NOTES and note.section for note in claim.notes)
    assert claim.criteria
    assert claim.figure
    assert claim.__doc__
    assert set(claim.registered_name) <= set(string.ascii_lowercase + string.digits + "-")
    assert 1 <= claim.number <= 59  # from 56 on: worked examples
    assert len(claim.title) <= 80


@each_claim
def test_the_code_of_a_claim_exists(claim):
    assert claim.source
    for reference in claim.source:
        path, symbol = find_symbol(reference)
        assert f"{path}::{symbol}" == reference


def test_a_symbol_that_does_not_exist_is_an_error():
    with pytest.raises(InputError, match="symbol"):
        find_symbol("src/qkv/attention/score.py::ScaledDot.missing")


def test_numbers_are_unique():
    numbers = [claim.number for claim in CLAIMS]
    assert len(set(numbers)) == len(numbers)


@each_claim
def test_every_criterion_has_a_threshold_and_passes_on_one_side_only(claim):
    for criterion in claim.criteria:
        assert criterion.low is not None or criterion.high is not None
        assert criterion.evaluate(numbers_for(criterion, passes=True)).outcome == "pass"
        assert criterion.evaluate(numbers_for(criterion, passes=False)).outcome != "pass"


@each_claim
def test_a_claim_can_have_each_verdict(claim):
    def verdict(*passes: bool) -> str:
        pairs = zip(claim.criteria, passes, strict=True)
        return combine([each.evaluate(numbers_for(each, passes=ok)).outcome for each, ok in pairs])

    count = len(claim.criteria)
    assert verdict(*[True] * count) == "supported"
    assert verdict(*[False] * count) == "not supported"
    if count > 1:
        assert verdict(True, *[False] * (count - 1)) == "mixed"


@each_claim
def test_a_claim_is_found_by_its_id_and_its_number(claim):
    assert find_claim(claim.registered_name) is claim
    assert find_claim(str(claim.number)) is claim


@pytest.mark.parametrize(
    "claim", [c for c in CLAIMS if issubclass(c, SweepClaim)], ids=lambda claim: claim.registered_name
)
@pytest.mark.parametrize("scale", ["small", "full"])
def test_the_runs_of_a_sweep_have_labels(claim, scale):
    trials = Sweep(claim.recipe[scale], claim.factors, (0,), claim.overrides[scale]).trials
    assert {trial.label for trial in trials} == set(claim.labels)


@pytest.mark.parametrize(
    "claim", [c for c in CLAIMS if issubclass(c, RecipeClaim)], ids=lambda claim: claim.registered_name
)
def test_the_recipes_of_a_claim_have_the_same_conditions_at_both_scales(claim):
    small, full = (claim.sweeps(scale, (0, 1)) for scale in SCALES)
    assert list(small) == list(full)
    assert all(len(sweep.trials) == 2 for sweep in (*small.values(), *full.values()))


@each_record
def test_a_shipped_verdict_follows_from_its_numbers_and_the_criteria_of_the_claim(record):
    claim = find_claim(record.claim)
    verdict, results = judge(claim.criteria, record.measurements, claim.min_seeds(record.scale))
    assert verdict == record.verdict
    for new, old in zip(results, record.results, strict=True):
        assert (new.quantity, new.low, new.high, new.outcome) == (old.quantity, old.low, old.high, old.outcome)
        assert new.estimate == pytest.approx(old.estimate)


@each_record
def test_a_shipped_record_has_a_page_and_a_figure(record):
    folder, claim = shipped_records().parent, find_claim(record.claim)
    page = (folder / page_path(claim)).read_text()
    figure = folder / "figures" / f"{record.claim}.png"
    assert figure.stat().st_size <= MAX_FIGURE_BYTES
    assert f"# {claim.number}. " in page
    assert record.command in page
    for target in re.findall(r"\]\(([^)#]+)", page):
        assert (folder / claim.group() / target).exists(), target


def test_the_shipped_index_is_generated_from_the_records():
    newest = {record.claim: record for record in RECORDS}
    assert (shipped_records().parent / "index.md").read_text() == index_page(list(newest.values()))


@each_claim
def test_the_shipped_page_is_generated_from_the_records(claim):
    records = [record for record in RECORDS if record.claim == claim.registered_name]
    page = (shipped_records().parent / page_path(claim)).read_text(encoding="utf-8")
    assert page == claim_page(claim, records)


@each_claim
def test_the_axes_of_a_figure_are_labelled_for_one_scale(claim):
    for panel in claim.figure:
        for scale in SCALES:
            assert axis_label(panel.y_label, scale)
            assert "scale)" not in f"{axis_label(panel.x_label, scale)} {axis_label(panel.y_label, scale)}"
