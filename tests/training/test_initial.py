"""Training that begins with another model's weights: what is taken over, what is new, and what cannot be."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.data.registry import DATA_SETS, Loaded
from qkv.data.tagged import Tagged
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.interop import load, save_model
from qkv.models.bert import Bert, Config
from qkv.models.captioner import Config as CaptionerConfig
from qkv.models.captioner import ShowAttendTell
from qkv.models.elmo import Config as ElmoConfig
from qkv.models.elmo import Elmo
from qkv.models.linformer import Config as LinformerConfig
from qkv.models.linformer import Linformer
from qkv.models.ntm import NTM
from qkv.models.ntm import Config as NTMConfig
from qkv.models.snail import SNAIL, PolicyConfig, SNAILPolicy
from qkv.models.snail import Config as SNAILConfig
from qkv.models.vit import Config as ViTConfig
from qkv.models.vit import ViT
from qkv.training import job
from qkv.training.initial import continued_config, set_aside, start_of, take_over
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


def test_sizes_with_a_name_can_be_asked_for_and_changed(released: Path):
    config = recipe(None, "model.preset=tiny", "model.dim=64").model_config()
    assert (config.layers, config.heads, config.dim) == (2, 2, 64)
    with pytest.raises(InputError, match=r"model\.preset 'tine' is not known \(did you mean tiny\?\)"):
        recipe(None, "model.preset=tine")


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize(("longest", "said"), [(7, []), (12, []), (20, ["embed.positions.weight from place 12 on"])])
def test_learned_positions_are_kept_as_far_as_both_models_read(released: Path, longest: int, said: list[str]):
    start = load(released)
    model = Bert(replace(start.config, max_length=longest))
    drawn = weights(model)["embed.positions.weight"]
    assert take_over(model, start) == said
    after, before, both = weights(model), weights(start), min(longest, 12)
    assert torch.equal(after["embed.positions.weight"][:both], before["embed.positions.weight"][:both])
    assert torch.equal(after["embed.positions.weight"][both:], drawn[both:])
    assert all(torch.equal(after[name], before[name]) for name in after if name != "embed.positions.weight")


def test_a_vit_that_is_begun_at_another_size_of_pictures_sees_them_as_the_other_did():
    sizes = {"patch": 4, "dim": 8, "layers": 1, "heads": 2, "feedforward": 8, "channels": 1}
    start, model = (
        ViT(ViTConfig(height=12, width=8, **sizes)).eval(),
        ViT(ViTConfig(height=8, width=20, **sizes)).eval(),
    )
    assert take_over(model, start) == []
    images = torch.randn(2, 1, 8, 20)
    torch.testing.assert_close(model.encode(images), start.encode(images))


def test_a_table_that_is_no_table_of_positions_is_taken_over_whole_or_not_at_all(released: Path):
    start = load(released)
    model = Bert(replace(start.config, segments=5))
    drawn = weights(model)["embed.segments.weight"]
    assert take_over(model, start) == ["embed.segments.weight"]
    assert torch.equal(weights(model)["embed.segments.weight"], drawn)


def test_what_a_recipe_says_of_its_vocabulary_is_noted_where_init_brings_one(released: Path):
    assert set_aside(recipe(released), load(released)) == ()
    assert set_aside(recipe(None, "data.vocabulary=word", "data.lowercase=true"), None) == ()
    assert set_aside(recipe(released, "data.vocabulary=word", "data.lowercase=true"), load(released)) == (
        "data.vocabulary and data.lowercase set aside: init brings a tokenizer of its own",
    )


@pytest.mark.parametrize(("head", "names", "new"), [("pretraining", (), True), ("classifier", ("a", "b"), True),
                                                    ("classifier", ("a", "c"), False)])  # fmt: skip
def test_a_head_is_taken_over_only_where_it_says_the_same(head: str, names: tuple[str, ...], new: bool):
    start = Bert(Config(9, head, label_names=names, **SIZES))
    model = Bert(Config(9, "classifier", label_names=("a", "c"), **SIZES))
    assert take_over(model, start) == (["label.weight", "label.bias"] if new else [])
    assert torch.equal(model.label.weight, start.label.weight) == (not new)


def test_the_sizes_are_those_of_the_weights_whatever_the_recipe_says(released: Path, tmp_path: Path, capsys):
    said = ["model.dim=16", "model.heads=4", "model.dropout=0", "model.preset=mini"]
    job.begin(recipe(released, *said), tmp_path / "run", "cpu")
    config = load(tmp_path / "run").config
    assert (config.dim, config.heads, config.dropout) == (8, 2, 0)  # a rate is no size, though it be a whole number
    told = "model.dim and model.heads and model.preset = 'mini' set aside: the weights come with their own"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("inborn", [False, True])
def test_what_is_inborn_is_as_the_weights_learned_it(inborn: bool):
    sizes = {"filters": ((1, 4),), "highway_layers": 1, "dim": 4, "hidden": 8, "layers": 1}
    start = Elmo(ElmoConfig(vocabulary_size=9, head="language_model", normalise_words=inborn, **sizes))
    wanted = read_recipe("polarity-elmo", ["init=somewhere", "model.normalise_words=true", "model.max_length=7"])
    config = continued_config(wanted, start, {"head": "classifier"})
    assert (config.normalise_words, config.max_length) == (inborn, 7)
    assert ("normalise_words" in set_aside(wanted, start)[0]) is not inborn


@pytest.mark.parametrize(
    ("longer", "said"), [(False, []), (True, ["key_projection.weight", "value_projection.weight"])]
)
def test_a_linformer_keeps_its_mixtures_of_the_places_that_both_read(longer: bool, said: list[str]):
    sizes = {"dim": 8, "heads": 2, "layers": 1, "rank": 3, "sharing": "headwise", "position": "sinusoidal"}
    lengths = (8, 12) if longer else (12, 8)
    start, model = (Linformer(LinformerConfig(9, max_length=length, **sizes)) for length in lengths)
    for weight in start.parameters():
        torch.nn.init.normal_(weight)
    fresh = take_over(model.eval(), start.eval())
    assert [name.removeprefix("encoder.0.attention.") for name in fresh] == [f"{name} from place 8 on" for name in said]
    tokens = torch.randint(1, 9, (2, 8))
    torch.testing.assert_close(model(tokens), start(tokens))


def test_positions_of_another_grid_are_not_taken_for_their_own_because_they_are_as_many():
    sizes = {"channels": 1, "filters": (4,), "features": 4, "embedding": 4, "hidden": 4}
    start, model = (ShowAttendTell(CaptionerConfig(9, height=h, width=w, **sizes)) for h, w in ((4, 16), (8, 8)))
    assert start.encoder.positions.shape == model.encoder.positions.shape
    assert take_over(model, start) == ["encoder.positions"]


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("omniglot-snail-5way", lambda: SNAIL(SNAILConfig(5, 1, 1, 28, 28))),
        ("bandit-snail", lambda: SNAILPolicy(PolicyConfig(5, 10))),
        ("copy-ntm", lambda: NTM(NTMConfig(inputs=10, outputs=8))),
    ],
)
def test_what_reads_no_text_needs_no_tokenizer_to_begin_with(tmp_path: Path, name: str, made):
    save_model(made(), None, tmp_path)
    assert isinstance(start_of(read_recipe(name, [f'init="{tmp_path}"'])), type(made()))


@pytest.mark.parametrize("name", ["polarity-elmo", "shapes-attend"])
def test_what_nothing_has_trained_is_not_frozen(name: str):
    with pytest.raises(InputError, match=r"model\.frozen.*set init to a folder"):
        read_recipe(name, ["model.frozen=true"])
