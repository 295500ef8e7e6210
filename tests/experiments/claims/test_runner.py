"""Running claims: records, figures, pages and errors, from Python and on the command line."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from qkv.errors import InputError
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, SweepClaim
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.record import read_record, read_records, write_record
from qkv.experiments.claims.report import write_report
from qkv.experiments.claims.runner import run_claim
from qkv.experiments.claims.verdict import Difference
from tests.cli.command import process

FAST = "scaled-dot-variance"


class MadeUp(SampledClaim):
    """Large numbers are larger than small ones."""

    registered_name = "made-up"
    number = 1
    title, statement, equation, hypothesis, limits = "Title", "Statement.", "a > b", "a is larger.", "Nothing."
    notes = (Note("000", "Section"),)
    source = ("src/qkv/attention/score.py::Dot",)
    criteria = (Difference("size: large", "size: small", low=0.0),)
    figure = (Panel("Sizes", "size", points=("size: large", "size: small")),)

    def sample(self, scale, device):
        return Sample({"size: large": 5 + float(torch.rand(())), "size: small": float(torch.rand(()))})


def test_a_record_survives_writing_and_reading(tmp_path):
    run = run_claim(MadeUp, folder=tmp_path, device="cpu")
    assert run.record.verdict == "supported"
    assert read_record(run.record_path) == run.record
    assert read_records(tmp_path / "records") == [run.record]
    assert run.figure_path.read_bytes()[:4] == b"\x89PNG"
    assert run.record.torch == torch.__version__
    assert run.record.command == "qkv claims run made-up --scale small"


def test_the_same_seeds_measure_the_same_numbers(tmp_path):
    first, second = (run_claim(MadeUp, folder=tmp_path / name, device="cpu").record for name in "ab")
    assert first.measurements == second.measurements
    assert len(set(first.measurements.values["size: large"])) == 3


def test_a_truncated_record_is_an_error(tmp_path):
    path = run_claim(MadeUp, folder=tmp_path, device="cpu").record_path
    path.write_text(path.read_text()[:-30])
    with pytest.raises(InputError, match="made-up"):
        read_record(path)


def test_a_record_without_a_verdict_is_an_error(tmp_path):
    path = run_claim(MadeUp, folder=tmp_path, device="cpu").record_path
    table = json.loads(path.read_text())
    del table["verdict"]
    path.write_text(json.dumps(table))
    with pytest.raises(InputError, match="verdict"):
        read_record(path)


@pytest.mark.parametrize(("scale", "seeds"), [("small", 1), ("full", 2)])
def test_too_few_seeds_are_an_error(tmp_path, scale, seeds):
    with pytest.raises(InputError, match="seeds"):
        run_claim(MadeUp, scale, seeds, tmp_path, "cpu")
    assert not list(tmp_path.rglob("*.json"))


def test_a_value_that_is_not_finite_is_an_error_without_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(MadeUp, "sample", lambda self, *_: Sample({"size: large": math.nan, "size: small": 0.0}))
    with pytest.raises(InputError, match="finite"):
        run_claim(MadeUp, folder=tmp_path, device="cpu")
    assert not list(tmp_path.rglob("*.json"))


def test_missing_data_are_an_error_without_a_record(tmp_path, monkeypatch):
    class NoData(MadeUp, SweepClaim):
        recipe: ClassVar = {"small": "pairs-gru"}
        metric: ClassVar = {"small": "exact"}
        quantity = "size"
        factors: ClassVar = {"model.score.name": ("dot", "additive")}
        labels: ClassVar = {"score=dot": "large", "score=additive": "small"}
        overrides: ClassVar = {"small": tuple(f'data.{split}=["missing.tsv"]' for split in ("train", "valid", "test"))}
        measure = SweepClaim.measure

    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="missing"):
        run_claim(NoData, folder=tmp_path / "out", device="cpu")
    assert not list(tmp_path.rglob("records/*.json"))


def test_the_report_needs_records(tmp_path):
    with pytest.raises(InputError, match="no records"):
        write_report(tmp_path, tmp_path / "pages")


def test_a_record_of_an_unknown_claim_is_an_error(tmp_path):
    run = run_claim(MadeUp, folder=tmp_path, device="cpu")
    write_record(tmp_path / "records", replace(run.record, claim="unknown"))
    with pytest.raises(InputError, match="registered"):
        write_report(tmp_path / "records", tmp_path / "pages")


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("claims")
    ended = process("claims", "run", FAST, "--output", folder, "--device", "cpu", "--json")
    assert ended.code == 0, ended
    (line,) = ended.out.splitlines()
    record = json.loads(line)
    assert record["claim"] == FAST
    assert record["verdict"] in ("supported", "mixed", "not supported")
    assert Path(record["figure"]).is_file()
    return folder


class TestCommands:
    """`qkv claims`."""

    def test_claims_are_listed_one_per_line_with_their_verdicts(self, output):
        ended = process("claims", "--output", output, "--json")
        claims = {claim["claim"]: claim for claim in map(json.loads, ended.out.splitlines())}
        assert claims[FAST]["scale"] == "small"
        assert claims[FAST]["verdict"] == read_record(output / "records" / f"{FAST}-small.json").verdict
        lines = process("claims", "--output", output).out.splitlines()
        assert len(lines) == 1 + len(claims)
        assert any(FAST in line and "small" in line for line in lines)

    def test_a_claim_is_shown_with_its_criteria(self, output):
        ended = process("claims", "show", FAST, "--output", output)
        assert ended.code == 0
        assert "expected" in ended.out

    def test_an_unknown_id_names_the_nearest(self, output):
        assert f"did you mean {FAST}?" in process("claims", "run", FAST[:-1], "--output", output).error
        assert f"did you mean {FAST}?" in process("claims", "show", FAST[:-1]).error

    @pytest.mark.parametrize("arguments", [[], [FAST, "--all"]])
    def test_ids_or_all_are_required(self, arguments):
        assert "--all" in process("claims", "run", *arguments).error

    def test_resume_skips_finished_claims(self, output):
        ended = process("claims", "run", FAST, "--output", output, "--resume")
        assert (ended.code, ended.out) == (0, "")

    def test_one_seed_is_too_few(self, output, tmp_path):
        ended = process("claims", "run", FAST, "--seeds", 1, "--output", tmp_path)
        assert ended.code == 2
        assert "seeds" in ended.err

    def test_pages_are_written_from_records(self, output, tmp_path):
        ended = process("claims", "report", output / "records", "--output", tmp_path)
        assert ended.code == 0, ended
        page = (tmp_path / "scores" / f"{FAST}.md").read_text()
        assert f"({tmp_path.name}" not in page
        assert "**Verdict: " in page
        assert FAST in (tmp_path / "index.md").read_text()
        assert (tmp_path / "figures" / f"{FAST}.png").is_file()
