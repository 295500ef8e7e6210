"""`qkv transcribe` and `qkv view` of speech: text, JSON, streams, pictures, and errors."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from qkv.cli.main import app
from qkv.hub import save_model
from tests.pipelines.recordings import las, tokenizer, write_wav

from .command import Ended

Command = Callable[..., Ended]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "transcribe.md"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    save_model(las(), tokenizer(), tmp_path / "model")
    return tmp_path / "model"


def test_each_recording_gives_a_line_or_an_object(qkv: Command, model: Path, tmp_path: Path) -> None:
    paths = [write_wav(tmp_path / "a.wav", 0.5, 8000), write_wav(tmp_path / "b.wav", 1.5, 44100, seed=1)]
    few = ("--max-new-tokens", 3)
    lines = qkv("transcribe", model, *paths, *few)
    assert (lines.code, lines.err, lines.out.count("\n")) == (0, "", 2)
    found = [json.loads(line) for line in qkv("transcribe", model, *paths, *few, "--json").out.splitlines()]
    assert [answer["text"] for answer in found] == lines.out.splitlines()
    assert [(answer["input"], answer["recording"]) for answer in found] == [(1, "a.wav"), (2, "b.wav")]
    assert found[0]["segments"][0]["end"] == 0.5
    assert len(found[1]["segments"]) > 1
    streamed = qkv("transcribe", model, *paths, *few, "--stream").out.splitlines()
    assert streamed[0].split("\t") == ["0.00", "0.50", found[0]["text"]]
    streamed = qkv("transcribe", model, paths[1], *few, "--stream", "--json")
    parts = [json.loads(line) for line in streamed.out.splitlines()]
    assert [part["text"] for part in parts] == [segment["text"] for segment in found[1]["segments"]]


def test_recordings_of_a_table(qkv: Command, model: Path, tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", 0.5)
    (tmp_path / "calls.tsv").write_text("audio\tspeaker\na.wav\tA\n")
    ended = qkv("transcribe", model, "--input", tmp_path / "calls.tsv", "--max-new-tokens", 3)
    assert ended.out == qkv("transcribe", model, path, "--max-new-tokens", 3).out
    (tmp_path / "calls.tsv").write_text("audio\tspeaker\nb.wav\tA\n")
    assert "b.wav: no such file" in qkv("transcribe", model, "--input", tmp_path / "calls.tsv").err


def test_view_draws_the_alignment_under_the_spectrogram(qkv: Command, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = write_wav(tmp_path / "a.wav", 0.5)
    ended = qkv("view", model, path, "--page", tmp_path / "a.html", "--png", tmp_path / "a.png")
    assert ended.code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "0.00-0.50" in (tmp_path / "a.html").read_text()
    assert "a WAV file" in qkv("view", model).error


def test_invalid_recordings_are_one_line_errors(qkv: Command, model: Path, tmp_path: Path) -> None:
    good = write_wav(tmp_path / "good.wav", 0.2)
    (tmp_path / "text.wav").write_text("no sound")
    (tmp_path / "short.wav").write_bytes(good.read_bytes()[:-1000])
    for name, word in (("text", "not a WAV file"), ("short", "truncated"), ("none", "no such file")):
        assert word in qkv("transcribe", model, good, tmp_path / f"{name}.wav").error
    empty = write_wav(tmp_path / "empty.wav", 0.0)
    assert "no samples" in qkv("transcribe", model, empty).error
    slow = write_wav(tmp_path / "slow.wav", 0.2, rate=100)
    assert "sampling rate" in qkv("transcribe", model, slow, "--stream").error
    assert "qkv transcribe" in qkv("translate", model, "x").error
    assert "standard input" in qkv("transcribe", model).error


def test_evaluate_reports_the_word_error_rate_of_listed_recordings(qkv: Command, model: Path, tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", 0.5)
    write_wav(tmp_path / "b.wav", 0.3, seed=1)
    write_wav(tmp_path / "long.wav", 2.0)
    text = qkv("transcribe", model, tmp_path / "a.wav").out.strip()
    (tmp_path / "list.tsv").write_text(f"a.wav\t{text.upper()}.\nb.wav\tone two\nlong.wav\tthree\n")
    ended = qkv("evaluate", model, "--data", tmp_path / "list.tsv", "--json")
    found = json.loads(ended.out)
    assert (found["size"], found["exact"]) == (2, 0.5)
    assert found["wer"] > 0
    assert "skipped 1" in ended.err
    write_wav(tmp_path / "b.wav", 0.3, rate=8000)
    assert "resample" in qkv("evaluate", model, "--data", tmp_path / "list.tsv").error
    (tmp_path / "list.tsv").write_text("missing.wav\tone\n")
    assert "missing.wav: no such file" in qkv("evaluate", model, "--data", tmp_path / "list.tsv").error


@pytest.mark.slow
def test_a_model_is_trained_on_listed_recordings(qkv: Command, tmp_path: Path) -> None:
    for number in range(8):
        write_wav(tmp_path / f"{number}.wav", 0.1 + 0.02 * number, rate=8000, seed=number)
    (tmp_path / "list.tsv").write_text("".join(f"{number}.wav\tone two {number}\n" for number in range(8)))
    small = ("model.hidden_dim=8", "model.embedding_dim=4", "model.encoder.dim=8", "train.epochs=1")
    options = [word for assignment in small for word in ("--set", assignment)]
    trained = qkv("train", "digits-las", "--data", tmp_path / "list.tsv", "--output", tmp_path / "run", *options)
    assert trained.code == 0, trained.err
    assert json.loads(qkv("evaluate", tmp_path / "run", "--split", "valid", "--json").out)["size"] == 1


def test_the_commands_of_the_page_exist() -> None:
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.partition("#")[0] for line in re.findall(r"^    qkv (.*)", text, re.MULTILINE)]
    assert len(lines) > 8
    commands = typer.main.get_command(app).commands
    for line in lines:
        parameters = commands[line.split()[0]].params
        known = {option for parameter in parameters for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", line)) <= known, line
