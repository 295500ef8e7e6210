"""Several claims at a time: shared training runs, seeds in processes, failures, seeds and tables."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from qkv import registry
from qkv.errors import InputError
from qkv.experiments import sweep_workers
from qkv.experiments.claims.claim import SweepClaim
from qkv.experiments.claims.measurements import Sample, Table
from qkv.experiments.claims.runner import RunOptions, run_claims
from qkv.experiments.claims.sample_job import SampleJob, saved_sample
from qkv.experiments.claims.verdict import Mean
from qkv.experiments.sweep import Evaluate
from qkv.experiments.sweep_workers import read_status
from tests.cli.command import process
from tests.experiments.claims.test_runner import MadeUp

TINY = (
    "model.hidden_dim=8",
    "model.embedding_dim=8",
    "train.epochs=1",
    "train.batch_size=64",
    "train.precision=float32",
)


class Trained(SweepClaim):
    """A claim on tiny runs of word pairs."""

    title, statement, equation, hypothesis, limits = "Title", "Statement.", "a > b", "a is larger.", "Nothing."
    notes, source, figure = MadeUp.notes, MadeUp.source, ()
    number, quantity = 1, "exact"
    criteria = (Mean("exact: additive", low=-1.0),)
    recipe: ClassVar = {"small": "pairs-gru"}
    metric: ClassVar = {"small": "exact"}
    factors: ClassVar = {"model.score.name": ("additive", "dot")}
    labels: ClassVar = {"score=additive": "additive", "score=dot": "dot"}
    overrides: ClassVar = {"small": (*TINY, *(f'data.{split}=["pairs.tsv"]' for split in ("train", "valid", "test")))}


class First(Trained):
    """Compares two scores."""

    registered_name = "first"


class Second(Trained):
    """Has one of the runs of the first claim, with another measure, and one of its own."""

    registered_name, number = "second", 2
    factors: ClassVar = {"model.score.name": ("additive", "bilinear")}
    labels: ClassVar = {"score=additive": "additive", "score=bilinear": "bilinear"}

    @classmethod
    def measure_function(cls, scale):
        return Evaluate("test")


class Missing(Trained):
    """Has no data."""

    registered_name, number = "missing", 3
    overrides: ClassVar = {"small": tuple(f'data.{split}=["nothing.tsv"]' for split in ("train", "valid", "test"))}


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Run jobs in this process, in a folder with word pairs; return their names."""
    names: list[str] = []

    def each(jobs, workers, device, watcher):
        for job in jobs:
            names.append(job.name)
            yield job, "" if job.run() else "failed"

    threads = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    words = [f"{word}{number}" for word in ("ab", "cd", "ef", "gh") for number in range(6)]
    Path("pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    monkeypatch.setattr(sweep_workers, "_run_in_processes", each)
    yield names
    torch.set_num_threads(threads)


def outcomes(*claims, **options) -> dict[str, object]:
    """Run claims; return the record or the error of each, in the order of their ends."""
    found: dict[str, object] = {}
    settings = RunOptions(folder=Path("out"), device="cpu", **options)
    run_claims(claims, settings, lambda claim, outcome: found.update({claim.registered_name: outcome}))
    return found


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.experiments.claims.runner.save_claim_figure", lambda claim, numbers, path: path)


@pytest.mark.usefixtures("without_figures")
def test_claims_share_runs_and_one_without_data_does_not_end_the_others(jobs):
    found = outcomes(First, Missing, Second, seeds=2)
    assert isinstance(found["missing"], InputError)
    assert str(found["missing"]).startswith("missing: ")
    assert len(jobs) == 6  # three scores with two seeds, not eight
    assert len(set(jobs)) == 6
    first, second = found["first"].record, found["second"].record
    assert first.measurements.seeds == (0, 1)
    assert first.seconds > 0
    assert set(second.measurements.values) == {"exact: additive", "exact: bilinear"}
    assert sorted(path.name for path in Path("out/records").iterdir()) == ["first-small.json", "second-small.json"]
    jobs.clear()
    assert outcomes(First, Second, seeds=2)["first"].record.measurements == first.measurements
    assert not jobs  # nothing is trained again


@pytest.mark.usefixtures("without_figures")
def test_other_seeds_are_other_runs_and_in_the_command_of_the_record(jobs):
    record = outcomes(First, seeds=2, first_seed=5)["first"].record
    assert record.measurements.seeds == (5, 6)
    assert record.command == "qkv claims run first --scale small --seeds 2 --first-seed 5"
    assert {name[-2:] for name in jobs} == {"-5", "-6"}


@pytest.mark.usefixtures("without_figures")
def test_a_run_that_fails_is_the_error_of_its_claim(jobs, monkeypatch):
    monkeypatch.setattr(sweep_workers.TrialJob, "_train", lambda job, display: 1 / 0)
    assert "ZeroDivisionError" in str(outcomes(First, seeds=2)["first"])


class InProcesses(MadeUp):
    """Measures each seed in a job of its own."""

    registered_name, seeds_in_processes = "in-processes", True

    def sample(self, scale, device):
        return Sample({"size: large": 5 + float(torch.rand(())), "size: small": 0.0}, {"curve": {1: 2.0, 2: 3.0}})


def test_seeds_in_processes_measure_the_same_as_in_one(jobs, monkeypatch):
    monkeypatch.setitem(registry._classes["claim"], "in-processes", InProcesses)
    record = outcomes(InProcesses)["in-processes"].record
    assert jobs == ["in-processes-0", "in-processes-1", "in-processes-2"]
    assert record.measurements == InProcesses().measure("small", range(3), Path("unused"), "cpu")
    jobs.clear()
    outcomes(InProcesses)
    assert not jobs  # the numbers are kept


def test_seeds_of_a_claim_of_the_script_itself_are_measured_in_its_process(jobs, monkeypatch):
    monkeypatch.setitem(registry._classes["claim"], "in-processes", InProcesses)
    monkeypatch.setattr(InProcesses, "__module__", registry.MAIN)
    assert outcomes(InProcesses)["in-processes"].record.measurements.seeds == (0, 1, 2)
    assert not jobs  # which are run in processes
    assert read_status(Path("out/work/small").absolute(), "in-processes-2").done == 1


def test_a_saved_sample_of_other_code_is_not_used(jobs, monkeypatch):
    monkeypatch.setitem(registry._classes["claim"], "in-processes", InProcesses)
    outcomes(InProcesses)
    job = SampleJob.of(InProcesses, "small", 0, Path("out/work/small"))
    assert saved_sample(job) is not None
    monkeypatch.setattr("qkv.runtime.provenance.source_hash", lambda: "other")
    assert saved_sample(job) is None


def test_tables_of_a_claim_are_in_its_record(jobs, monkeypatch):
    monkeypatch.setattr(MadeUp, "tables", classmethod(lambda cls, numbers: (Table("T", ("a",), (("1",),)),)))
    run = outcomes(MadeUp)["made-up"]
    assert json.loads(run.record_path.read_text())["tables"] == [{"title": "T", "headers": ["a"], "rows": [["1"]]}]


def test_several_claims_end_with_a_table_and_resume(tmp_path):
    ended = process("claims", "run", "problem-1", "sql-lookup", "--output", tmp_path, "--device", "cpu")
    assert ended.code == 0
    assert "2 supported" in ended.out.splitlines()[-1]
    again = process("claims", "run", "problem-1", "sql-lookup", "--output", tmp_path, "--device", "cpu", "--resume")
    assert again.code == 0
    assert "2 of 2 claims have a record" in again.err
    assert "2 supported" in again.out.splitlines()[-1]
