"""`qkv recipes` and `qkv models`, and the help of all commands."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from qkv.cli.commands.catalog import FROM_DATA, format_rows, format_tables, recipe_keys, tables_json
from qkv.cli.main import app
from qkv.registry import describe, registered
from qkv.training.recipe import read_recipe, recipe_info, recipe_names

from .command import Ended

Command = Callable[..., Ended]
MAX_SUMMARY = 55  # characters of a command's summary
MAX_PURPOSE = 80


def test_recipes_lists_every_recipe_with_its_purpose(qkv: Command) -> None:
    header, *lines = qkv("recipes").out.splitlines()
    assert header.split() == ["recipe", "task", "data", "model", "training", "time", "purpose"]
    assert [line.split()[0] for line in lines] == recipe_names()
    recipes = [json.loads(line) for line in qkv("recipes", "--json").out.splitlines()]
    assert [recipe["name"] for recipe in recipes] == recipe_names()
    by_name = {recipe["name"]: recipe for recipe in recipes}
    plain = by_name["multi30k-plain"]
    assert (plain["task"], plain["data"], plain["model"]) == ("translate", "multi30k", "rnn_seq2seq")
    assert plain["minutes"]["gpu"] > 0


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_a_purpose_of_one_line_and_its_own_time(name: str) -> None:
    info = recipe_info(name)
    assert 0 < len(info.purpose) <= MAX_PURPOSE
    assert (info.task, info.data, info.model) == tuple(
        config.registered_name for config in (read_recipe(name).task, read_recipe(name).data, read_recipe(name).model)
    )


def test_the_measured_time_is_not_inherited_and_not_part_of_a_run() -> None:
    assert recipe_info("copy-ntm").minutes.cpu is not None
    assert recipe_info("recall-ntm").minutes.cpu is None  # extends copy-ntm
    assert "minutes" not in read_recipe("copy-ntm").to_dict()


def test_recipes_show_prints_every_key(qkv: Command) -> None:
    arguments = ("recipes", "show", "dates-gru", "--set", "model.score.name=low_rank", "--set", "train.lr=1")
    keys = {key["key"]: key for key in json.loads(qkv(*arguments, "--json").out)}
    assert keys["train.lr"] == {
        "key": "train.lr", "value": 1.0, "default": 0.001, "type": "float > 0", "meaning": "peak learning rate",
    }  # fmt: skip
    assert (keys["model.score"]["value"], keys["model.score"]["default"]) == ("low_rank", "additive")
    assert "scaled_dot" in keys["model.score"]["values"]
    assert keys["model.score.rank"]["type"] == "int >= 1 or unset"
    assert keys["model.cell"]["type"] == "gru | lstm | rnn"
    assert keys["model.source_vocab_size"]["value"] == FROM_DATA
    assert keys["data.size"]["value"] == 70000
    text = qkv(*arguments).out
    assert all(key in text for key in keys)
    assert "[model] rnn_seq2seq" in text
    assert "did you mean" in qkv("recipes", "show", "date-gru").error
    assert "train.lr" in qkv("recipes", "show", "dates-gru", "--set", "train.lr=0").error


@pytest.mark.parametrize("name", recipe_names())
def test_every_key_of_every_recipe_has_a_meaning(name: str) -> None:
    tables = recipe_keys(read_recipe(name))
    assert [key.name for keys in tables.values() for key in keys if not key.meaning] == []
    assert all(key.name in format_tables(tables) for keys in tables.values() for key in keys)
    json.dumps(tables_json(tables))


def test_models_lists_every_model_with_its_tasks_and_presets(qkv: Command) -> None:
    lines = [json.loads(line) for line in qkv("models", "--json").out.splitlines()]
    models = {line["name"]: line for line in lines if line["kind"] == "architecture"}
    assert models.keys() == registered("model").keys()
    assert models["bert"]["tasks"] == ["answer", "classify", "classify_story", "masked_lm", "tag"]
    assert models["han"]["tasks"] == ["classify", "classify_story"]
    assert models["memory_network"]["tasks"] == ["answer_story"]
    assert "small" in models["gpt2"]["presets"]
    _, _, table = qkv("models").out.partition("\narchitecture")
    _, *lines = table.splitlines()
    assert [line.split()[0] for line in lines] == sorted(models)
    for name, model in registered("model").items():
        assert model.description, name
        assert models[name]["description"] == describe(model)


def test_models_show_prints_the_keys_of_a_model(qkv: Command) -> None:
    shown: dict[str, Any] = json.loads(qkv("models", "show", "gpt2", "--json").out)
    keys = {key["key"]: key for key in shown["keys"]}
    assert keys["model.heads"]["default"] == 12
    assert shown["tasks"] == ["dialogue_lm", "language_model", "packed_lm"]
    text = qkv("models", "show", "gpt2").out
    assert "attention heads per layer" in text
    assert "medium: dim = 1024, heads = 16, layers = 24" in text
    assert "did you mean gpt2?" in qkv("models", "show", "gtp2").error


def test_words_search_recipes_and_models(qkv: Command) -> None:
    _, *lines = qkv("recipes", "dates", "TRANSFORMER").out.splitlines()
    assert [line.split()[0] for line in lines] == ["dates-transformer"]
    names = [json.loads(line)["name"] for line in qkv("models", "captioning", "--json").out.splitlines()]
    assert names == ["shapes", "show_attend_tell"]
    assert "Models without weights" not in qkv("models", "tatoeba").out
    assert "no recipe contains date-gru (did you mean dates-gru?)" in qkv("recipes", "date-gru").error
    assert "did you mean --json?" in qkv("recipes", "dates", "--jsno").error


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["summarization"], "samsum-transformer"),
        (["summarise"], "summaries-transformer"),
        (["translation", "gru"], "dates-gru"),
        (["speech recognition"], "digits-las"),
        (["labels"], "polarity-bert"),
        (["classifier"], "images-vit"),
    ],
)
def test_recipes_are_found_by_task_kind_of_data_and_other_endings(qkv: Command, words: list[str], name: str) -> None:
    assert name in [json.loads(line)["name"] for line in qkv("recipes", *words, "--json").out.splitlines()]
    assert "qkv recipes lists all" in qkv("recipes", "zzzz").error


def test_columns_that_do_not_fit_go_on_the_line_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    lines = "\n".join(format_rows(["a", "b", "c"], [["x" * 30, "y" * 30, "word"]])).splitlines()
    assert lines[2:] == ["x" * 30, f"    word; {'y' * 30}"]
    assert all(len(line) <= 50 for line in lines)


@pytest.mark.parametrize("group", ["recipes", "models"])
def test_list_is_the_bare_command(qkv: Command, group: str) -> None:
    assert qkv(group, "list").out == qkv(group).out
    assert qkv(group, "list", "--json").out == qkv(group, "--json").out
    assert qkv(group, "list", "dates").out == qkv(group, "dates").out


def test_a_wide_table_is_wrapped_in_a_narrow_terminal() -> None:
    rows = [["x" * 20, "word " * 20]]
    code = f"from qkv.cli.commands.catalog import format_rows; print(*format_rows(['a', 'b'], {rows}), sep='\\n')"
    terminal, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run([sys.executable, "-c", code], stdout=child, env=environment, timeout=60)
    os.close(child)
    lines = os.read(terminal, 10_000).decode().splitlines()
    os.close(terminal)
    assert done.returncode == 0
    assert lines[2] == "x" * 20
    assert all(len(line) <= 40 for line in lines)
    assert len(format_rows(["a", "b"], [["x" * 20, "word " * 20]])) == 2  # not a terminal: one line for each row


def under_terminal(*arguments: str, **environment: str) -> str:
    """What a command shows on a terminal of 80 x 24, without colors."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update({"COLUMNS": "80", "LINES": "24", "TERM": "xterm", "NO_COLOR": "1", **environment})
        os.execv(sys.executable, [sys.executable, "-m", "qkv", *arguments])
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(terminal, 65536):
            shown += data
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r\n", "\n")


