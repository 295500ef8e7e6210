"""Training that begins with another model's weights: what is taken over, what is new, and what cannot be."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.data.registry import DATA_SETS, Loaded
from qkv.data.tagged import Tagged
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.interop import load, save_model
from qkv.models.bert import Bert, Config
from qkv.models.gpt2 import GPT2
from qkv.models.gpt2 import Config as GPT2Config
from qkv.training import job
from qkv.training.initial import start_of
from qkv.training.recipe import read_recipe

SENTENCES = [Tagged(("a", "b", "c"), ("X", "Y", "X")), Tagged(("c", "a"), ("X", "X")), Tagged(("b",), ("Y",))] * 5
VOCABULARY = Vocabulary.train(["a b c"], "char")
SIZES = {"dim": 8, "heads": 2, "layers": 1, "max_length": 12, "dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A BERT with another head, and a vocabulary that has room for more."""
    loaded = Loaded({}, tagged={"train": SENTENCES, "valid": SENTENCES[:2], "test": SENTENCES[:3]})
    entry = replace(DATA_SETS["ud_english_ewt"], load=lambda _: loaded)
    monkeypatch.setitem(DATA_SETS, "ud_english_ewt", entry)
    torch.manual_seed(5)
    folder = tmp_path / "released"
    folder.mkdir()
    save_model(Bert(Config(len(VOCABULARY) + 3, head="masked_lm", **SIZES)), VOCABULARY, folder)
    return folder


def recipe(folder: Path | None, *changes: str):
    begins = [] if folder is None else [f'init="{folder}"']
    return read_recipe("ewt-bert", [*begins, "train.epochs=2", "train.batch_tokens=64", "train.save_every=1", *changes])


def test_the_body_is_taken_over_and_the_head_is_new(released: Path, tmp_path: Path, capsys):
    slow = ["train.lr=1e-12", "train.weight_decay=0.0"]
    job.begin(recipe(released, *slow), tmp_path / "run", "cpu")
    before, after = load(released), load(tmp_path / "run")
    assert after.config.head == "tagger"
    assert after.config.label_names == ("X", "Y")
    assert after.config.vocabulary_size == len(VOCABULARY) + 3
    assert {name: after.config.__getattribute__(name) for name in SIZES} == SIZES
    old = dict(before.named_parameters())
    for name, weight in after.named_parameters():
        if name in ("label.weight", "label.bias"):
            assert name not in old
        else:
            torch.testing.assert_close(weight, old[name], rtol=0, atol=1e-9)
    assert "new are label.weight, label.bias" in capsys.readouterr().err


def test_it_learns_and_goes_on_after_the_released_folder_is_gone(released: Path, tmp_path: Path):
    wanted = recipe(released, "train.epochs=40", "train.lr=1e-2", "train.warmup=0", "train.keep=100")
    whole = job.begin(wanted, tmp_path / "whole", "cpu")
    assert whole.place.best is not None
    assert whole.place.best.value == 1.0
    for file in released.iterdir():
        file.unlink()
    again = job.resume(tmp_path / "whole", "cpu")
    assert again.place.finished


def test_a_folder_that_does_not_fit_is_refused_before_a_run_begins(released: Path, tmp_path: Path):
    with pytest.raises(InputError, match="no such folder"):
        job.begin(recipe(tmp_path / "nowhere"), tmp_path / "run", "cpu")
    (released / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="has no tokenizer"):
        job.begin(recipe(released), tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


def test_the_models_name_must_be_that_of_the_folder(tmp_path: Path, released: Path):
    from qkv.models.vit import Config as ViTConfig
    from qkv.models.vit import ViT

    folder = tmp_path / "vit"
    folder.mkdir()
    vit = ViT(ViTConfig(height=8, width=8, patch=4, dim=8, layers=1, heads=2, feedforward=8))
    save_model(vit, None, folder)
    with pytest.raises(InputError, match=r"holds a ViT, but model\.name is 'bert'"):
        job.begin(recipe(folder), tmp_path / "run", "cpu")


def test_without_a_folder_the_words_are_learned_and_with_one_its_sizes_stay(released: Path, tmp_path: Path):
    sizes = ["model.preset=tiny", "model.dim=8", "model.max_length=12"]
    job.begin(recipe(None, *sizes), tmp_path / "anew", "cpu")
    anew = load(tmp_path / "anew")
    assert len(anew.tokenizer) == 4 + 3
    assert anew.config.layers == 2
    job.begin(recipe(released, "model.preset=tiny"), tmp_path / "begun", "cpu")
    assert load(tmp_path / "begun").config.layers == 1


def test_a_released_tokenizer_is_for_tasks_that_know_it(released: Path, tmp_path: Path):
    tokenizer = PretrainedTokenizer(VOCABULARY.tokenizer)
    folder = tmp_path / "gpt2"
    folder.mkdir()
    save_model(GPT2(GPT2Config(len(VOCABULARY), dim=8, heads=2, layers=1, max_length=8)), tokenizer, folder)
    wanted = read_recipe("shakespeare-gpt", [f'init="{folder}"'])
    with pytest.raises(InputError, match="has a released tokenizer, from which language modelling cannot go on yet"):
        start_of(wanted)


def test_sizes_with_a_name_can_be_asked_for_and_changed(released: Path):
    config = recipe(None, "model.preset=tiny", "model.dim=64").model_config()
    assert (config.layers, config.heads, config.dim) == (2, 2, 64)
    with pytest.raises(InputError, match=r"model\.preset 'tine' is not known \(did you mean tiny\?\)"):
        recipe(None, "model.preset=tine")
