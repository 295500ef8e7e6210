"""The manifest protects the recipe of a run, and nothing in a run folder is written through a link."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import qkv
from qkv.config import write_toml
from qkv.errors import CheckpointError, InputError
from qkv.experiments.results import append_record, read_records
from qkv.hub import model_folder as folder
from qkv.hub.checkpoint_manifest import with_digest
from qkv.hub.model_folder import checkpoint_path
from qkv.pipelines.translator import Translator
from qkv.training import checkpoint, job, loop
from qkv.training.log import EventFile
from qkv.training.recipe import read_recipe
from qkv.training.run import CHANGEABLE, Run
from qkv.training.run_manifest import MANIFEST, RECIPE, Manifest

from .stopping import assert_bit_equal, stop_after


def flat(table: dict, prefix: str = "") -> dict:
    rows = {}
    for key, value in table.items():
        rows |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return rows


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.lr", 0.05),
        ("train.epochs", 7),
        ("train.clip", 0.1),
        ("train.weight_decay", 0.3),
        ("train.warmup", 1),
        ("train.decay", "inverse_sqrt"),
        ("train.ema", 0.9),
        ("task.label_smoothing", 0.1),
        ("seed", 3),
        ("model.hidden_dim", 32),
        ("model.score", "dot"),
        ("model.dropout", 0.5),
        ("model.name", "transformer"),
        ("data.tokenizer", "word"),
    ],
)
def test_an_edited_recipe_is_rejected_with_the_name_of_the_key(key, value, stopped):
    table = Run.open(stopped).recipe.to_dict()
    *parents, last = key.split(".")
    inner = table
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    (stopped / RECIPE).write_text(write_toml(table))
    with pytest.raises(InputError, match=f"{key} "):
        job.resume(stopped, "cpu")
    with pytest.raises(InputError, match=f"{key} "):
        Run.open(stopped)


def test_an_edit_to_a_number_of_thousands_of_digits_is_rejected(stopped):
    text = (stopped / RECIPE).read_text()
    (stopped / RECIPE).write_text(text.replace("epochs = 3", f"epochs = 0x{'f' * 5000}"))
    with pytest.raises(InputError, match=r"train\.epochs"):
        Run.open(stopped)


def test_a_truncated_recipe_is_rejected(stopped):
    lines = (stopped / RECIPE).read_text().splitlines(keepends=True)
    for end in range(len(lines)):
        cut = "".join(lines[:end])
        (stopped / RECIPE).write_text(cut)
        if lines[end:] and all(line.strip() == "" for line in lines[end:]):
            continue
        with pytest.raises(InputError, match=RECIPE):
            Run.open(stopped)


def test_comments_and_key_order_do_not_count_as_edits(stopped):
    text = (stopped / RECIPE).read_text()
    (stopped / RECIPE).write_text("# mine\n" + text.replace("\n", "  # note\n", 1))
    assert Run.open(stopped).recipe == Manifest.read(stopped).recipe


def test_a_deleted_recipe_is_restored(stopped, monkeypatch):
    text = (stopped / RECIPE).read_text()
    (stopped / RECIPE).unlink()
    stop_after(monkeypatch, 1)
    job.resume(stopped, "cpu")
    assert (stopped / RECIPE).read_text() == text


@pytest.mark.parametrize("damage", ["cut", "altered", "emptied", "no versions", "other types"])
def test_a_damaged_manifest_is_rejected(damage, stopped):
    path = stopped / MANIFEST
    text = path.read_text()
    if damage == "no versions":
        changed = with_digest({"versions": []})
    elif damage == "other types":
        changed = with_digest({"versions": [{"recipe": 3}]})
    else:
        changed = {"cut": text[:200], "altered": text.replace("0.005", "0.05"), "emptied": ""}[damage]
    assert changed != text
    path.write_text(changed)
    with pytest.raises(InputError, match=MANIFEST):
        job.resume(stopped, "cpu")


def test_a_changed_key_is_recorded_with_its_step(stopped, tiny, monkeypatch):
    stop_after(monkeypatch, 1)
    job.resume(stopped, "cpu", assignments=["train.lr=0.001", "train.patience=9"])
    first, second = Manifest.read(stopped).versions
    assert first.recipe == tiny
    changes = ("train.lr=0.001", "train.patience=9")
    assert second.recipe == tiny.replace(
        train=tiny.train.replace(lr=0.001, patience=9), overrides=(*tiny.overrides, *changes)
    )
    assert (second.step, second.assignments) == (4, changes)
    assert Run.open(stopped).recipe.train.lr == 0.001
    assert "lr = 0.001" in (stopped / RECIPE).read_text()


@pytest.mark.parametrize(
    "key", ["model.hidden_dim", "data.size", "seed", "train.batch_size", "train.ema", "train.nosuch"]
)
def test_a_key_that_a_checkpoint_depends_on_cannot_be_changed(key, stopped):
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=key):
        job.resume(stopped, "cpu", assignments=[f"{key}=7"])
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


def test_every_changeable_key_exists(tiny):
    assert set(CHANGEABLE) < set(flat(tiny.to_dict()))


def test_extending_a_finished_run_is_bit_exact_after_an_interruption(short, tmp_path, monkeypatch):
    constant = short.replace(train=short.train.replace(decay="constant"))
    for name in ("first", "second"):
        assert job.begin(constant, tmp_path / name, "cpu").state.finished
    done = job.resume(tmp_path / "first", "cpu", assignments=["train.epochs=2"])
    assert done.state.finished
    assert done.state.epoch == 1
    with monkeypatch.context() as patch:
        patch.setattr(loop, "learning_rate", lambda *arguments: 1 / 0)  # killed before the first new checkpoint
        with pytest.raises(ZeroDivisionError):
            job.resume(tmp_path / "second", "cpu", assignments=["train.epochs=2"])
    assert job.resume(tmp_path / "second", "cpu").state.step == done.state.step
    assert_bit_equal(tmp_path / "first", tmp_path / "second")
    assert job.resume(tmp_path / "first", "cpu").state == done.state  # a finished run stays finished


def rewrite_recipe(folder: Path, change: Callable[[dict], None]) -> None:
    """Change the recipe in manifest.json and recipe.toml, as if another version of qkv had written them."""
    record = json.loads((folder / MANIFEST).read_text())
    del record["digest"]
    change(record["versions"][0]["recipe"])
    (folder / MANIFEST).write_text(with_digest(record))
    (folder / RECIPE).write_text(write_toml(record["versions"][0]["recipe"]))


def test_a_run_of_an_older_version_has_the_defaults_of_new_keys(stopped, tiny, tmp_path, monkeypatch):
    def remove_new_keys(recipe: dict) -> None:
        del recipe["train"]["on_nonfinite"], recipe["model"]["pointer"], recipe["task"]["label_smoothing"]

    whole = shutil.copytree(stopped, tmp_path / "whole")
    rewrite_recipe(stopped, remove_new_keys)
    assert Run.open(stopped).recipe == tiny
    (stopped / RECIPE).write_text((stopped / RECIPE).read_text().replace("epochs = 3", "epochs = 4"))
    with pytest.raises(InputError, match=r"edited since the run was started: train\.epochs is 4 instead of 3; "):
        Run.open(stopped)
    rewrite_recipe(stopped, lambda recipe: None)
    for run in (whole, stopped):
        with monkeypatch.context() as patch:
            stop_after(patch, 1)
            assert job.resume(run, "cpu").state.step == 5
    assert_bit_equal(whole, stopped)
    assert "on_nonfinite" in (stopped / RECIPE).read_text()


@pytest.mark.parametrize("section", ["train", "model", "data", "task"])
def test_a_run_with_an_unknown_key_is_rejected(section, stopped):
    rewrite_recipe(stopped, lambda recipe: recipe[section].update(nosuch=1))
    with pytest.raises(InputError, match="nosuch"):
        Run.open(stopped)


def test_a_run_killed_while_recording_a_change_can_be_resumed(stopped, monkeypatch):
    run = Run.open(stopped).with_overrides(["train.lr=0.001"])
    text = (stopped / RECIPE).read_text()
    run.manifest.write(stopped)
    (stopped / RECIPE).write_text(text)  # manifest.json is written first
    stop_after(monkeypatch, 1)
    job.resume(stopped, "cpu")
    assert "lr = 0.001" in (stopped / RECIPE).read_text()


def test_a_checkpoint_of_another_model_is_rejected(tiny, stopped, tmp_path):
    small = [
        "model.dim=16",
        "model.heads=2",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "data.size=120",
        "train.epochs=1",
    ]
    other = job.begin(read_recipe("dates-transformer", small), tmp_path / "other", "cpu").run.checkpoints[-1]
    shutil.copytree(other, stopped / "step-99999999")
    with pytest.raises(InputError):
        job.resume(stopped, "cpu")


def test_leftovers_of_a_killed_start_do_not_block_a_new_run(tiny, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".writing-1-recipe.toml").write_text("cut")
    (tmp_path / "run" / ".lock").touch()
    with pytest.raises(InputError, match="not a training run"):
        job.resume(tmp_path / "run", "cpu")
    stop_after(monkeypatch, 1)
    job.begin(tiny, tmp_path / "run", "cpu")
    assert not list((tmp_path / "run").glob(".writing-*"))


def test_the_slower_of_two_processes_that_start_one_run_changes_nothing(tiny, tmp_path):
    slower = Run.new(tmp_path / "run", tiny.replace(seed=1))
    with Run.new(tmp_path / "run", tiny).lock():
        pass
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="another run"), slower.lock():
        pytest.fail("it must not train")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("file", [".lock", "log.jsonl", RECIPE, MANIFEST])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_nothing_is_written_through_a_link_or_a_pipe_in_a_run_folder(file, kind, stopped, tmp_path):
    victim = tmp_path / "victim"
    content = (stopped / file).read_bytes() or b"precious"
    victim.write_bytes(content)
    (stopped / file).unlink()
    if kind == "link":
        (stopped / file).symlink_to(victim)
    else:
        os.mkfifo(stopped / file)
    with pytest.raises(InputError, match=file.lstrip(".")):
        job.resume(stopped, "cpu")
    assert victim.read_bytes() == content


def test_tensorboard_is_not_written_through_a_link(stopped, tmp_path):
    shutil.rmtree(stopped / "tensorboard")
    (tmp_path / "victim").mkdir()
    (stopped / "tensorboard").symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="tensorboard"):
        job.resume(stopped, "cpu")
    assert list((tmp_path / "victim").iterdir()) == []


def test_records_are_not_written_through_a_link(tmp_path):
    recorded = Path(__file__).parents[2] / "docs" / "runs" / "copy-ntm-0"
    record = read_records(recorded)[0]
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "results.jsonl").symlink_to(victim)
    with pytest.raises(InputError, match="results"):
        append_record(tmp_path, record)
    assert victim.read_bytes() == b"precious"


def test_a_checkpoint_that_is_a_link_does_not_stop_a_run(stopped, tmp_path):
    (checkpoint,) = stopped.glob("step-00000004")
    moved = checkpoint.rename(tmp_path / "moved")
    checkpoint.symlink_to(moved)
    assert job.resume(stopped, "cpu").state.finished
    assert (moved / "model.safetensors").exists()


@pytest.mark.parametrize("kind", ["dangling", "file"])
def test_what_is_not_a_checkpoint_but_has_its_name_is_rejected_before_training(kind, stopped):
    path = checkpoint_path(stopped, 6)
    if kind == "dangling":
        path.symlink_to("nothing")
    else:
        path.touch()
    log = (stopped / "log.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=path.name):
        job.resume(stopped, "cpu")
    assert (stopped / "log.jsonl").read_bytes() == log


def test_a_run_folder_that_is_a_link_to_an_empty_folder_is_rejected(tiny, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(InputError, match="symbolic link"):
        job.begin(tiny, tmp_path / "link", "cpu")
    assert list((tmp_path / "real").iterdir()) == []


def test_a_run_folder_removed_during_training_is_written_again(short, tmp_path, monkeypatch):
    real = loop.Trainer.validate

    def remove_then_validate(*arguments):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        monkeypatch.setattr(loop.Trainer, "validate", real)
        return real(*arguments)

    monkeypatch.setattr(loop.Trainer, "validate", remove_then_validate)
    assert job.begin(short, tmp_path / "run", "cpu").state.finished
    assert Run.open(tmp_path / "run").recipe == short
    assert qkv.load(tmp_path / "run") is not None


@pytest.mark.parametrize("function", ["save_model", "write_tensors", "write_manifest"])
def test_a_run_folder_removed_while_a_checkpoint_is_written_is_written_again(short, tmp_path, monkeypatch, function):
    real = getattr(checkpoint, function)

    def remove_then_write(*arguments, **options):
        shutil.rmtree(tmp_path / "run")
        monkeypatch.setattr(checkpoint, function, real)
        return real(*arguments, **options)

    monkeypatch.setattr(checkpoint, function, remove_then_write)
    assert job.begin(short, tmp_path / "run", "cpu").state.finished
    assert qkv.load(tmp_path / "run") is not None


def test_a_full_disk_is_reported_with_the_file_that_was_being_written(tiny, tmp_path, monkeypatch):
    def full(self, event):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", full)
    threads = set(threading.enumerate())
    with pytest.raises(InputError, match=r"tensorboard.*No space left on device"):
        job.begin(tiny, tmp_path / "run", "cpu")
    assert set(threading.enumerate()) <= threads  # no thread that could print a traceback


def test_a_write_error_names_the_checkpoint_not_its_temporary_folder(tiny, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qkv.training.checkpoint.write_tensors", full)
    with pytest.raises(InputError, match="step-0") as caught:
        job.begin(tiny, tmp_path / "run", "cpu")
    assert ".writing" not in str(caught.value)
    assert not list((tmp_path / "run").glob(".writing-*"))


def test_an_event_file_holds_every_scalar_and_the_session_start(tmp_path):
    events = EventFile(tmp_path / "tensorboard", 5)
    events.write(5, {"train/loss": 1.5, "train/lr": 0.25})
    events.write(6, {"valid/loss": float("nan")})
    events.file.close()
    version, start, five, six = EventFileLoader(str(events.path)).Load()
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (5, 1)
    assert five.step == 5
    assert [value.tag for value in five.summary.value] == ["train/loss", "train/lr"]
    assert six.step == 6


def test_a_note_reports_changed_source_code(stopped, monkeypatch, capsys):
    monkeypatch.setattr("qkv.runtime.provenance.source_hash", lambda: "0" * 64)
    stop_after(monkeypatch, 1)
    job.resume(stopped, "cpu")
    assert "source code of qkv has changed" in capsys.readouterr().err


@pytest.mark.parametrize("removed", ["while it is read", "while checkpoints are listed"])
def test_a_model_can_be_loaded_while_its_run_replaces_the_checkpoint(removed, stopped, monkeypatch):
    name = {"while it is read": "verify_manifest", "while checkpoints are listed": "read_manifest"}[removed]
    real, newest = getattr(folder, name), Run.open(stopped).checkpoints[-1]
    for path in Run.open(stopped).checkpoints[:-1]:
        shutil.rmtree(path)

    def replace_then_read(path):
        if newest.exists():
            newest.rename(checkpoint_path(stopped, 9))
        return real(path)

    monkeypatch.setattr(folder, name, replace_then_read)
    assert qkv.load(stopped).config is not None
    assert Translator(stopped) is not None


def test_a_checkpoint_that_stays_damaged_is_an_error(stopped):
    (checkpoint_path(stopped, 4) / "config.json").write_text("{")
    for path in stopped.glob("step-*"):
        if path != checkpoint_path(stopped, 4):
            shutil.rmtree(path)
    with pytest.raises(CheckpointError):
        qkv.load(stopped)


def test_the_manifest_is_plain_json(stopped, tiny):
    record = json.loads((stopped / MANIFEST).read_text())
    assert flat(record["versions"][0]["recipe"])["train.lr"] == tiny.train.lr
