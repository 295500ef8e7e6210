"""Runs: checkpoints, resuming bit for bit, and rejected input."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.errors import CheckpointError, InputError, NotFinite
from qkv.hub.checkpoint_manifest import MANIFEST_FILE, read_manifest, write_manifest
from qkv.runtime import provenance
from qkv.tasks.translation import TranslationTask
from qkv.training import job, loop
from qkv.training.recipe import read_recipe
from qkv.training.run import Run
from qkv.training.run_manifest import Manifest, Version

from .stopping import assert_bit_equal, stop_after, tensors


def rewrite_manifest(checkpoint: Path, **changes: object) -> None:
    """Rewrite checkpoint.json for the current files, with some of its keys changed."""
    record = read_manifest(checkpoint)
    del record["sha256"]
    (checkpoint / MANIFEST_FILE).unlink()
    write_manifest(checkpoint, record | changes)


def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(whole, tiny, tmp_path, monkeypatch):
    assert whole.state.finished
    parts, resumes = tmp_path / "parts", 0
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        state = job.begin(tiny, parts, "cpu").state
    assert not state.finished
    while not state.finished:
        resumes += 1
        with monkeypatch.context() as patch:
            stop_after(patch, 7)
            state = job.resume(parts, "cpu").state
    assert resumes >= 2
    assert_bit_equal(whole.run.folder, parts)
    steps = [
        [json.loads(line)["step"] for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in (whole.run.folder, parts)
    ]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("baseline", ["moving-average", "learned"])
def test_the_baseline_of_hard_attention_is_restored(baseline, tiny, tmp_path, monkeypatch):
    align = {"name": "hard", "estimator": "reinforce", "baseline": baseline}
    hard = tiny.replace(model=tiny.model.replace(align=align), train=tiny.train.replace(epochs=1))
    assert job.begin(hard, tmp_path / "whole", "cpu").state.finished
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        assert not job.begin(hard, tmp_path / "parts", "cpu").state.finished
    assert job.resume(tmp_path / "parts", "cpu").state.finished
    assert_bit_equal(tmp_path / "whole", tmp_path / "parts")
    baselines = [value for name, value in tensors(tmp_path / "whole").items() if name.startswith("buffer.")]
    assert len(baselines) == (2 if baseline == "moving-average" else 0)
    assert all(value != 0 for value in baselines)


def test_an_old_checkpoint_without_baselines_can_be_resumed(tiny, tmp_path, monkeypatch):
    align = {"name": "hard", "estimator": "reinforce"}
    hard = tiny.replace(model=tiny.model.replace(align=align), train=tiny.train.replace(epochs=1))
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        run = job.begin(hard, tmp_path / "run", "cpu").run
    path = run.checkpoints[-1] / "training.safetensors"
    save_file({name: value for name, value in load_file(path).items() if not name.startswith("buffer.")}, path)
    rewrite_manifest(path.parent)
    assert job.resume(tmp_path / "run", "cpu").state.finished


def test_a_checkpoint_records_its_environment(tiny, tmp_path):
    done = job.begin(tiny.replace(train=tiny.train.replace(epochs=1, precision="bfloat16")), tmp_path / "run", "cpu")
    record = read_manifest(done.run.checkpoints[-1])
    assert record["device"] == provenance.device_name(torch.device("cpu"))
    assert (record["precision"], record["graphs"]) == ("bfloat16", False)
    assert (record["commit"], record["source_hash"]) == (provenance.commit(), provenance.source_hash())
    assert record["torch"] == torch.__version__


@pytest.mark.parametrize("key", ["device", "precision", "graphs", "torch"])
def test_resuming_in_another_environment_is_reported(key, stopped, monkeypatch, capsys):
    checkpoint = Run.open(stopped).checkpoints[-1]
    current = read_manifest(checkpoint)[key]
    rewrite_manifest(checkpoint, **{key: "another"})
    stop_after(monkeypatch, 1)
    job.resume(stopped, "cpu")
    notes = [line for line in capsys.readouterr().err.splitlines() if "may differ in the last digits" in line]
    assert notes == [f"note: {key} was another and is now {current}: results may differ in the last digits"]


def test_resuming_in_the_same_environment_prints_no_note(stopped, monkeypatch, capsys):
    stop_after(monkeypatch, 1)
    job.resume(stopped, "cpu")
    assert "note" not in capsys.readouterr().err


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path):
    folder = shutil.copytree(whole.run.folder, tmp_path / "run")
    assert job.resume(folder, "cpu").state == whole.state
    assert_bit_equal(whole.run.folder, folder)


def test_other_files_next_to_the_checkpoints_are_left_alone(stopped):
    mine = shutil.copytree(Run.open(stopped).checkpoints[-1], stopped / "step-00000004-mine")
    (stopped / "step-notes.txt").write_text("mine too")
    assert job.resume(stopped, "cpu").state.finished
    assert (mine / "model.safetensors").exists()
    assert (stopped / "step-notes.txt").exists()


def test_a_run_killed_before_its_last_save_logs_nothing_twice(whole, tiny, tmp_path, monkeypatch):
    recipe = tiny.replace(train=tiny.train.replace(save_every=whole.state.step))

    real = loop.Trainer.validate

    def validate_then_die_at_the_end(trainer, log):
        real(trainer, log)
        if trainer.state.step == whole.state.step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "validate", validate_then_die_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            job.begin(recipe, tmp_path / "parts", "cpu")
    assert job.resume(tmp_path / "parts", "cpu").state.finished
    logged = [
        [(record["step"], record["kind"]) for record in map(json.loads, (folder / "log.jsonl").open())]
        for folder in (whole.run.folder, tmp_path / "parts")
    ]
    assert len(set(logged[1])) == len(logged[1])
    assert set(logged[1]) == set(logged[0])


def test_two_processes_cannot_train_in_one_folder(stopped):
    with Run.open(stopped).lock(), pytest.raises(InputError, match="another process"):
        job.resume(stopped, "cpu")


def test_weights_that_are_not_finite_are_never_saved(tiny, tmp_path):
    wild = tiny.replace(train=tiny.train.replace(lr=1e30, warmup=0, save_every=1))
    with pytest.raises(NotFinite, match=r"step 2: a weight is not finite.*step-00000001"):
        job.begin(wild, tmp_path / "run", "cpu")
    assert all(value.double().isfinite().all() for value in tensors(tmp_path / "run").values())


def test_data_that_changed_since_training_are_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = [f"{number:03}\t{number % 7}" for number in range(60)]
    Path("pairs.tsv").write_text("\n".join(pairs))
    Path("mine.toml").write_text(
        'task = "translate"\ndata = { name = "pairs", train = ["pairs.tsv"] }\ntrain = { epochs = 1 }'
    )
    small = ["model.name=rnn_seq2seq", "model.hidden_dim=8", "model.embedding_dim=8"]
    run = job.begin(read_recipe("mine.toml", small), tmp_path / "run", "cpu").run
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # a relative path in the recipe must still name the same file
    assert len(run.data().splits["train"]) == 57
    (tmp_path / "pairs.tsv").write_text("\n".join([*pairs, "new\tpair"]))
    with pytest.raises(InputError, match="its data have changed"):
        Run.open(tmp_path / "run").data()


def test_the_last_checkpoints_and_the_best_are_kept(whole, tiny):
    names = [path.name for path in whole.run.checkpoints]
    assert names[-1] == f"step-{whole.state.step:08d}"
    assert f"step-{whole.state.best.step:08d}" in names
    assert len([name for name in names if name != f"step-{whole.state.best.step:08d}"]) <= tiny.train.keep


def test_the_seed_determines_the_weights(short, tmp_path):
    for name, recipe in (("first", short), ("same", short), ("other", short.replace(seed=1))):
        job.begin(recipe, tmp_path / name, "cpu")
    assert_bit_equal(tmp_path / "first", tmp_path / "same")
    expected, other = tensors(tmp_path / "first"), tensors(tmp_path / "other")
    assert not any(expected[name].equal(other[name]) for name in expected if name.endswith(".weight_hh_l0"))


def test_resuming_on_other_data_is_rejected(stopped):
    run = Run.open(stopped)
    Manifest((Version(run.recipe.replace(data=run.recipe.data.replace(size=119))),)).write(stopped)
    with pytest.raises(InputError, match="the data have changed"):
        job.resume(stopped, "cpu")


@pytest.mark.parametrize("file", ["model.safetensors", "training.safetensors", "checkpoint.json", "config.json"])
@pytest.mark.parametrize("damage", ["cut short", "altered", "missing"])
def test_a_damaged_checkpoint_is_rejected_by_name(file, damage, stopped):
    path = Run.open(stopped).checkpoints[-1] / file
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] if damage == "cut short" else data[:middle] + b"\0\1" + data[middle + 2 :])
    with pytest.raises(CheckpointError, match="step-00000004"):
        job.resume(stopped, "cpu")


def test_a_new_run_does_not_overwrite_a_folder(tiny, stopped, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="holds another run"):
        job.begin(tiny, stopped, "cpu")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        job.begin(tiny, tmp_path / "mine", "cpu")
    assert [path for path in sorted(tmp_path.rglob("*")) if "mine" not in path.parts] == before


def test_a_run_that_cannot_start_leaves_no_folder(tmp_path):
    recipe = read_recipe("pairs-gru", [f'data.train=["{tmp_path}/none.tsv"]'])
    with pytest.raises(InputError, match=r"none\.tsv: no such file"):
        job.begin(recipe, tmp_path / "run", "cpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_training_stops_before_an_update_that_is_not_finite(what, tiny, tmp_path, monkeypatch):
    real, calls = TranslationTask.loss, []

    def poisoned(self, model, batch):
        calls.append(1)
        loss = real(self, model, batch)
        if len(calls) < 6:
            return loss
        if what == "loss":
            return loss * float("nan")
        return loss + torch.sqrt((next(model.parameters()) * 0).sum())  # finite, with an infinite gradient

    monkeypatch.setattr(TranslationTask, "loss", poisoned)
    recipe = tiny.replace(train=tiny.train.replace(precision="float32"))  # choosing one computes a loss, too
    with pytest.raises(NotFinite, match=rf"step 6: the {what} is not finite.*step-0000000[345]"):
        job.begin(recipe, tmp_path / "run", "cpu", force=True)  # without the memory check, which computes losses too
    for value in tensors(tmp_path / "run").values():
        assert value.double().isfinite().all()


def test_a_checkpoint_loads_as_a_model(whole):
    import qkv

    model = qkv.load(whole.run.checkpoints[-1])
    weights = load_file(whole.run.checkpoints[-1] / "model.safetensors")
    for name, parameter in model.named_parameters():
        assert parameter.equal(weights[name])
    assert model.tokenizer.decode(model.tokenizer.encode("5 March 2026")) == "5 March 2026"
    assert not model.training


def test_weights_of_another_shape_are_rejected(whole, tmp_path):
    import qkv

    weights = load_file(whole.run.checkpoints[-1] / "model.safetensors")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (copy / name).write_bytes((whole.run.checkpoints[-1] / name).read_bytes())
    save_file({name: value[..., :-1].contiguous() for name, value in weights.items()}, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match="has shape"):
        qkv.load(copy)


def test_the_log_is_written_as_json_and_for_tensorboard(whole):
    records = [json.loads(line) for line in (whole.run.folder / "log.jsonl").read_text().splitlines()]
    valid = [record for record in records if record["kind"] == "valid"]
    assert [record["step"] for record in valid][-1] == whole.state.step
    assert all(set(record) >= {"loss", "exact", "bleu", "chrf"} for record in valid)
    train = [record for record in records if record["kind"] == "train"]
    assert all(record["tokens_per_s"] > 0 and record["loss"] > 0 for record in train)
    assert list((whole.run.folder / "tensorboard").glob("events.out.tfevents.*"))


def test_different_data_have_different_fingerprints(tiny):
    data, larger = tiny.data.load(), read_recipe("dates-gru", ["data.size=121"]).data.load()
    assert data.fingerprint == tiny.data.load().fingerprint != larger.fingerprint