def test_a_list_that_exceeds_the_terminal_is_shown_in_the_pager(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f"#!{sys.executable}\nimport sys\nprint('paged', len(sys.stdin.readlines()), 'lines')\n")
    pager.chmod(0o755)
    for arguments in (["recipes"], ["recipes", "show", "pairs-gru"], ["models"], ["models", "show", "gpt2"]):
        word, lines, _ = under_terminal(*arguments, PAGER=str(pager)).split()
        assert word == "paged"
        assert int(lines) >= 24
    assert "dates-hard" in under_terminal("recipes", PAGER="no-such-program")
    assert "paged" not in under_terminal("recipes", "dates", PAGER=str(pager))  # which fits


def test_a_model_card_is_laid_out_on_a_terminal(qkv: Command) -> None:
    assert "| --- |" in qkv("models", "show", "g2p").out
    shown = under_terminal("models", "show", "g2p", PAGER="cat")
    assert "| --- |" not in shown
    assert "BSD-like" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_summaries_fit_their_column(qkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    commands = typer.main.get_command(app).commands
    shown = qkv("--help").out
    for name, command in commands.items():
        summary = command.get_short_help_str(200)
        assert 0 < len(summary) <= MAX_SUMMARY, name
        assert f"  {name} " in shown
        assert f" {summary}\n" in shown
        for subcommand in getattr(command, "commands", {}).values():
            assert 0 < len(subcommand.get_short_help_str(200)) <= MAX_SUMMARY
    assert all(len(line) <= 80 for line in shown.splitlines())


def complete(words: str, folder: Path | None = None) -> list[str]:
    environment = {**os.environ, "_QKV_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    command = [sys.executable, "-m", "qkv"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.stdout.split()


def test_the_shell_completes_recipes_keys_runs_and_datasets(tmp_path: Path) -> None:
    assert complete("qkv train dates-") == ["dates-gru", "dates-hard", "dates-transformer"]
    for name in ("dates-gru-0", "dates-gru-1", "not-a-run"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for name in ("dates-gru-0", "dates-gru-1"):
        (tmp_path / "runs" / name / "manifest.json").write_text("{}")
    assert complete("qkv evaluate ru", tmp_path) == ["runs/dates-gru-0", "runs/dates-gru-1"]
    assert complete("qkv translate tato", tmp_path) == ["tatoeba-en-de"]
    assert complete("qkv train --resume runs/not", tmp_path) == ["runs/not-a-run/"]
    assert complete("qkv train dates-gru --set model.score.") == ["model.score.hidden_dim="]
    scores = complete("qkv train dates-gru --set model.score=")
    assert "model.score=additive" in scores
    assert complete("qkv train dates-gru --set model.score=add") == ["model.score=additive"]
    assert complete("qkv train images-vit --set task.flip=") == ["task.flip=false", "task.flip=true"]
    assert complete("qkv train dates-gru --set train.lr=") == []
    assert complete("qkv train no-such-recipe --set model.") == []
    assert complete("qkv data show multi") == ["multi30k", "multi30k_multilingual"]


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("qkv train --resume tato", []),  # a pretrained model cannot be resumed
        ("qkv view dates --compare tato", ["tatoeba-en-de"]),
        ("qkv translate dates --device c", ["cpu", "cuda"]),
        ("qkv evaluate dates --split ", ["train", "valid", "test", "all-tests"]),
        ("qkv data show dates --split te", ["test"]),
        ("qkv data show mine.csv --kind pa", ["pairs"]),
        ("qkv explain sentiment --method roll", ["rollout"]),
    ],
)
def test_the_shell_completes_values_of_options(words: str, completions: list[str], tmp_path: Path) -> None:
    assert complete(words, tmp_path) == completions
