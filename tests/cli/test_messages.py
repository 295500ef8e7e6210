"""Messages on stderr are one line of at most 500 characters, regardless of the input they quote."""

import json
import sys
from pathlib import Path

import pytest

from qkv.cli.console import note
from qkv.errors import InputError
from qkv.training.display import Display
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

LONGEST_MESSAGE = 500
LONG = 100_000 * "a"
CONLL = {
    "one column": f"{LONG}\n",
    "a word without a tag": f"{LONG} \n",
    "other columns": f"a B\n{LONG} b C\n",
}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classifier")
    return saved(tiny_bert("classifier", labels=1, label_names=("a",)), tiny_tokenizer(path), path / "model")


def check(error: str) -> None:
    assert len(f"error: {error}") <= LONGEST_MESSAGE
    assert error.isprintable()


@pytest.mark.parametrize("content", CONLL.values(), ids=CONLL)
def test_a_long_line_of_a_data_file_is_truncated(qkv, tmp_path, content):
    (tmp_path / "words.conll").write_text(content)
    check(qkv("train", "ewt-bert-scratch", "--data", tmp_path / "words.conll", "--output", tmp_path / "run").error)


@pytest.mark.parametrize(
    "arguments",
    [
        ("translate", "RUN", "a", "--prefix", f"\x1b[2J{LONG}"),
        ("translate", "RUN", "a", "--align", LONG),
        ("translate", "RUN", "a", "--num-beams", LONG),
        ("translate", "RUN", "a", f"--{LONG}"),
        ("train", LONG),
        ("train", "dates-gru", "--set", LONG),
        ("train", "dates-gru", "--set", f"model.{LONG}=1"),
        ("data", "show", LONG),
        ("data", "fetch", LONG),
        (LONG,),
    ],
    ids=lambda arguments: " ".join(word[:12] for word in arguments),
)
def test_a_long_argument_is_truncated(qkv, run, arguments):
    check(qkv(*(run if word == "RUN" else word for word in arguments)).error)


def test_an_error_keeps_its_start_and_end_and_escapes_control_characters(qkv, monkeypatch, classifier):
    def fail(*_: object, **__: object) -> None:
        raise InputError(f"first\n\x1b[2J\u202e{LONG} last")

    monkeypatch.setattr(sys.modules["qkv.cli.texts"], "read_texts", fail)
    error = qkv("classify", classifier, "text").error
    check(error)
    assert error.startswith(r"first \x1b[2J\u202eaaa")
    assert error.endswith("aaa last")


def test_notes_have_the_same_limit(capsys, qkv, run):
    note(f"\x1b{LONG}")
    Display().print(f"note: \x1b{LONG}")
    lines = [*capsys.readouterr().err.splitlines(), *qkv("translate", run, "\x1b" + 150 * "日本語").err.splitlines()]
    assert len(lines) >= 3
    for line in lines:
        assert line.startswith("note: ")
        assert len(line) <= LONGEST_MESSAGE
        assert line.isprintable()


def test_an_invalid_line_of_questions_is_not_quoted_in_full(qkv, tmp_path, classifier):
    (tmp_path / "questions.jsonl").write_text(json.dumps({LONG: LONG}) + "\n")
    check(qkv("answer", classifier, "--input", tmp_path / "questions.jsonl").error)


def test_all_recipes_are_listed(qkv):
    names = [line.split()[0] for line in qkv("recipes").out.splitlines() if line[0] != " "]
    assert "dates-gru" in names
    assert sum(map(len, names)) > LONGEST_MESSAGE  # too long for an error message


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("help", "qkv --help"),
        ("data download dates", "qkv data fetch"),
        ("data tokenize", "qkv data prepare"),
        ("claims list", "did you mean qkv claims?"),
        ("claims run 999", "numbered from 1 to "),
        ("models download nosuch", "all are in the package: copy-ntm"),
        ("serve sentiment --port 99999", "'--port': must be at most 65535"),
        ("translate dates --dtype float16 hi", "'--dtype': 'float16' is not one of"),
        ("parse ewt-pos x", "a parser (for qkv parse) is required"),
        ("compare dates-gru --vary model.cel=gru,lstm", "--vary model.cel=gru: recipe dates-gru: unknown key"),
    ],
)
def test_messages_name_the_right_command_option_or_range(qkv, command, words):
    assert words in qkv(*command.split()).error


def test_help_with_a_command_suggests_its_help(qkv):
    assert "did you mean qkv train --help?" in qkv("help", "train").error
