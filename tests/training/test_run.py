"""Runs: what is saved, what is kept, and that going on equals never having stopped."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.data.registry import load_data
from qkv.errors import CheckpointError, InputError, NotFinite
from qkv.interop.manifest import MANIFEST_FILE, read_manifest, write_manifest
from qkv.runtime import provenance
from qkv.tasks.translation import TranslationTask
from qkv.training import job, loop
from qkv.training.manifest import Manifest
from qkv.training.recipe import read_recipe
from qkv.training.run import Run

from .stopping import assert_bit_equal, stop_after, tensors


def reseal(checkpoint: Path, **changes: object) -> None:
    """Seal a checkpoint anew, with its files as they are now and with these changes of what is said of it."""
    record = read_manifest(checkpoint)
    del record["sha256"]
    (checkpoint / MANIFEST_FILE).unlink()
    write_manifest(checkpoint, record | changes)


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """What training left alone gives, for tests that only look at it."""
    return job.begin(tiny, tmp_path_factory.mktemp("whole") / "run", "cpu")


@pytest.fixture(scope="module")
def _stopped(tiny, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 4)
        job.begin(tiny, folder, "cpu")
    return folder


@pytest.fixture
def stopped(_stopped, tmp_path) -> Path:
    """A run that was stopped after four steps, for the test to do with as it likes."""
    return shutil.copytree(_stopped, tmp_path / "run")


def test_a_run_that_was_interrupted_and_resumed_ends_bit_for_bit_like_one_that_was_not(
    whole, tiny, tmp_path, monkeypatch
):
    assert whole.place.finished
    parts, pieces = tmp_path / "parts", 0
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        place = job.begin(tiny, parts, "cpu").place
    assert not place.finished
    while not place.finished:
        pieces += 1
        with monkeypatch.context() as patch:
            stop_after(patch, 7)
            place = job.resume(parts, "cpu").place
    assert pieces >= 2
    assert_bit_equal(whole.run.folder, parts)
    steps = [
        [json.loads(line)["step"] for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in (whole.run.folder, parts)
    ]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("baseline", ["moving-average", "learned"])
def test_a_run_of_hard_attention_goes_on_with_what_its_baseline_has_seen(baseline, tiny, tmp_path, monkeypatch):
    drawn = {"align": "hard", "estimator": "reinforce", "baseline": baseline}
    hard = replace(tiny, model=tiny.model | drawn, train=replace(tiny.train, epochs=1))
    assert job.begin(hard, tmp_path / "whole", "cpu").place.finished
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        assert not job.begin(hard, tmp_path / "parts", "cpu").place.finished
    assert job.resume(tmp_path / "parts", "cpu").place.finished
    assert_bit_equal(tmp_path / "whole", tmp_path / "parts")
    seen = [value for name, value in tensors(tmp_path / "whole").items() if name.startswith("buffer.")]
    assert len(seen) == (2 if baseline == "moving-average" else 0)
    assert all(value != 0 for value in seen)


def test_a_checkpoint_of_before_baselines_were_kept_is_gone_on_with(tiny, tmp_path, monkeypatch):
    drawn = {"align": "hard", "estimator": "reinforce"}
    hard = replace(tiny, model=tiny.model | drawn, train=replace(tiny.train, epochs=1))
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        run = job.begin(hard, tmp_path / "run", "cpu").run
    path = run.checkpoints[-1] / "training.safetensors"
    save_file({name: value for name, value in load_file(path).items() if not name.startswith("buffer.")}, path)
    reseal(path.parent)
    assert job.resume(tmp_path / "run", "cpu").place.finished


def test_a_checkpoint_says_where_and_by_which_code_it_was_trained(tiny, tmp_path):
    done = job.begin(replace(tiny, train=replace(tiny.train, epochs=1, precision="bfloat16")), tmp_path / "run", "cpu")
    seal = read_manifest(done.run.checkpoints[-1])
    assert seal["device"] == provenance.device_name(torch.device("cpu"))
    assert (seal["precision"], seal["graphs"]) == ("bfloat16", False)
    assert (seal["commit"], seal["source_hash"]) == (provenance.commit(), provenance.source_hash())
    assert seal["torch"] == torch.__version__


@pytest.mark.parametrize("thing", ["device", "precision", "graphs", "torch"])
def test_going_on_under_other_circumstances_is_said(thing, stopped, monkeypatch, capsys):
    checkpoint = Run.open(stopped).checkpoints[-1]
    is_now = read_manifest(checkpoint)[thing]
    reseal(checkpoint, **{thing: "another"})
    stop_after(monkeypatch, 1)
    job.resume(stopped, "cpu")
    notes = [line for line in capsys.readouterr().err.splitlines() if "may differ in the last digits" in line]
    assert notes == [f"note: {thing} was another and is now {is_now}: results may differ in the last digits"]


def test_going_on_under_the_same_circumstances_needs_no_words(stopped, monkeypatch, capsys):
    stop_after(monkeypatch, 1)
    job.resume(stopped, "cpu")
    assert "note" not in capsys.readouterr().err


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path):
    folder = shutil.copytree(whole.run.folder, tmp_path / "run")
    assert job.resume(folder, "cpu").place == whole.place
    assert_bit_equal(whole.run.folder, folder)


def test_what_a_user_keeps_beside_the_checkpoints_is_left_alone(stopped):
    mine = shutil.copytree(Run.open(stopped).checkpoints[-1], stopped / "step-00000004-mine")
    (stopped / "step-notes.txt").write_text("mine too")
    assert job.resume(stopped, "cpu").place.finished
    assert (mine / "model.safetensors").exists()
    assert (stopped / "step-notes.txt").exists()


def test_a_run_killed_between_its_last_validation_and_its_last_save_logs_nothing_twice(
    whole, tiny, tmp_path, monkeypatch
):
    recipe = replace(tiny, train=replace(tiny.train, save_every=whole.place.step))

    real = loop.validate

    def validate_then_die_at_the_end(*arguments):
        place = real(*arguments)
        if place.step == whole.place.step:
            raise KeyboardInterrupt
        return place

    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", validate_then_die_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            job.begin(recipe, tmp_path / "parts", "cpu")
    assert job.resume(tmp_path / "parts", "cpu").place.finished
    logged = [
        [(record["step"], record["kind"]) for record in map(json.loads, (folder / "log.jsonl").open())]
        for folder in (whole.run.folder, tmp_path / "parts")
    ]
    assert len(set(logged[1])) == len(logged[1])
    assert set(logged[1]) == set(logged[0])


def test_two_processes_cannot_train_in_one_folder(stopped):
    with Run.open(stopped).held(), pytest.raises(InputError, match="another process"):
        job.resume(stopped, "cpu")


def test_weights_that_are_not_finite_are_never_saved(tiny, tmp_path):
    wild = replace(tiny, train=replace(tiny.train, lr=1e30, warmup=0, save_every=1))
    with pytest.raises(NotFinite, match=r"step 2: a weight is not finite; the last good checkpoint is .*step-00000001"):
        job.begin(wild, tmp_path / "run", "cpu")
    assert all(value.double().isfinite().all() for value in tensors(tmp_path / "run").values())


def test_data_that_changed_since_training_are_not_taken_for_the_runs_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = [f"{number:03}\t{number % 7}" for number in range(60)]
    Path("pairs.tsv").write_text("\n".join(pairs))
    Path("mine.toml").write_text('data = { name = "pairs", train = ["pairs.tsv"] }\ntrain = { epochs = 1 }')
    small = ["model.name=rnn_seq2seq", "model.hidden=8", "model.embedding=8"]
    run = job.begin(read_recipe("mine.toml", small), tmp_path / "run", "cpu").run
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # a relative path in the recipe must not mean another file now
    assert len(run.data().splits["train"]) == 57
    (tmp_path / "pairs.tsv").write_text("\n".join([*pairs, "new\tpair"]))
    with pytest.raises(InputError, match="its data have changed since it was trained"):
        Run.open(tmp_path / "run").data()


def test_the_last_checkpoints_and_the_best_are_kept(whole, tiny):
    names = [path.name for path in whole.run.checkpoints]
    assert names[-1] == f"step-{whole.place.step:08d}"
    assert f"step-{whole.place.best.step:08d}" in names
    assert len([name for name in names if name != f"step-{whole.place.best.step:08d}"]) <= tiny.train.keep


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(whole, tiny, tmp_path):
    for name, recipe in (("same", tiny), ("other", replace(tiny, seed=1))):
        job.begin(recipe, tmp_path / name, "cpu")
    assert_bit_equal(whole.run.folder, tmp_path / "same")
    one, other = tensors(whole.run.folder), tensors(tmp_path / "other")
    assert not any(one[name].equal(other[name]) for name in one if name.endswith(".weight_hh_l0"))


def test_resuming_on_other_data_is_refused(stopped):
    run = Run.open(stopped)
    Manifest.of(replace(run.recipe, data=replace(run.recipe.data, size=119))).write(stopped)
    with pytest.raises(InputError, match="the data have changed"):
        job.resume(stopped, "cpu")


@pytest.mark.parametrize("file", ["model.safetensors", "training.safetensors", "checkpoint.json", "config.json"])
@pytest.mark.parametrize("damage", ["cut short", "altered", "missing"])
def test_a_damaged_checkpoint_is_refused_and_named(file, damage, stopped):
    path = Run.open(stopped).checkpoints[-1] / file
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] if damage == "cut short" else data[:middle] + b"\0\1" + data[middle + 2 :])
    with pytest.raises(CheckpointError, match="step-00000004"):
        job.resume(stopped, "cpu")


def test_a_folder_that_holds_another_run_or_anything_else_is_left_alone(tiny, stopped, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="holds another run"):
        job.begin(tiny, stopped, "cpu")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        job.begin(tiny, tmp_path / "mine", "cpu")
    assert [path for path in sorted(tmp_path.rglob("*")) if "mine" not in path.parts] == before


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path):
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
        return loss + torch.sqrt((next(model.parameters()) * 0).sum())  # finite, with an infinite slope

    monkeypatch.setattr(TranslationTask, "loss", poisoned)
    with pytest.raises(
        NotFinite, match=rf"step 6: the {what} is not finite.*last good checkpoint is .*step-0000000[345]"
    ):
        job.begin(tiny, tmp_path / "run", "cpu")
    for value in tensors(tmp_path / "run").values():
        assert value.double().isfinite().all()


def test_a_checkpoint_is_a_saved_model(whole):
    import qkv

    model = qkv.load(whole.run.checkpoints[-1])
    weights = load_file(whole.run.checkpoints[-1] / "model.safetensors")
    for name, parameter in model.named_parameters():
        assert parameter.equal(weights[name])
    assert model.tokenizer.decode(model.tokenizer.encode("5 March 2026").ids) == "5 March 2026"
    assert not model.training


def test_weights_from_another_model_are_refused(whole, tmp_path):
    import qkv

    weights = load_file(whole.run.checkpoints[-1] / "model.safetensors")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (copy / name).write_bytes((whole.run.checkpoints[-1] / name).read_bytes())
    save_file({name: value[..., :-1].contiguous() for name, value in weights.items()}, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match="has shape"):
        qkv.load(copy)


def test_the_log_holds_every_number_as_json_and_for_tensorboard(whole):
    records = [json.loads(line) for line in (whole.run.folder / "log.jsonl").read_text().splitlines()]
    valid = [record for record in records if record["kind"] == "valid"]
    assert [record["step"] for record in valid][-1] == whole.place.step
    assert all(set(record) >= {"loss", "exact", "bleu", "chrf"} for record in valid)
    train = [record for record in records if record["kind"] == "train"]
    assert all(record["tokens_per_s"] > 0 and record["loss"] > 0 for record in train)
    assert list((whole.run.folder / "tensorboard").glob("events.out.tfevents.*"))


def test_the_data_are_told_apart_by_their_fingerprint(tiny):
    one, other = load_data(tiny.data), load_data(read_recipe("dates-gru", ["data.size=121"]).data)
    assert one.fingerprint == load_data(tiny.data).fingerprint != other.fingerprint
