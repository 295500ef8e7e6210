"""`qkv.train`: keywords become the overrides of `qkv train`, and the run can be passed on."""

from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.errors import InputError
from qkv.training import job
from qkv.training.recipe import read_recipe
from qkv.training.run import Run
from qkv.training.start import assignments_of, recipe_assignments

from .conftest import TINY
from .stopping import stop_after

SMALL = {
    "hidden_dim": 16, "embedding_dim": 8, "epochs": 1, "batch_size": 256, "valid_size": 5, "max_length": 48,
    "device": "cpu", "quiet": True, "samples": 0, "log": (),
}  # fmt: skip


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{number} may\t{number:02}-05\n" for number in range(1, 32)))
    return path


def test_a_recipe_trains_on_own_files_and_the_run_is_passed_on(pairs: Path, tmp_path: Path):
    run = qkv.train("pairs-gru", data=pairs, output=tmp_path / "run", **SMALL)
    assert isinstance(run, Run)
    assert run.finished
    assert run.recipe.data.train == (str(pairs),)
    assert (run.recipe.model.hidden_dim, run.recipe.train.epochs) == (16, 1)
    assert repr(run).startswith(f"Run('{run.folder}'") or "…" in repr(run)
    assert "rnn_seq2seq on pairs" in repr(run)
    assert {entry["kind"] for entry in run.log} == {"train", "valid"}
    html = run._repr_html_()
    assert "<script" not in html
    assert "http" not in html
    translator = qkv.Translator(run, device="cpu")
    assert translator.name == str(run.folder)
    assert qkv.load(run).config == translator.model.config


def test_a_recipe_trains_on_rows_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [{"source": f"{number} may", "target": f"{number:02}-05"} for number in range(1, 32)]
    run = qkv.train("pairs-gru", data=rows, valid=rows[:3], output=tmp_path / "run", **SMALL)
    assert run.finished
    assert Path(run.recipe.data.train[0]).name == "rows.jsonl"
    assert Path(run.recipe.data.valid[0]).read_text().count("\n") == 3
    with pytest.raises(InputError, match="tuple"):
        qkv.train("pairs-gru", data=[("a", "b")], **SMALL)


def test_the_same_run_as_on_the_command_line_and_bit_for_bit(tmp_path: Path, whole: job.Job):
    keys = dict(assignment.split("=") for assignment in TINY)
    overrides = {key: float(value) if "." in value else int(value) for key, value in keys.items()}
    run = qkv.train("dates-gru", output=tmp_path / "run", device="cpu", quiet=True, **overrides)
    assert run.recipe.replace(overrides=()) == whole.run.recipe.replace(overrides=())
    weights = [
        (checkpoint / "model.safetensors").read_bytes()
        for checkpoint in (run.checkpoints[-1], whole.run.checkpoints[-1])
    ]
    assert weights[0] == weights[1]


def test_overrides_are_tables_keys_dotted_keys_and_terms():
    recipe = read_recipe("pairs-gru")
    overrides = {
        "lr": 1e-3, "seed": 3, "model.cell": "lstm", "train": {"clip": np.float64(2.0)}, "lowercase": True,
        "score": {"rank": 4, "name": "low_rank"}, "init": Path("folder"),
    }  # fmt: skip
    assert recipe_assignments(recipe, overrides) == [
        "train.lr=0.001", "seed=3", 'model.cell="lstm"', "train.clip=2.0", "data.lowercase=true",
        'model.score.name="low_rank"', "model.score.rank=4", 'init="folder"',
    ]  # fmt: skip
    changed = read_recipe("pairs-gru", recipe_assignments(recipe, {"score": {"rank": 4, "name": "low_rank"}}))
    assert (changed.model.score.name, changed.model.score.options["rank"]) == ("low_rank", 4)


@pytest.mark.parametrize(
    ("keyword", "nearest"),
    [("epoch", "epochs"), ("hiden_dim", "hidden_dim"), ("modle", "model"), ("outptu", "output"), ("devise", "device")],
)
def test_a_misspelled_keyword_names_the_right_one(keyword: str, nearest: str, tmp_path: Path):
    with pytest.raises(InputError, match=rf"'{keyword}' \(did you mean {nearest}\?\)"):
        qkv.train("dates-gru", **{keyword: 1})
    with pytest.raises(InputError, match=r"did you mean dates-gru\?"):
        qkv.train("dates-gur")


def test_values_that_toml_does_not_have_are_refused():
    for value in (None, b"x", object()):
        with pytest.raises(InputError, match=r"model\.cell"):
            assignments_of({"model": {"cell": value}})
    assert assignments_of({"a": 'ä "b" \\ \n', "b": [1, "c"]}) == ['a="ä \\"b\\" \\\\ \\n"', 'b=[1, "c"]']


def test_an_interrupted_run_is_continued_and_a_finished_one_trained_longer(tmp_path: Path, monkeypatch):
    keys = dict(assignment.split("=") for assignment in TINY)
    overrides = {key: float(value) if "." in value else int(value) for key, value in keys.items()}
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(KeyboardInterrupt, match="resume"):
            qkv.train("dates-gru", output=tmp_path / "run", device="cpu", quiet=True, **overrides)
    run = qkv.train(resume=tmp_path / "run", device="cpu", quiet=True)
    assert run.finished
    assert qkv.train(resume=run, epochs=4, device="cpu", quiet=True).recipe.train.epochs == 4
    with pytest.raises(InputError, match="resume"):
        qkv.train("dates-gru", resume=run)
    with pytest.raises(InputError, match="missing recipe"):
        qkv.train()


def test_data_may_be_the_name_of_a_dataset_or_a_table(tmp_path: Path):
    with pytest.raises(InputError, match=r"data\.siez"):
        qkv.train("dates-gru", data={"siez": 5})
    with pytest.raises(InputError, match="does not fit"):
        qkv.train("dates-gru", data="wnut17")
