"""Tables of runs: the keys that differ, learning curves, and commands that reproduce a run."""

import io
import json
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from qkv.cli.main import app
from qkv.experiments.results import append_record
from qkv.experiments.run_table import run_tables, sections, terminal, train_command
from qkv.experiments.sweep import Evaluate
from qkv.training import job
from qkv.training.recipe import read_recipe
from qkv.visualize.curves import sparkline
from qkv.visualize.pages.comparison_page import Section, save_comparison

from .records import record

SIZES = ["model.hidden_dim=4", "model.embedding_dim=4", "model.max_length=12", "train.epochs=1", "data.name=pairs"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs on the user's file that differ in the score and the seed."""
    folder = tmp_path_factory.mktemp("my files")
    (folder / "a b.tsv").write_text("".join(f"eins {number}\t{number} eins\n" for number in range(8)))
    files = [f"data.{split}={json.dumps([str(folder / 'a b.tsv')])}" for split in ("train", "valid", "test")]
    runs = []
    for seed, score in enumerate(("dot", "cosine")):
        recipe = read_recipe("pairs-gru", [*SIZES, *files, f"model.score.name={score}", f"seed={seed}"])
        done = job.begin(recipe, folder / score, "cpu")
        Evaluate("test")(done.run, "cpu")
        runs.append(done.run.folder)
    return runs


def printed(runs: list[Path], width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(terminal(run_tables(runs)))
    return console.file.getvalue()


def test_only_the_keys_that_differ_are_shown(trained: list[Path]) -> None:
    (table,) = run_tables(trained)
    assert table.keys == ["seed", "model.score"]
    text = printed(trained)
    header = next(line for line in text.splitlines() if line.startswith("run"))
    assert re.split(r"\s{2,}", header.strip())[:4] == ["run", "seed", "model.score", "parameters"]
    assert {line.split()[2] for line in text.splitlines() if re.match(r"(dot|cosine)\s", line)} == {"dot", "cosine"}
    assert run_tables([trained[0], trained[0]])[0].keys == []


def test_keys_that_a_fine_tuned_run_does_not_set_do_not_differ(trained: list[Path], tmp_path: Path) -> None:
    files = json.dumps([str(trained[0].parent / "a b.tsv")])
    data = [f"data.{split}={files}" for split in ("train", "valid", "test")]
    settings = ["data.name=pairs", "train.epochs=1", "train.lr=0.5", f"init={trained[0]}"]
    done = job.begin(read_recipe("pairs-gru", [*data, *settings]), tmp_path / "tuned", "cpu")
    Evaluate("test")(done.run, "cpu")
    keys = {key for table in run_tables([trained[0], tmp_path / "tuned"]) for key in table.keys}
    assert {"init", "train.lr"} <= keys
    assert "model.max_length" not in keys  # that of the pretrained model
    assert not any(key.startswith("task.") for key in keys)


def test_keys_that_do_not_fit_into_a_narrow_terminal_are_listed_below_the_table(tmp_path: Path) -> None:
    keys = ["model.hidden_dim", "model.embedding_dim", "model.dropout", "train.weight_decay"]
    runs = [tmp_path / name for name in ("a", "b")]
    for value, run in enumerate(runs):
        run.mkdir()
        append_record(run, record(changes=tuple(f"{key}={value}" for key in keys)))
    assert "other keys" not in printed(runs, width=240)
    for width, count in ((180, 3), (100, 1), (30, 1)):
        text = printed(runs, width)
        hidden = text.split("other keys that differ:")[1].split("a: qkv")[0].replace(",", "").split()
        assert hidden == keys[count:]
    header = next(line for line in printed(runs, 180).splitlines() if line.startswith("run"))
    assert header.split()[:4] == ["run", *keys[:3]]


def test_the_command_of_a_run_trains_it_again_on_the_same_files(trained: list[Path], tmp_path: Path) -> None:
    (table,) = run_tables(trained)
    row = next(row for row in table.rows if row.folder.name == "dot")
    train, evaluate = row.commands.split(" && ")
    assert evaluate == "qkv evaluate RUN --split test"
    words = shlex.split(train.replace("RUN", str(tmp_path / "again")))
    assert [word for word in words if word.startswith("--")].count("--data") == 1
    app(words[1:], standalone_mode=False)
    weights = [
        next(folder.glob("step-*/model.safetensors")).read_bytes() for folder in (tmp_path / "again", row.folder)
    ]
    assert weights[0] == weights[1]


def test_commands_of_built_in_data_and_of_records() -> None:
    assert train_command("dates-gru", ["model.score=dot", "seed=1"], None) == (
        "qkv train dates-gru --set model.score=dot --set seed=1"
    )
    changes = ['data.train=["x y.tsv"]', 'data.test=["z.tsv"]', 'data.name="pairs"', 'data.folder="/here"']
    assert train_command("pairs-gru", changes, None) == "qkv train pairs-gru --data 'x y.tsv' --test z.tsv"


def test_runs_without_a_manifest_are_compared_by_what_is_recorded(tmp_path: Path) -> None:
    for seed, changes in enumerate([("model.score=dot",), ('init="minilm"',)]):
        (tmp_path / str(seed)).mkdir()
        append_record(tmp_path / str(seed), record(38.0 + seed, seed=seed, changes=changes, finished=seed == 0))
    (table,) = run_tables([tmp_path / "0", tmp_path / "1"])
    assert sorted(table.keys) == ["init", "model.score", "seed"]
    assert [row.folder.name for row in table.rows] == ["1", "0"]  # best first
    text = printed([tmp_path / "0", tmp_path / "1"])
    assert "1 (not finished)" in text
    assert "39.00" in text
    assert "qkv train multi30k-gru --set model.score=dot --set seed=0 --output RUN" in text


def test_the_page_has_curves_and_loads_nothing(trained: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = save_comparison(tmp_path / "page.html", "Runs", sections(run_tables(trained))).read_text()
    assert page.count("data:image/svg+xml;base64,") == 2  # training loss and validation loss
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "<script" not in page
    assert "<th>model.score</th>" in page
    hostile = Section("<b>", ["<i>"], [["<script>alert(1)</script>"]], commands=[("<u>", "a & b")])
    page = save_comparison(tmp_path / "page.html", "</title><script>", [hostile]).read_text()
    assert not re.search(r"<(b|i|u|script)>", page)


def test_sparkline() -> None:
    assert sparkline([0.0, 1.0, 2.0, 7.0]) == "▁▂▃█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([float("nan")]) == ""
    assert len(sparkline(list(range(1000)), 12)) == 12
