"""`qkv train`: checks of its input, run folders, dry runs and resuming."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.datasets.corpora.synthetic.dates import generate
from qkv.errors import InputError
from qkv.hub.model_folder import checkpoints_in
from qkv.training import job
from qkv.training.recipe import read_recipe
from qkv.training.run import Run

from .command import TINY, Ended, process

Command = Callable[..., Ended]
SMALL = ["--set", "data.size=40", *TINY, "--set", "train.epochs=1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "missing recipe"),
        (["date-gru"], "unknown recipe date-gru (did you mean dates-gru?)"),
        (["none.toml"], "none.toml: no such file"),
        (["pairs-gru"], "no training pairs"),
        (["pairs-gru", "--data", "a", "--data", "b", "--data", "c"], "pairs"),
        (["dates-gru", "--set", "train.lr"], "--set train.lr"),
        (["dates-gru", "--set", "train.lr=fast"], "recipe dates-gru: train.lr"),
        (["dates-gru", "--set", "model.source_vocab_size=5"], "recipe dates-gru: model.source_vocab_size"),
        (["dates-gru", "--device", "tpu"], "unknown device 'tpu'"),
        (["dates-gru", "--plugin", "none.py"], "--plugin none.py: no such file"),
        (["--resume", "none"], "none: "),
        (["--resume", "none", "--output", "x"], "--output cannot be combined"),
        (["--resume", "none", "--overwrite"], "--overwrite cannot be combined"),
        (["--resume", "none", "--dry-run"], "--dry-run cannot be combined"),
        (["--resume", "none", "--strict"], "--data, --column"),
    ],
)
def test_invalid_arguments_are_errors_and_nothing_is_written(
    qkv: Command, folder: Path, arguments: list[str], words: str
) -> None:
    assert qkv("train", *arguments).error.startswith(words)
    assert list(folder.iterdir()) == []


def test_a_recipe_given_with_resume_must_match_the_run(qkv: Command, run: Path) -> None:
    assert "it trains rnn_seq2seq on dates" in qkv("train", "dates-transformer", "--resume", run).error
    assert qkv("train", "dates-gru", "--resume", run).code == 0


def test_runs_are_numbered_from_the_seed_on(qkv: Command, folder: Path) -> None:
    assert [qkv("train", "dates-gru", *SMALL).out for _ in range(2)] == ["runs/dates-gru-0\n", "runs/dates-gru-1\n"]
    assert qkv("train", "dates-gru", *SMALL, "--set", "seed=1").out == "runs/dates-gru-2\n"
    assert qkv("train", "dates-gru", *SMALL, "--set", "seed=7").out == "runs/dates-gru-7\n"


def test_overwrite_replaces_a_run_and_nothing_else(qkv: Command, folder: Path) -> None:
    train = ("train", "dates-gru", *SMALL, "--output", "run")
    assert qkv(*train).code == 0
    (folder / "run" / "results.jsonl").touch()  # as written by evaluate
    before = Run.open(Path("run")).recipe
    assert "holds another run" in qkv(*train).error
    other = ("--set", "seed=3", "--overwrite")
    (folder / "run" / "notes.txt").write_text("mine")
    assert "notes.txt" in qkv(*train, *other).error
    assert Run.open(Path("run")).recipe == before
    (folder / "run" / "notes.txt").unlink()
    assert "init" in qkv(*train, *other, "--set", "init=run").error
    assert checkpoints_in(folder / "run")
    assert qkv(*train, *other).code == 0
    assert Run.open(Path("run")).recipe.seed == 3
    assert not (folder / "run" / "results.jsonl").exists()

    (folder / "other").mkdir()
    (folder / "other" / "file").write_text("mine")
    assert "not empty" in qkv("train", "dates-gru", *SMALL, "--output", "other", "--overwrite").error
    assert (folder / "other" / "file").read_text() == "mine"


def test_other_input_is_checked_before_the_output_folder(qkv: Command, run: Path, folder: Path) -> None:
    for overwrite in ([], ["--overwrite"]):
        assert "train.lr" in qkv("train", "dates-gru", "--set", "train.lr=-1", "--output", run, *overwrite).error
        assert "mine.tsv" in qkv("train", "pairs-gru", "--data", "mine.tsv", "--output", run, *overwrite).error
    assert checkpoints_in(run)


def test_a_run_in_use_is_not_overwritten(folder: Path) -> None:
    recipe = read_recipe("dates-gru", [word for word in SMALL[1::2] if "=" in word])
    run = job.begin(recipe, folder / "run", "cpu").run
    with Run.open(run.folder).lock(), pytest.raises(InputError, match="another process"):
        job.begin(recipe, run.folder, "cpu", overwrite=True)
    assert run.checkpoints


def test_a_finished_run_can_train_longer(qkv: Command, run: Path, folder: Path) -> None:
    shutil.copytree(run, folder / "run")
    (report,) = (json.loads(qkv("train", "--resume", "run", "--json").out),)
    assert "--set train.epochs=N" in qkv("train", "--resume", "run").err
    longer = json.loads(qkv("train", "--resume", "run", "--set", "train.epochs=3", "--json").out)
    assert longer["finished"]
    assert longer["step"] == report["step"] * 3 // 2


def test_a_dry_run_reports_data_model_steps_and_time_and_writes_nothing(qkv: Command, folder: Path) -> None:
    ended = qkv("train", "dates-gru", *TINY, "--set", "data.size=300", "--dry-run")
    assert ended.code == 0
    assert list(folder.iterdir()) == []
    recipe = tomllib.loads(ended.out)  # the summary is a comment
    assert ended.out.startswith("# data")
    assert recipe["train"]["epochs"] == 2
    assert recipe["model"]["source_vocab_size"] > 10
    plan = json.loads(qkv("train", "dates-gru", *TINY, "--set", "data.size=300", "--dry-run", "--json").out)
    assert plan["data"] == {"train": 300, "valid": 2000, "test": 2000}
    assert plan["vocab_size"] == recipe["model"]["source_vocab_size"]
    assert plan["steps"] == 2 * plan["steps_per_epoch"]
    assert plan["seconds"] > 0
    assert f"{plan['parameters']:,} parameters" in ended.out
    assert re.search(r"# time +about \d+ s on cpu \(estimated", ended.out)
    trained = json.loads(qkv("train", "dates-gru", *TINY, "--set", "data.size=300", "--json").out)
    assert trained["step"] == plan["steps"]


def test_a_dry_run_checks_the_output_folder(qkv: Command, run: Path, folder: Path) -> None:
    dry_run = ("train", "dates-gru", *SMALL, "--dry-run", "--output")
    assert "holds another run" in qkv(*dry_run, run).error
    (folder / "other").mkdir()
    (folder / "other" / "file").write_text("mine")
    assert "not empty" in qkv(*dry_run, "other").error
    assert qkv(*dry_run, run, "--overwrite").code == qkv(*dry_run, "new").code == 0
    assert checkpoints_in(run)
    assert not (folder / "new").exists()


@pytest.mark.parametrize("recipe", ["copy-ntm", "bandit-snail"])
def test_a_dry_run_without_text(qkv: Command, folder: Path, recipe: str) -> None:
    sizes = {"copy-ntm": ["data.size=32"], "bandit-snail": ["train.batch_size=8", "train.epochs=1"]}[recipe]
    changes = [word for size in sizes for word in ("--set", size)]
    plan = json.loads(qkv("train", recipe, *changes, "--dry-run", "--json", "--device", "cpu").out)
    assert (plan["tokenizer"], plan["vocab_size"]) == ("", None)
    assert plan["steps"] > 0


def test_training_on_a_thousand_user_pairs(qkv: Command, tmp_path: Path) -> None:
    pairs = generate(1000, split="train", seed=5)
    lines = [f"{pair.source}\t{pair.target}\n" for pair in pairs]
    (tmp_path / "my.tsv").write_text("".join([*lines[:500], "\n", *lines[500:]]), encoding="utf-8")
    ended = process(
        "train", "pairs-gru", "--data", "my.tsv", "--output", "mine", "--json", *TINY, "--set", "train.epochs=1",
        cwd=tmp_path,
    )  # fmt: skip
    report: dict[str, Any] = json.loads(ended.out)
    assert (ended.code, report["run"], report["finished"]) == (0, "mine", True)
    assert report["step"] == report["best"]["step"] > 10
    assert "pairs  950 pairs" in ended.err
    assert f"note: {tmp_path}/my.tsv: skipped 1 line(s)" in ended.err
    assert qkv("translate", tmp_path / "mine", pairs[0].source).code == 0


def test_training_and_evaluation_on_parallel_files(qkv: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = generate(120, split="train", seed=5)
    for name, part in (("train", pairs[:80]), ("valid", pairs[80:100]), ("test", pairs[100:])):
        (folder / f"{name}.src").write_text("".join(f"{pair.source}\n" for pair in part), encoding="utf-8")
        (folder / f"{name}.tgt").write_text("".join(f"{pair.target}\n" for pair in part), encoding="utf-8")
    files = [
        word
        for option, name in (("--data", "train"), ("--valid", "valid"), ("--test", "test"))
        for side in ("src", "tgt")
        for word in (option, f"{name}.{side}")
    ]
    bpe = ["--set", 'data.tokenizer={name="bpe", vocab_size=60}', "--set", "seed=3"]
    ended = qkv("train", "pairs-gru", *files, *TINY, *bpe)
    assert (ended.code, ended.out) == (0, "runs/pairs-gru-3\n")
    assert "qkv evaluate runs/pairs-gru-3, then qkv translate runs/pairs-gru-3\n" in ended.err
    monkeypatch.chdir("/")  # the run stores absolute paths of its data
    report = json.loads(qkv("evaluate", folder / "runs/pairs-gru-3", "--json").out)
    assert (report["split"], report["size"]) == ("test", 20)
    assert qkv("train", "--resume", folder / "runs/pairs-gru-3").code == 0


def test_resume_auto_continues_the_unfinished_run_of_the_recipe_or_starts_one(
    qkv: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "dates-gru", *SMALL, "--resume", "auto"]
    with monkeypatch.context() as patch:
        patch.setattr("qkv.training.loop.Interrupt.__bool__", lambda self: True)
        assert qkv(*command).code == 130
        assert qkv(*command).code == 130  # continued for one more step
    assert [path.name for path in (folder / "runs").iterdir()] == ["dates-gru-0"]
    assert qkv(*command).out == "runs/dates-gru-0\n"
    assert qkv(*command, "--set", "seed=4").out == "runs/dates-gru-4\n"
    assert qkv(*command).out == "runs/dates-gru-1\n"  # the first one is finished
    assert qkv(*command, "--output", "runs/dates-gru-0").out == "runs/dates-gru-0\n"  # and nothing is left to do
    assert "holds another run" in qkv(*command, "--output", "runs/dates-gru-4").error
    assert "--overwrite cannot be combined" in qkv(*command, "--overwrite").error


def test_a_command_that_torchrun_restarts_continues_its_run(
    qkv: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "dates-gru", *SMALL, "--output", "run"]
    with monkeypatch.context() as patch:
        patch.setattr("qkv.training.loop.Interrupt.__bool__", lambda self: True)
        assert qkv(*command).code == 130
    assert "holds another run" in qkv(*command).error
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert qkv(*command).code == 0
    assert Run.open(folder / "run").finished
