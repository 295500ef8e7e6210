"""Pretrained models: packaging of a run, use by name in the commands and pipelines, and downloads."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import qkv as library
from qkv.errors import CheckpointError, InputError
from qkv.experiments.packaging import evaluate_split, package_run
from qkv.experiments.results import read_records
from qkv.generation import GenerationConfig
from qkv.hub import pretrained
from qkv.hub.pretrained import CatalogEntry, download_model, pretrained_folder
from qkv.runtime.download import DownloadError, download
from qkv.runtime.files import sha256
from qkv.tasks.base.task import Evaluation, Task

from .command import Ended

Command = Callable[..., Ended]
LIMIT = 20  # pairs evaluated
DATE = "Mon 13 Feb 2017"


@pytest.fixture(scope="module")
def package(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as a packaged model."""

    def evaluate_some(task: Task, model: Any, data: Any, split: str, search: GenerationConfig) -> Evaluation:
        return evaluate_split(task, model, replace(data, splits={split: data.splits[split][:LIMIT]}), split, search)

    folder = tmp_path_factory.mktemp("packages") / "tiny-dates"
    package_run(run, folder, "int8", beams=(1, 2), notes=["Knows nothing."], evaluator=evaluate_some, example=DATE)
    return folder


@pytest.fixture
def shipped(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as one of the models of qkv; the working directory and the cache are empty."""
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "catalog.json").write_text("{}")
    shutil.copytree(package, tmp_path / "pretrained" / package.name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrained, "packaged_folder", lambda: tmp_path / "pretrained")
    pretrained.read_catalog.cache_clear()
    yield tmp_path / "pretrained" / package.name
    pretrained.read_catalog.cache_clear()


def test_a_package_has_the_weights_of_the_run_and_no_training_state(run: Path, package: Path) -> None:
    original = library.load(run)
    stored = load_file(package / "model.safetensors")
    for name, weight in original.named_parameters():
        values = stored[name].float()
        if f"{name}_scale" in stored:
            scale = stored[f"{name}_scale"].view(-1, *[1] * (weight.ndim - 1))
            assert bool(((values * scale - weight).abs() <= 0.5001 * scale).all())
        else:
            assert torch.equal(values, weight)
    assert "training.safetensors" not in {path.name for path in package.iterdir()}
    assert str(run) not in "".join(path.read_text() for path in package.iterdir() if path.suffix != ".safetensors")


def test_the_card_has_data_license_recipe_hash_and_the_recorded_metrics(run: Path, package: Path) -> None:
    card = (package / "README.md").read_text()
    records = read_records(package)
    assert [record.beam for record in records] == [1, 2]
    assert sha256(package / "model.safetensors") in card
    assert "Apache-2.0" in card
    assert "Knows nothing." in card
    assert re.search(r"`qkv train dates-gru --set data.size=300 .*--set seed=0`", card)
    rows = [line.split(" | ") for line in card.splitlines() if line.startswith("| test")]
    titles = next(line for line in card.splitlines() if line.startswith("| split")).split(" | ")
    column = next(number for number, title in enumerate(titles) if title.startswith("character error"))
    for row, record in zip(rows, records, strict=True):
        measured = record.score("cer")
        assert measured is not None
        assert float(row[column]) == pytest.approx(100 * measured.value, abs=0.006)


def test_recorded_metrics_are_those_of_the_packaged_weights(qkv: Command, shipped: Path) -> None:
    """An independent evaluation of the files gives the recorded values."""
    before = {path.name: path.read_bytes() for path in shipped.iterdir()}
    recorded = read_records(shipped)[0].score("cer")
    for model in (shipped.name, shipped):
        measured = json.loads(qkv("evaluate", model, "--limit", LIMIT, "--device", "cpu", "--json").out)
        assert measured["cer"] == pytest.approx(recorded.value)
    assert {path.name: path.read_bytes() for path in shipped.iterdir()} == before


def test_a_model_is_found_by_name_in_commands_and_pipelines(qkv: Command, shipped: Path) -> None:
    answer = library.Translator(shipped.name, device="cpu")(DATE)
    assert answer.text == library.Translator(shipped, device="cpu")(DATE).text
    done = qkv("translate", shipped.name, DATE, "--device", "cpu")
    assert (done.code, done.out) == (0, f"{answer.text}\n")
    assert qkv("view", shipped.name, DATE, "--device", "cpu").code == 0
    assert [path.name for path in Path().iterdir()] == ["tiny-dates-attention.html"]
    assert type(library.load(shipped.name)).__name__ == "RNNSeq2Seq"
    started = qkv("train", "dates-gru", "--set", f"init={shipped.name}", "--set", "data.size=20", "--set",
                  "train.epochs=1", "--set", "train.valid_size=5", "--output", "tuned", "--device", "cpu")  # fmt: skip
    assert started.code == 0, started.err
    assert 'init = "tiny-dates"' in Path("tuned/recipe.toml").read_text()


def test_a_folder_of_the_same_name_comes_first(qkv: Command, shipped: Path) -> None:
    Path(shipped.name).mkdir()
    assert "not a saved model" in qkv("translate", shipped.name, DATE).error


def test_an_unknown_name_is_an_error_with_a_suggestion(qkv: Command, shipped: Path) -> None:
    for command in (("translate", "tiny-date", DATE), ("evaluate", "tiny-date"), ("view", "tiny-date", DATE)):
        assert "did you mean tiny-dates?" in qkv(*command).error
    with pytest.raises(InputError, match="tiny-dates"):
        library.load("tiny_dates")
    for name in ("../pretrained/tiny-dates/..", ".", "/etc", "a" * 100):
        with pytest.raises(InputError):
            library.load(name)


def test_models_lists_and_shows_it(qkv: Command, shipped: Path) -> None:
    (entry,) = [
        entry for entry in map(json.loads, qkv("models", "--json").out.splitlines()) if entry["kind"] == "pretrained"
    ]
    assert entry["name"] == shipped.name
    assert entry["bytes"] == sum(path.stat().st_size for path in shipped.iterdir())
    assert (entry["task"], entry["command"], entry["where"]) == ("translation", "translate", "package")
    header, row = qkv("models").out.splitlines()[:2]
    assert header.startswith("pretrained model")
    assert row.startswith(shipped.name)
    assert entry["score"] in row
    assert qkv("models", "show", shipped.name).out == (shipped / "README.md").read_text()


def test_changed_files_are_an_error(shipped: Path) -> None:
    data = bytearray((shipped / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (shipped / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="SHA-256"):
        library.load(shipped.name)


def test_a_package_cannot_be_resumed(qkv: Command, shipped: Path) -> None:
    assert "init=" in qkv("train", "--resume", shipped).error


@pytest.mark.parametrize("name", ["Name", "a b", ".hidden"])
def test_bad_names_are_not_packaged(qkv: Command, run: Path, tmp_path: Path, name: str) -> None:
    assert "name of a model" in qkv("models", "package", run, tmp_path / name).error
    assert not list(tmp_path.iterdir())


def test_large_models_are_not_packaged(qkv: Command, run: Path, tmp_path: Path) -> None:
    assert "--max-size" in qkv("models", "package", run, tmp_path / "ok", "--max-size", "0.001").error
    assert not list(tmp_path.iterdir())


@pytest.fixture
def location(shipped: Path, tmp_path: Path) -> str:
    """The package at a location for downloads instead of in qkv, with its entry in the catalog."""
    (tmp_path / "server").mkdir()
    folder = shutil.move(shipped, tmp_path / "server" / shipped.name)
    manifest = Path(folder) / "checkpoint.json"
    entry = CatalogEntry(
        sha256=sha256(manifest), manifest_bytes=manifest.stat().st_size, task="translation", size=1, score="exact 1%",
        purpose="Dates",
    )  # fmt: skip
    (tmp_path / "pretrained" / "catalog.json").write_text(json.dumps({"tiny-dates": entry.to_dict()}))
    return (tmp_path / "server").as_uri()


def test_a_model_is_downloaded_by_hash(qkv: Command, location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "qkv models download tiny-dates" in qkv("translate", "tiny-dates", DATE).error
    assert "QKV_MODELS" in qkv("models", "download", "tiny-dates").error
    (entry,) = [entry for entry in map(json.loads, qkv("models", "--json").out.splitlines()) if "where" in entry]
    assert entry["where"] == "to download"
    monkeypatch.setenv("QKV_MODELS", location)
    done = qkv("models", "download", "tiny-dates")
    assert done.code == 0, done.err
    assert Path(done.out.strip()) == pretrained_folder("tiny-dates")
    assert qkv("translate", "tiny-dates", DATE, "--device", "cpu").code == 0
    assert qkv("models", "download", "tiny-dates").out == done.out  # nothing is downloaded again


@pytest.mark.parametrize("file", ["checkpoint.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["changed", "shorter", "missing"])
def test_a_damaged_download_is_an_error_and_leaves_nothing(
    location: str, file: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "server" / "tiny-dates" / file
    data = bytearray(path.read_bytes())
    if damage == "changed":
        data[-2] ^= 1
    if damage == "shorter":
        del data[-1]
    path.unlink() if damage == "missing" else path.write_bytes(data)
    monkeypatch.setattr(pretrained, "download", partial(download, pauses=()))
    with pytest.raises(DownloadError):
        download_model("tiny-dates", location)
    assert pretrained_folder("tiny-dates") is None
    assert not (tmp_path / "cache" / "qkv" / "models" / "tiny-dates").exists()


def test_a_location_must_be_a_url(location: str) -> None:
    with pytest.raises(DownloadError, match="scheme"):
        download_model("tiny-dates", "ftp://localhost/models")
