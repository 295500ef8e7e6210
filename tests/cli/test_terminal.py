"""Results go to stdout and progress to stderr, whichever of them is a terminal."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

from qkv.experiments.results import append_record
from qkv.hub.model_folder import save_model
from qkv.models import rnn_lm
from qkv.models import show_attend_tell as captioner
from qkv.tokenizers import CharTokenizer, WordTokenizer
from tests.cli.command import Ended
from tests.cli.under_terminal import Case, as_json
from tests.experiments.records import record
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

COUNT = 50
TINY = (
    "data.size=60", "model.hidden_dim=8", "model.embedding_dim=8", "train.epochs=1", "train.batch_size=2048",
    "train.valid_size=10",
)  # fmt: skip
HOSTILE = "b\x1b[31m\tad\nlabel\u202e\x9b"
HOSTILE_ON_A_TERMINAL = r"b\x1b[31m\tad\nlabel\u202e\x9b"
# Lines of stdout, and what the bar on stderr says, if there is one.
COMMANDS = {
    "translate": (COUNT, "translating"),
    "translate json": (COUNT, "translating"),
    "classify": (COUNT, "classifying"),
    "tag": (COUNT, "tagging"),
    "fill": (COUNT, "filling in"),
    "embed json": (COUNT, "embedding"),
    "caption": (COUNT, "captioning"),
    "generate": (COUNT, ""),
    "answer": (COUNT, "answering"),
    "evaluate": (None, "evaluating"),
    "compare": (None, ""),
    "view json": (1, ""),
    "data show": (COUNT, ""),
    "train json": (1, "epoch"),
}


def commands(folder: Path) -> dict[str, Sequence[object]]:
    """The arguments of each command, with models that were never trained for all but translate and evaluate."""
    run, texts = folder / "run", ("--input", folder / "texts.txt")
    return {
        "translate": ("translate", run, *texts, "--max-new-tokens", 8),
        "translate json": ("translate", run, *texts, "--max-new-tokens", 8, "--json"),
        "classify": ("classify", folder / "classifier", *texts),
        "tag": ("tag", folder / "tagger", *texts),
        "fill": ("fill", folder / "masked_lm", "--input", folder / "masked.txt", "--top-k", 1),
        "embed json": ("embed", folder / "encoder", *texts, "--json"),
        "caption": ("caption", folder / "captioner", *[folder / "picture.png"] * COUNT),
        "generate": ("generate", folder / "lm", "--input", folder / "texts.txt", "--max-new-tokens", 4),
        "answer": ("answer", folder / "span", "--input", folder / "questions.jsonl"),
        "evaluate": ("evaluate", run, "--limit", COUNT, "--no-record"),
        "compare": ("compare", folder / "scored"),
        "view json": ("view", run, "5 May 2026", "--page", folder / "page.html", "--json"),
        "data show": ("data", "show", "dates", "--count", COUNT),
    }


def train(folder: Path, *more: str) -> list[str]:
    changes = [word for change in TINY for word in ("--set", change)]
    return ["train", "dates-gru", *changes, "--device", "cpu", "--output", str(folder), *more]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tokenizer = tiny_tokenizer(folder)
    for head, options in {
        "classifier": {"labels": 2, "label_names": ("good", "bad")},
        "tagger": {"labels": 2, "label_names": ("A", "B")},
        "masked_lm": {},
        "span": {},
    }.items():
        saved(tiny_bert(head, **options), tokenizer, folder / head)
    saved(tiny_bert(None, pooler=False), tokenizer, folder / "encoder")
    saved(tiny_bert("classifier", labels=1, label_names=(HOSTILE,)), tokenizer, folder / "hostile")
    torch.manual_seed(0)
    words = WordTokenizer.train(["a red circle above a small blue square"])
    small = {
        "height": 8,
        "width": 8,
        "encoder": {"name": "cnn", "filters": (4, 8)},
        "feature_dim": 6,
        "embedding_dim": 5,
        "hidden_dim": 7,
        "max_length": 6,
    }
    characters = CharTokenizer.train(["the cat sat on the mat 0123456789"])
    for name, model, tokenizer in (
        ("captioner", captioner.ShowAttendTell(captioner.ShowAttendTellConfig(vocab_size=len(words), **small)), words),
        (
            "lm",
            rnn_lm.RNNLM(rnn_lm.RNNLMConfig(vocab_size=len(characters), layers=1, embedding_dim=8, hidden_dim=16)),
            characters,
        ),
    ):
        (folder / name).mkdir()
        save_model(model, tokenizer, folder / name)
    Image.new("RGB", (20, 10), "red").save(folder / "picture.png")
    (folder / "texts.txt").write_text("".join(f"the cat {number}\n" for number in range(COUNT)))
    (folder / "masked.txt").write_text("the [MASK] sat\n" * COUNT)
    question = json.dumps({"question": "who sat?", "text": "the cat sat on the mat."})
    (folder / "questions.jsonl").write_text(f"{question}\n" * COUNT)
    (folder / "scored").mkdir()
    append_record(folder / "scored", record())
    return folder


@pytest.fixture(scope="module")
def ended(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """What each command leaves, with a pseudo-terminal on either side."""
    folder = models
    bar, results = {"stderr": "pty", "stdout": "pipe"}, {"stderr": "pipe", "stdout": "pty"}
    same = {"stderr": "stdout", "stdout": "pty"}
    cases = {
        "train json, bar": Case(train(folder / "run", "--json"), **bar),
        "train json, results": Case(train(folder / "run-2", "--json"), **results),
    }
    arguments = {name: [str(word) for word in words] for name, words in commands(folder).items()}
    for name, words in arguments.items():
        cases[f"{name}, bar"] = Case(words, **bar)
        cases[f"{name}, results"] = Case(words, **results)
    for name in ("translate", "classify", "evaluate"):
        cases[f"{name}, same"] = Case(arguments[name], **same)
    hostile = ["classify", str(folder / "hostile"), "the cat"]
    generated = ["generate", str(folder / "lm"), "the\x1b[31m\n\tcat\x9b", "--max-new-tokens", "1"]
    streamed = ["generate", str(folder / "lm"), "the cat", "--max-new-tokens", "30"]
    bulk = ["--input", str(folder / "texts.txt"), "--output"]
    cases |= {
        "stream on a terminal": Case(streamed, **results),
        "stream in a pipe": Case(streamed),
        "generate, bulk": Case(["generate", str(folder / "lm"), *bulk, str(folder / "generated.txt")], **bar),
        "translate, bulk": Case(["translate", str(folder / "run"), *bulk, str(folder / "translated.txt")], **bar),
        "label on a terminal": Case(hostile, **results),
        "label in a pipe": Case(hostile),
        "label in JSON": Case([*hostile, "--json"], **results),
        "text on a terminal": Case(generated, **results),
        "text in a pipe": Case(generated),
        "stdin closed": Case(["translate", str(folder / "run")], stdin="closed"),
        "stdin closed, prompt": Case(["generate", str(folder / "lm")], stdin="closed"),
        "stdin closed, not needed": Case(["translate", str(folder / "run"), "1 May 2020"], stdin="closed"),
        "stdout closed": Case(["translate", str(folder / "run"), "1 May 2020"], stdout="closed"),
        "stdout closed, help": Case(["--help"], stdout="closed"),
        "stderr closed": Case(["translate", str(folder / "run"), "1 May 2020"], stderr="closed"),
        "all closed": Case(["data", "list"], stdin="closed", stdout="closed", stderr="closed"),
    }
    path = tmp_path_factory.mktemp("cases") / "cases.json"
    path.write_text(as_json(cases))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.cli.under_terminal", str(path)]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return {name: Ended(**one) for name, one in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_all_results_are_in_a_pipe_while_stderr_is_a_terminal(ended: dict[str, Ended], name: str) -> None:
    lines, bar = COMMANDS[name]
    one = ended[f"{name}, bar"]
    assert one.code == 0, one
    assert len(one.out.splitlines()) == lines or (lines is None and one.out)
    assert "\x1b" not in one.out
    assert bar in one.err


@pytest.mark.parametrize("name", COMMANDS)
def test_results_on_a_terminal_are_those_in_a_pipe_without_progress(ended: dict[str, Ended], name: str) -> None:
    one, piped = ended[f"{name}, results"], ended[f"{name}, bar"]
    assert one.code == 0, one
    assert "\x1b" not in one.err
    if name == "train json":
        assert json.loads(one.out)["step"] == json.loads(piped.out)["step"]
    elif name == "evaluate":  # the speed differs
        assert [line for line in one.out.splitlines() if "speed" not in line] == [
            line for line in piped.out.splitlines() if "speed" not in line
        ]
    elif name == "compare":  # Markdown in a pipe, a table with one row per run on a terminal
        (row,) = [line for line in one.out.splitlines() if re.match(r"scored\s", line)]
        assert "38.50" in row.split()
        assert "| 38.50 |" in piped.out
    else:
        assert one.out == piped.out


@pytest.mark.parametrize("name", ["translate", "classify"])
def test_results_stay_intact_on_the_terminal_that_stderr_is_on(ended: dict[str, Ended], name: str) -> None:
    wanted = ended[f"{name}, bar"].out.splitlines()
    assert [line for line in ended[f"{name}, same"].out.splitlines() if not line.startswith("note: ")] == wanted


def test_a_bar_is_gone_before_results_are_printed_on_the_same_terminal(ended: dict[str, Ended]) -> None:
    out = ended["evaluate, same"].out
    assert "evaluating" in out
    table = ended["evaluate, bar"].out.splitlines()
    assert table[0] in out[out.rindex("\x1b") :]


def test_control_characters_of_a_label_do_not_reach_a_line_of_results(ended: dict[str, Ended]) -> None:
    assert ended["label on a terminal"].out == f"{HOSTILE_ON_A_TERMINAL}\t1.0000\n"
    in_a_pipe = HOSTILE_ON_A_TERMINAL.replace(r"\u202e", "\u202e")
    assert ended["label in a pipe"].out == f"{in_a_pipe}\t1.0000\n"


def test_generated_text_keeps_its_newlines_and_tabs_alone_on_a_terminal(ended: dict[str, Ended]) -> None:
    assert ended["text on a terminal"].out.startswith("the\\x1b[31m\n\tcat\\x9b")
    assert ended["text in a pipe"].out.startswith("the\x1b[31m\n\tcat\x9b")


def test_streamed_text_equals_that_in_a_pipe(ended: dict[str, Ended]) -> None:
    assert ended["stream on a terminal"].out == ended["stream in a pipe"].out
    assert ended["stream on a terminal"].code == 0


@pytest.mark.parametrize("name", ["generate", "translate"])
def test_the_bar_of_a_file_has_rates(ended: dict[str, Ended], name: str) -> None:
    one = ended[f"{name}, bulk"]
    assert one.code == 0, one
    assert one.out.count("\n") == 1
    assert f"{COUNT}/{COUNT}" in one.err
    assert "lines/s" in one.err
    assert "tokens/s" in one.err


def test_json_keeps_a_label_exactly_without_control_characters(ended: dict[str, Ended]) -> None:
    (line,) = ended["label in JSON"].out.splitlines()
    assert json.loads(line)["label"] == HOSTILE
    assert all(character.isprintable() for character in line)


@pytest.mark.parametrize("name", ["stdin closed", "stdin closed, prompt", "stdout closed", "stdout closed, help"])
def test_a_closed_stream_that_is_needed_is_an_error_in_one_line(ended: dict[str, Ended], name: str) -> None:
    assert "closed" in ended[name].error


def test_a_closed_stream_that_is_not_needed_is_none(ended: dict[str, Ended]) -> None:
    assert ended["stdin closed, not needed"].code == ended["stderr closed"].code == 0
    assert ended["stdin closed, not needed"].out == ended["stderr closed"].out != ""
    assert (ended["all closed"].code, ended["all closed"].out, ended["all closed"].err) == (2, "", "")
