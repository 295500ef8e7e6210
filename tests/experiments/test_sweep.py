"""Sweeps: the runs of each combination, what is kept, and what is reported."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from qkv import registry
from qkv.attention import Dot
from qkv.errors import InputError
from qkv.experiments import sweep as sweeps
from qkv.experiments import sweep_workers
from qkv.experiments.results import read_records
from qkv.experiments.sweep import Evaluate, Sweep, SweepResult, TrialResult, trial_jobs
from qkv.experiments.sweep_report import cells, markdown, to_json, write_report
from qkv.experiments.sweep_workers import TrialJob, read_status
from qkv.experiments.t_test import mean_interval, welch
from qkv.hub.tensors import read_tensors
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.runtime.cluster import WorkerOptions
from qkv.training.loop import Trainer
from qkv.training.run import Run

TINY = (
    "model.hidden_dim=8",
    "model.embedding_dim=8",
    "model.max_length=12",
    "train.epochs=2",
    "train.batch_size=64",
    "train.save_every=3",
    "train.best_by=exact",
)
SCORES = {"model.score.name": ("additive", "dot")}


def final_loss(run: Run, device: str) -> dict[str, float]:
    """A measure other than an evaluation."""
    records = map(json.loads, (run.folder / "log.jsonl").read_text().splitlines())
    return {"final": [record["loss"] for record in records if record["kind"] == "train"][-1]}


def fail_for_dot(run: Run, device: str) -> dict[str, float]:
    if run.recipe.model.score.name == "dot":
        raise InputError("this measure is not defined for dot")
    return {"one": 1.0}


@pytest.fixture(autouse=True)
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of word pairs, in the current folder."""
    monkeypatch.chdir(tmp_path)
    words = [f"{word}{number}" for word in ("ab", "cd", "ef", "gh") for number in range(12)]
    Path("pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))


def sweep_of(factors, seeds=(0,), overrides=(), measure=Evaluate()) -> Sweep:  # noqa: B008
    """A sweep of a small model of the word pairs."""
    files = [f'data.{split}=["pairs.tsv"]' for split in ("train", "valid", "test")]
    return Sweep("pairs-gru", factors, seeds, (*TINY, *files, *overrides), measure)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the trials in this process; return the names of those that are run."""
    names: list[str] = []
    threads, run = torch.get_num_threads(), TrialJob.run

    def run_and_name(trial: TrialJob) -> bool:
        names.append(trial.name)
        return run(trial)

    def each(jobs, workers, device, watcher) -> Iterator[tuple[TrialJob, str]]:
        for trial in jobs:
            yield trial, "" if trial.run() else "failed"

    monkeypatch.setattr(TrialJob, "run", run_and_name)
    monkeypatch.setattr(sweep_workers, "_run_in_processes", each)
    yield names
    torch.set_num_threads(threads)


def test_combinations_and_seeds() -> None:
    sweep = sweep_of({**SCORES, "train.lr": ("0.01", "0.001")}, (3, 4))
    assert [(trial.label, trial.recipe.seed) for trial in sweep.trials[:3]] == [
        ("score=additive, lr=0.01", 3),
        ("score=additive, lr=0.01", 4),
        ("score=additive, lr=0.001", 3),
    ]
    assert len({trial.name for trial in sweep.trials}) == 8
    assert all(trial.recipe.data == sweep.trials[0].recipe.data for trial in sweep.trials)
    recipes = Sweep("dates-gru", {"recipe": ("dates-gru", "dates-transformer")}, (0,)).trials
    assert [trial.recipe.model.registered_name for trial in recipes] == ["rnn_seq2seq", "transformer"]
    options = Sweep("dates-gru", {"model.score": ('{name="low_rank", rank=2}', '{name="low_rank", rank= 2}')}, (0,))
    assert len({trial.name for trial in options.trials}) == 2


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ({"model.score.name": ("additive", "dott")}, ("score.name=dott", "dot?")),
        ({"model.scoer": ("dot",)}, ("scoer=dot", "model.score")),
        ({"train.lr": ("0.1", "-1")}, ("lr=-1", "train.lr")),
        ({"model.score.name": ("dot", "dot")}, ("model.score.name", "twice")),
        ({"train.lr": ()}, ("train.lr", "no values")),
        ({"train.epochs": ("1",)}, ("train.epochs", "varied and set")),
        ({"seed": ("1",)}, ("seed", "--seeds")),
        ({"train.lr": tuple(map(str, range(1, 500)))}, ("1,497", "1,000")),
        ({}, ("at least one",)),
    ],
)
def test_what_cannot_be_trained_is_named_before_training(factors, words, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        sweep_of(factors, (0, 1, 2)).run(tmp_path / "sweep")
    assert all(word in str(error.value) for word in words)
    assert not (tmp_path / "sweep").exists()


def test_a_model_or_split_that_does_not_exist_is_named_before_training(
    tmp_path: Path, in_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"score=additive: no dev split \(available: train, valid, test\)"):
        sweep_of(SCORES, measure=Evaluate("dev")).run(tmp_path / "a")

    class TooDeep(RNNSeq2Seq):
        def __init__(self, config: RNNSeq2SeqConfig) -> None:
            if config.layers > 1:
                raise InputError("this model is too deep")
            super().__init__(config)

    monkeypatch.setattr(sweeps, "lookup", lambda kind, name: TooDeep)
    with pytest.raises(InputError, match="layers=2: this model is too deep"):
        sweep_of({"model.layers": ("1", "2")}).run(tmp_path / "b")
    assert in_process == []


def test_finished_runs_are_kept_and_new_values_are_added(tmp_path: Path, in_process: list[str]) -> None:
    result = sweep_of(SCORES, measure=Evaluate("test")).run(tmp_path / "sweep")
    assert in_process == ["score=additive-0", "score=dot-0"]
    for outcome in result.outcomes:
        (record,) = read_records(tmp_path / "sweep" / "runs" / outcome.trial.name)
        assert (record.split, record.finished) == ("test", True)
        assert outcome.scores["cer"] == record.score("cer").value
        assert outcome.parameters == record.parameters
    assert next(iter(result.metrics)) == "exact"  # train.best_by
    in_process.clear()
    wider = sweep_of({"model.score.name": ("additive", "cosine", "dot")}, measure=Evaluate("test"))
    again = wider.run(tmp_path / "sweep")
    assert in_process == ["score=cosine-0"]
    assert [outcome.scores for outcome in again.outcomes[::2]] == [outcome.scores for outcome in result.outcomes]
    in_process.clear()
    other = sweep_of(SCORES, measure=final_loss).run(tmp_path / "sweep")  # measured again, but not trained
    assert in_process == ["score=additive-0", "score=dot-0"]
    assert list(other.metrics) == ["final"]
    assert len(read_records(tmp_path / "sweep" / "runs" / "score=dot-0")) == 1
    with pytest.raises(InputError, match=r"score=additive-0: holds a run with other settings: train.lr is 0.5"):
        sweep_of(SCORES, overrides=["train.lr=0.5"]).run(tmp_path / "sweep")


def test_an_interrupted_run_resumes(tmp_path: Path, in_process: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of({"model.score.name": ("dot",)}, measure=final_loss)
    update, steps = Trainer.update, []

    def interrupted(trainer, *arguments):
        steps.append(trainer.state.step)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(trainer, *arguments)

    monkeypatch.setattr(Trainer, "update", interrupted)
    stopped = sweep.run(tmp_path / "killed")
    assert (stopped.outcomes[0].scores, stopped.outcomes[0].error) == ({}, "")
    assert steps == [0, 1, 2, 3, 4]
    finished = sweep.run(tmp_path / "killed")
    assert steps == list(range(len(steps)))  # no step twice
    assert finished.outcomes[0].scores == sweep.run(tmp_path / "undisturbed").outcomes[0].scores


def test_a_failing_run_does_not_lose_the_others(tmp_path: Path, in_process: list[str]) -> None:
    result = sweep_of(SCORES, (0, 1), measure=fail_for_dot).run(tmp_path / "sweep")
    assert [outcome.error for outcome in result.failures] == ["this measure is not defined for dot"] * 2
    first, second = result.rows("one")
    assert (first.mean, second.mean, second.values) == (1.0, None, {})
    assert cells(result, "one")[1][1][:3] == ["score=dot", "0", "failed"]
    page = markdown(result, ["one"], tmp_path / "sweep", "qkv compare", "plot.png")
    assert "- score=dot-1 failed: this measure is not defined for dot" in page
    in_process.clear()
    sweep_of(SCORES, (0, 1), measure=fail_for_dot).run(tmp_path / "sweep")
    assert in_process == ["score=dot-0", "score=dot-1"]


def scored(values: dict[str, list[float]]) -> SweepResult:
    """The result of a sweep with these values of the metric `exact`."""
    sweep = Sweep("dates-gru", {"model.score.name": tuple(values)}, range(3))
    numbers = [value for each in values.values() for value in each]
    pairs = zip(sweep.trials, numbers, strict=True)
    return SweepResult([TrialResult(trial, {"exact": value}, 10**6, 1.5) for trial, value in pairs])


def test_the_table_has_means_intervals_and_tests_against_the_first_row(tmp_path: Path) -> None:
    values = {"additive": [0.9, 0.92, 0.97], "dot": [0.5, 0.52, 0.54], "cosine": [0.91, 0.9, 0.95]}
    result = scored(values)
    rows = result.rows("exact")
    assert rows[0].interval == mean_interval(values["additive"])
    assert rows[0].p is None
    against = [welch(values[name], values["additive"]) for name in ("dot", "cosine")]
    assert [row.p_unadjusted for row in rows[1:]] == [test.p for test in against]
    assert rows[1].p == pytest.approx(2 * against[0].p)
    assert rows[2].p == against[1].p > 0.05
    assert rows[1].difference_interval == against[0].interval
    assert cells(result, "exact")[1][1][:5] == ["score=dot", "3", "52.00%", "47.03% to 56.97%", "-41.00%"]
    pytest.importorskip("matplotlib")
    paths = write_report(result, ["exact"], tmp_path, "qkv compare <x>")
    assert [path.name for path in paths] == ["table.md", "table.json", "table.html", "plot.png"]
    assert json.loads((tmp_path / "table.json").read_text()) == json.loads(json.dumps(to_json(result)))
    page = (tmp_path / "table.html").read_text()
    assert "<td>47.03% to 56.97%</td>" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)  # nothing is loaded
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_processes_train_in_parallel_with_their_own_threads(tmp_path: Path) -> None:
    result = sweep_of(SCORES).run(tmp_path / "sweep", WorkerOptions(2), "cpu")
    assert not result.failures
    outputs = sorted(tmp_path.glob("sweep/output/*.txt"))
    assert [path.name for path in outputs] == ["score=additive-0.txt", "score=dot-0.txt"]
    assert all("48 pairs" in path.read_text() for path in outputs)
    (record,) = read_records(tmp_path / "sweep" / "runs" / "score=dot-0")
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert f"{threads} thread" in record.trained_on


KILL = """
import sys
from pathlib import Path
from qkv.experiments.sweep import Sweep
from qkv.runtime.cluster import WorkerOptions
if __name__ == "__main__":
    overrides = sys.argv[2].split()
    sweep = Sweep("pairs-gru", {"model.score.name": ("additive", "dot")}, (0, 1), overrides)
    sweep.run(Path(sys.argv[1]), WorkerOptions(2, ray=len(sys.argv) > 3), "cpu")
"""


def start(folder: Path, *more: str) -> "subprocess.Popen[bytes]":
    (folder.parent / "sweep.py").write_text(KILL)
    overrides = " ".join(sweep_of(SCORES, overrides=["train.patience=0"]).overrides).replace("epochs=2", "epochs=60")
    command = [sys.executable, str(folder.parent / "sweep.py"), str(folder), overrides, *more]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    runs = sorted((folder / "runs").iterdir())
    return {run.name: read_tensors(Run.open(run).checkpoints[-1] / "model.safetensors") for run in runs}


@pytest.mark.slow
def test_a_killed_sweep_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    assert start(tmp_path / "whole").wait(300) == 0
    draw = random.Random(0)
    for _ in range(3):
        process = start(tmp_path / "killed")
        with pytest.raises(subprocess.TimeoutExpired):  # four runs take longer
            process.wait(draw.uniform(5, 9))
        process.kill()
        process.wait()
        time.sleep(1.0)  # its runs end when they notice
    assert start(tmp_path / "killed").wait(300) == 0
    whole, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    for name, tensors in whole.items():
        assert all(torch.equal(tensor, killed[name][key]) for key, tensor in tensors.items())
        steps = [
            [json.loads(line)["step"] for line in (tmp_path / folder / "runs" / name / "log.jsonl").open()]
            for folder in ("whole", "killed")
        ]
        assert steps[0] == steps[1]  # none missing, none twice
        paths = [tmp_path / folder / "results" / f"{name}.json" for folder in ("whole", "killed")]
        first, second = (json.loads(path.read_text())["Evaluate(split='valid')"]["scores"] for path in paths)
        assert first == second


@pytest.mark.slow
def test_a_killed_worker_is_a_failed_run(tmp_path: Path) -> None:
    process = start(tmp_path / "sweep")
    while not list(tmp_path.glob("sweep/runs/score=dot-0/log.jsonl")):
        time.sleep(0.2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    trials = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    os.kill(int(trials[0]), signal.SIGKILL)
    assert process.wait(300) == 0
    errors = {
        path.stem: read_status(tmp_path / "sweep", path.stem).error for path in tmp_path.glob("sweep/output/*.json")
    }
    assert sorted(error for error in errors.values() if error) == ["its process was killed, perhaps for lack of memory"]
    assert len(list(tmp_path.glob("sweep/results/*.json"))) == 3


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
def test_ray_trains_the_same_weights(tmp_path: Path) -> None:
    assert start(tmp_path / "processes").wait(300) == 0
    assert start(tmp_path / "ray", "--ray").wait(300) == 0
    expected, trained = weights(tmp_path / "processes"), weights(tmp_path / "ray")
    assert expected.keys() == trained.keys()
    for name, tensors in expected.items():
        assert all(torch.equal(tensor, trained[name][key]) for key, tensor in tensors.items())


PLUGIN = """
import torch
import qkv

@qkv.register("score", "gaussian")
class Gaussian(qkv.attention.Score):
    def forward(self, query, key):
        return -torch.cdist(query, key) ** 2 / 2
"""
COMPARISON = """
files = {"data." + split: ["pairs.tsv"] for split in ("train", "valid", "test")}
print(qkv.compare(
    "pairs-gru", vary={"model.score.name": ["dot", "gaussian"]}, seeds=1, workers=2, output="sweep", device="cpu",
    overrides={"model.hidden_dim": 8, "model.embedding_dim": 8, "model.max_length": 12, "train.epochs": 1, **files},
))
"""


@pytest.mark.parametrize(
    ("script", "module", "note"),
    [
        ("import qkv, my_score" + COMPARISON, "my_score.py", None),
        (PLUGIN + COMPARISON, "unused.py", "note: 1 of 2 run(s)"),  # that of the other score is sent to a worker
        (PLUGIN.replace("gaussian", "unused") + "import my_score" + COMPARISON, "my_score.py", None),
    ],
    ids=["imported", "defined in the script", "another one in the script"],
)
def test_a_script_compares_its_own_score_without_a_main_guard(
    script: str, module: str, note: str | None, tmp_path: Path
) -> None:
    (tmp_path / module).write_text(PLUGIN)
    (tmp_path / "compare.py").write_text(script)
    done = subprocess.run([sys.executable, "compare.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("gaussian") == 1
    assert len([*(tmp_path / "sweep" / "results").iterdir()]) == 2
    assert "epoch 1/1" in (tmp_path / "sweep" / "output" / "score=gaussian-0.txt").read_text()
    assert "epoch 1/1" not in done.stderr
    assert ("note:" in done.stderr) == (note is not None)
    assert note is None or note in done.stderr


def test_only_runs_that_name_a_class_of_the_script_stay_in_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = type("Gaussian", (Dot,), {"__module__": registry.MAIN})
    monkeypatch.setitem(registry._classes["score"], "gaussian", own)
    jobs = trial_jobs([sweep_of({"model.score.name": ("dot", "gaussian", "additive")})], tmp_path)
    assert [job.uses_main for job in jobs] == [False, True, False]


MEASURE = """
import os
from pathlib import Path
from qkv.experiments.sweep import Sweep
from qkv.runtime.cluster import WorkerOptions

def process(run, device):
    return {"process": os.getpid()}

settings = ["model.hidden_dim=8", "model.embedding_dim=8", "model.max_length=12", "train.epochs=1"]
files = [f'data.{split}=["pairs.tsv"]' for split in ("train", "valid", "test")]
sweep = Sweep("pairs-gru", {"model.score.name": ("dot", "additive")}, (0,), (*settings, *files), process)
result = sweep.run(Path("sweep"), WorkerOptions(2), "cpu")
assert not result.failures, result.failures
assert {outcome.scores["process"] for outcome in result.outcomes} == {os.getpid()}
"""


def test_a_script_measures_with_its_own_function_without_a_main_guard(tmp_path: Path) -> None:
    (tmp_path / "measure.py").write_text(MEASURE)
    done = subprocess.run([sys.executable, "measure.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "note: 2 of 2 run(s)" in done.stderr
