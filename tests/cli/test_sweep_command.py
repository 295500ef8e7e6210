"""`qkv compare RECIPE --vary`: options, errors before training, and the printed table."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qkv.cli.commands.sweep import parse_factors, split_values
from qkv.errors import InputError
from qkv.experiments import sweep_workers
from qkv.experiments.sweep_workers import TrialJob

from .command import Ended

Command = Callable[..., Ended]
SMALL = [
    "model.hidden_dim=4", "model.embedding_dim=4", "model.max_length=12", "train.epochs=1", "train.best_by=exact",
    *(f'data.{split}=["pairs.tsv"]' for split in ("train", "valid", "test")),
]  # fmt: skip


@pytest.fixture
def sweep(qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a sweep on a few word pairs, in this process."""
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("".join(f"eins {number}\t{number} eins\n" for number in range(8)))
    monkeypatch.setattr(sweep_workers, "_run_in_processes", sweep_workers._run_here)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    sets = [word for setting in SMALL for word in ("--set", setting)]
    return lambda *arguments: qkv("compare", "pairs-gru", *arguments, *sets)


def test_values_are_split_at_commas_outside_brackets_and_quotes() -> None:
    assert split_values("dot, additive") == ["dot", "additive"]
    assert split_values('{name = "low_rank", rank = 8},dot') == ['{name = "low_rank", rank = 8}', "dot"]
    assert split_values("[1, 2],[3]") == ["[1, 2]", "[3]"]
    assert split_values('"a,b",c') == ['"a,b"', "c"]
    assert parse_factors(["a.b=1,2", "c=x"]) == {"a.b": ["1", "2"], "c": ["x"]}
    for wrong in (["a"], ["=1"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(InputError, match="--vary"):
            parse_factors(wrong)


def test_a_sweep_prints_its_table_and_writes_a_report(sweep: Command) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["--vary", "model.score.name=dot,cosine", "--seeds", 2, "--metric", "cer", "--output", "out"]
    ended = sweep(*arguments)
    assert ended.code == 0, ended.err
    assert "| score=dot | 2 |" in ended.out
    assert "character error rate" in ended.out
    assert Path("out/table.md").read_text() == ended.out
    assert sorted(path.name for path in Path("out").iterdir() if path.is_file() and path.name != ".lock") == [
        "plot.png", "table.html", "table.json", "table.md",
    ]  # fmt: skip
    again = sweep(*arguments, "--json")
    assert "4 of 4 runs are finished already" in again.err
    assert json.loads(again.out) == json.loads(Path("out/table.json").read_text())


def test_a_failed_run_is_named_and_ends_with_exit_code_1(sweep: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    train = TrialJob._train

    def failing(job: TrialJob, display) -> None:
        if "dot" in job.name:
            raise InputError("no such thing")
        train(job, display)

    monkeypatch.setattr(TrialJob, "_train", failing)
    ended = sweep("--vary", "model.score.name=dot,cosine", "--seeds", 1)
    assert ended.code == 1
    assert "error: score=dot-0: no such thing (see runs/sweep-pairs-gru/output/score=dot-0.txt)" in ended.err
    assert "| score=dot | 0 | failed |" in ended.out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--vary", "model.score.name=dott"), "score.name=dott"),
        (("--vary", "model.score.name=dot", "--metric", "blue"), "bleu"),
        (("--vary", "model.score.name=dot", "--split", "dev"), "dev"),
        (("--vary", "model.score.name=dot", "--set", "seed=3"), "--seeds"),
        (("--vary", "model.score.name=dot", "--by-length", "x.png"), "--by-length"),
        (("--vary", "model.score.name=dot", "--ray-address", "x:1"), "--ray"),
        (("--metric", "exact"), "--vary"),
    ],
)
def test_mistakes_are_found_before_training(sweep: Command, arguments, word: str) -> None:
    assert word in sweep(*arguments).error
    assert not list(Path().glob("runs/*/runs/*"))
