"""Training on a text in shards, `qkv data prepare` and `qkv data shards`."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from qkv.datasets.shards import large_text
from qkv.datasets.shards.token_shards import shard_path
from qkv.training import job
from qkv.training.recipe import read_recipe
from tests.training.stopping import assert_bit_equal, stop_after

from .command import Ended

Command = Callable[..., Ended]
SMALL = ["model.dim=8", "model.heads=2", "model.layers=1", "model.max_length=16", "task.length=16", "model.dropout=0.1"]
SMALL += [
    "train.batch_size=64",
    "train.epochs=2",
    "train.validate_every=1000",
    "train.save_every=7",
    "data.shards=true",
]
SMALL += ["data.tokenizer.name=bpe", "data.tokenizer.vocab_size=60", "data.workers=1"]
SET = [argument for assignment in SMALL for argument in ("--set", assignment)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(large_text, "MIN_SHARD_BYTES", 1000)
    return tmp_path / "cache" / "qkv" / "data" / "tokenized"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(100)]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(" ".join(rng.choices(words, k=20)) for _ in range(60)))
    return path


def shards_of(qkv: Command) -> list[dict[str, object]]:
    return [json.loads(line) for line in qkv("data", "shards", "--json").out.splitlines()]


def test_prepare_then_train_then_evaluate(qkv: Command, text: Path, tmp_path: Path) -> None:
    prepared = qkv("data", "prepare", "shakespeare-gpt", "--data", text, *SET, "--json")
    assert prepared.code == 0, prepared.err
    assert "tokenizing" in prepared.err
    summary = json.loads(prepared.out)
    assert summary["files"] == [str(text)]
    assert summary["text_bytes"] == text.stat().st_size
    assert summary["bytes"] == summary["tokens"] > 1000  # a vocabulary of 60 fits in a byte
    assert summary["shards"] > 3
    assert shards_of(qkv) == [summary]
    assert f"{summary['tokens']:,} tokens" in qkv("data", "shards").out
    run = tmp_path / "run"
    trained = qkv("train", "shakespeare-gpt", "--data", text, *SET, "--output", run)
    assert trained.code == 0, trained.err
    assert "tokenizing" not in trained.err
    assert len(shards_of(qkv)) == 1
    evaluated = qkv("evaluate", run, "--json")
    assert evaluated.code == 0, evaluated.err
    assert json.loads(evaluated.out)["split"] == "valid"


def test_a_folder_of_json_lines_is_trained_on_as_documents(qkv: Command, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    documents = text.read_text().split("\n\n")
    for number in range(3):
        lines = [json.dumps({"body": document}) for document in documents[20 * number : 20 * (number + 1)]]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    extra = ["--set", "task.name=packed_lm", "--set", "data.column=body", "--set", "data.valid_share=0.2"]
    done = qkv("data", "prepare", "shakespeare-gpt", "--data", folder, *SET, *extra, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["documents"] < 60
    assert json.loads(done.out)["documents"] > 40
    trained = qkv("train", "shakespeare-gpt", "--data", f"{folder}/*.jsonl", *SET, *extra, "--output", tmp_path / "run")
    assert trained.code == 0, trained.err
    assert "tokenizing" not in trained.err


def test_verify_and_rebuild(qkv: Command, text: Path, cache: Path) -> None:
    arguments = ["data", "prepare", "shakespeare-gpt", "--data", text, *SET]
    assert qkv(*arguments).code == 0
    (folder,) = (path.parent for path in cache.glob("*/index.json"))
    assert "shards are intact" in qkv(*arguments, "--verify").err
    path = shard_path(folder, 1)
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    ended = qkv(*arguments, "--verify")
    assert (ended.code, "00001.tokens" in ended.err, "--rebuild" in ended.err) == (2, True, True)
    path.write_bytes(data[:-1])
    ended = qkv(*arguments)
    assert (ended.code, "00001.tokens" in ended.err, "--rebuild" in ended.err) == (2, True, True)
    assert qkv(*arguments, "--rebuild").code == 0
    assert path.read_bytes() == data
    (folder / "index.json").write_text("{")
    assert qkv(*arguments, "--verify").code == 2
    assert "index.json" in qkv("data", "shards").err
    assert qkv(*arguments, "--rebuild").code == 0
    assert qkv(*arguments, "--verify").code == 0


def test_nothing_to_prepare(qkv: Command, text: Path) -> None:
    small = qkv("data", "prepare", "shakespeare-gpt", "--data", text)
    assert (small.code, "data.shards=true" in small.err) == (2, True)
    assert qkv("data", "prepare", "dates-gru").code == 2
    assert qkv("data", "prepare").code == 2
    assert "no tokenized texts" in qkv("data", "shards").err


def test_show_reads_only_the_beginning_of_a_large_text(
    qkv: Command, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with text.open("ab") as file:
        file.write(b"\n\nmore text" * 2**17 + b"\xff")
    monkeypatch.setattr(large_text, "LARGE_BYTES", 1000)
    monkeypatch.setattr("qkv.datasets.detect.LARGE_BYTES", 1000)
    shown = qkv("data", "show", text, "--count", "2")
    assert shown.code == 0, shown.err
    assert shown.out.splitlines() == text.read_bytes().decode(errors="replace").split("\n\n")[:2]
    assert f"{text.stat().st_size:,} bytes" in shown.err


@pytest.mark.parametrize("recipe", ["shakespeare-gpt", "shakespeare-lstm"])
def test_a_resumed_run_ends_as_an_undisturbed_one(
    qkv: Command, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    small = [*SMALL, f"data.train={json.dumps([str(text)])}", 'data.name="text"', "train.epochs=1"]
    if recipe == "shakespeare-lstm":
        small = [item for item in small if not re.match(r"model\.(dim|heads|max_length)", item)]
        small += ["model.hidden_dim=8", "model.embedding_dim=8"]
    config = read_recipe(recipe, small)
    whole = job.begin(config, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, 11)
        stopped = job.begin(config, tmp_path / "stopped", "cpu")
    assert (stopped.state.step, stopped.state.finished) == (11, False)
    resumed = job.resume(tmp_path / "stopped", "cpu")
    assert resumed.state.step == whole.state.step > 20
    assert_bit_equal(tmp_path / "whole", tmp_path / "stopped")
    with text.open("a") as file:
        file.write(" changed")
    assert qkv("train", "--resume", tmp_path / "stopped").code == 2
