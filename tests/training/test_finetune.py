"""Fine-tuning: which weights are copied, which are new, and what is rejected."""

from pathlib import Path

import pytest
import torch

from qkv.datasets.dataset import TaggedDataset
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.hub import load, save_model
from qkv.models.bert import Bert, BertConfig
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.models.linformer import Linformer, LinformerConfig
from qkv.models.memory.ntm import NTM, NTMConfig
from qkv.models.show_attend_tell import ShowAttendTell
from qkv.models.show_attend_tell import ShowAttendTellConfig as CaptionerConfig
from qkv.models.snail import SNAIL, SNAILConfig, SNAILPolicy, SNAILPolicyConfig
from qkv.models.vit import ViT, ViTConfig
from qkv.registry import lookup
from qkv.tokenizers import CharTokenizer
from qkv.training import job
from qkv.training.finetune import copy_matching_weights, ignored_keys, load_pretrained, pretrained_config
from qkv.training.recipe import read_recipe

SENTENCES = [Tagged(("a", "b", "c"), ("X", "Y", "X")), Tagged(("c", "a"), ("X", "X")), Tagged(("b",), ("Y",))] * 5
TOKENIZER = CharTokenizer.train(["a b c"])
SIZES = {"dim": 8, "heads": 2, "layers": 1, "max_length": 12, "dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture
def pretrained_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A BERT with another head, and a vocabulary larger than its tokenizer's."""
    loaded = TaggedDataset({"train": SENTENCES, "valid": SENTENCES[:2], "test": SENTENCES[:3]})
    monkeypatch.setattr(lookup("dataset", "ud_english_ewt"), "read", lambda self: loaded)
    torch.manual_seed(5)
    folder = tmp_path / "pretrained"
    folder.mkdir()
    save_model(Bert(BertConfig(vocab_size=len(TOKENIZER) + 3, head="masked_lm", **SIZES)), TOKENIZER, folder)
    return folder


def recipe(folder: Path | None, *changes: str):
    init = [] if folder is None else [f'init="{folder}"']
    return read_recipe("ewt-bert", [*init, "train.epochs=2", "train.batch_size=64", "train.save_every=1", *changes])


def test_the_body_is_copied_and_the_head_is_new(pretrained_folder: Path, tmp_path: Path, capsys):
    slow = ["train.lr=1e-12", "train.weight_decay=0.0"]
    job.begin(recipe(pretrained_folder, *slow), tmp_path / "run", "cpu")
    before, after = load(pretrained_folder), load(tmp_path / "run")
    assert after.config.head == "tagger"
    assert after.config.label_names == ("X", "Y")
    assert after.config.vocab_size == len(TOKENIZER) + 3
    assert {name: after.config.__getattribute__(name) for name in SIZES} == SIZES
    old = dict(before.named_parameters())
    for name, weight in after.named_parameters():
        if name in ("label.weight", "label.bias"):
            assert name not in old
        else:
            torch.testing.assert_close(weight, old[name], rtol=0, atol=1e-9)
    assert "randomly initialized: label.weight, label.bias" in capsys.readouterr().err


def test_a_finetuned_run_resumes_without_the_pretrained_folder(pretrained_folder: Path, tmp_path: Path):
    long_recipe = recipe(pretrained_folder, "train.epochs=40", "train.lr=1e-2", "train.warmup=0", "train.keep=100")
    whole = job.begin(long_recipe, tmp_path / "whole", "cpu")
    assert whole.state.best is not None
    assert whole.state.best.value == 1.0
    for file in pretrained_folder.iterdir():
        file.unlink()
    again = job.resume(tmp_path / "whole", "cpu")
    assert again.state.finished


def test_an_invalid_init_is_rejected_before_the_run_is_created(pretrained_folder: Path, tmp_path: Path):
    with pytest.raises(InputError, match="no such folder"):
        job.begin(recipe(tmp_path / "nowhere"), tmp_path / "run", "cpu")
    (pretrained_folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="tokenizer"):
        job.begin(recipe(pretrained_folder), tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


def test_model_name_must_match_init(tmp_path: Path, pretrained_folder: Path):
    folder = tmp_path / "vit"
    folder.mkdir()
    vit = ViT(ViTConfig(height=8, width=8, patch=4, dim=8, layers=1, heads=2, ffn_dim=8))
    save_model(vit, None, folder)
    with pytest.raises(InputError, match=r"holds a ViT, but model\.name is 'bert'"):
        job.begin(recipe(folder), tmp_path / "run", "cpu")


def test_init_keeps_its_sizes_and_its_vocabulary(pretrained_folder: Path, tmp_path: Path):
    sizes = ["model.preset=tiny", "model.dim=8", "model.max_length=12"]
    job.begin(recipe(None, *sizes).replace(requires_init=False), tmp_path / "scratch", "cpu")
    scratch = load(tmp_path / "scratch")
    assert len(scratch.tokenizer) == 4 + 3
    assert scratch.config.layers == 2
    job.begin(recipe(pretrained_folder, "model.preset=tiny"), tmp_path / "finetuned", "cpu")
    assert load(tmp_path / "finetuned").config.layers == 1


def test_a_preset_can_be_overridden(pretrained_folder: Path):
    config = recipe(None, "model.preset=tiny", "model.dim=64").model
    assert (config.layers, config.heads, config.dim) == (2, 2, 64)
    with pytest.raises(InputError, match=r"model\.preset 'tine' is not known \(did you mean tiny\?\)"):
        recipe(None, "model.preset=tine")


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize(("length", "fresh"), [(7, []), (12, []), (20, ["embed.positions.weight from position 12 on"])])
def test_learned_positions_are_copied_up_to_the_shorter_length(pretrained_folder: Path, length: int, fresh: list[str]):
    pretrained = load(pretrained_folder)
    model = Bert(pretrained.config.replace(max_length=length))
    initial = weights(model)["embed.positions.weight"]
    assert copy_matching_weights(model, pretrained) == fresh
    after, before, shared = weights(model), weights(pretrained), min(length, 12)
    assert torch.equal(after["embed.positions.weight"][:shared], before["embed.positions.weight"][:shared])
    assert torch.equal(after["embed.positions.weight"][shared:], initial[shared:])
    assert all(torch.equal(after[name], before[name]) for name in after if name != "embed.positions.weight")


def test_vit_positions_are_interpolated_to_another_image_size():
    sizes = {"patch": 4, "dim": 8, "layers": 1, "heads": 2, "ffn_dim": 8, "channels": 1}
    pretrained, model = (
        ViT(ViTConfig(height=12, width=8, **sizes)).eval(),
        ViT(ViTConfig(height=8, width=20, **sizes)).eval(),
    )
    assert copy_matching_weights(model, pretrained) == []
    images = torch.randn(2, 1, 8, 20)
    torch.testing.assert_close(model.encode(images), pretrained.encode(images))


def test_other_embeddings_are_copied_entirely_or_not_at_all(pretrained_folder: Path):
    pretrained = load(pretrained_folder)
    model = Bert(pretrained.config.replace(segments=5))
    initial = weights(model)["embed.segments.weight"]
    assert copy_matching_weights(model, pretrained) == ["embed.segments.weight"]
    assert torch.equal(weights(model)["embed.segments.weight"], initial)


def test_vocabulary_keys_are_ignored_with_a_note_if_init_has_a_tokenizer(pretrained_folder: Path):
    assert ignored_keys(recipe(pretrained_folder), load(pretrained_folder)) == ()
    assert ignored_keys(recipe(None, "data.tokenizer=word", "data.lowercase=true"), None) == ()
    assert ignored_keys(
        recipe(pretrained_folder, "data.tokenizer=word", "data.lowercase=true"), load(pretrained_folder)
    ) == ("data.tokenizer and data.lowercase ignored: init provides the tokenizer",)


@pytest.mark.parametrize(("head", "names", "new"), [("pretraining", (), True), ("classifier", ("a", "b"), True),
                                                    ("classifier", ("a", "c"), False)])  # fmt: skip
def test_a_head_is_copied_only_if_its_labels_match(head: str, names: tuple[str, ...], new: bool):
    pretrained = Bert(BertConfig(vocab_size=9, head=head, label_names=names, **SIZES))
    model = Bert(BertConfig(vocab_size=9, head="classifier", label_names=("a", "c"), **SIZES))
    assert copy_matching_weights(model, pretrained) == (["label.weight", "label.bias"] if new else [])
    assert torch.equal(model.label.weight, pretrained.label.weight) == (not new)


def test_sizes_of_the_checkpoint_override_the_recipe(pretrained_folder: Path, tmp_path: Path, capsys):
    overrides = ["model.dim=16", "model.heads=4", "model.dropout=0", "model.preset=mini"]
    job.begin(recipe(pretrained_folder, *overrides), tmp_path / "run", "cpu")
    config = load(tmp_path / "run").config
    assert (config.dim, config.heads, config.dropout) == (8, 2, 0)  # dropout is not a size, even as an integer
    note = "model.dim and model.heads and model.layers ignored: fixed by the checkpoint"
    assert note in capsys.readouterr().err


@pytest.mark.parametrize("normalize_words", [False, True])
def test_architecture_keys_of_the_checkpoint_override_the_recipe(normalize_words: bool):
    sizes = {"filters": ((1, 4),), "highway_layers": 1, "dim": 4, "hidden_dim": 8, "layers": 1}
    pretrained = Elmo(ElmoConfig(vocab_size=9, head="language_model", normalize_words=normalize_words, **sizes))
    elmo_recipe = read_recipe("polarity-elmo", ["init=somewhere", "model.normalize_words=true", "model.max_length=7"])
    config = pretrained_config(elmo_recipe, pretrained, {"labels": 3})
    assert (config.normalize_words, config.max_length) == (normalize_words, 7)
    assert ("normalize_words" in ignored_keys(elmo_recipe, pretrained)[0]) is not normalize_words


@pytest.mark.parametrize(
    ("longer", "names"), [(False, []), (True, ["key_projection.weight", "value_projection.weight"])]
)
def test_linformer_projections_are_copied_up_to_the_shorter_length(longer: bool, names: list[str]):
    sizes = {"dim": 8, "heads": 2, "layers": 1, "rank": 3, "sharing": "headwise", "position": "sinusoidal"}
    lengths = (8, 12) if longer else (12, 8)
    pretrained, model = (Linformer(LinformerConfig(vocab_size=9, max_length=length, **sizes)) for length in lengths)
    for weight in pretrained.parameters():
        torch.nn.init.normal_(weight)
    fresh = copy_matching_weights(model.eval(), pretrained.eval())
    assert [name.removeprefix("encoder.0.attention.") for name in fresh] == [
        f"{name} from position 8 on" for name in names
    ]
    tokens = torch.randint(1, 9, (2, 8))
    torch.testing.assert_close(model(tokens), pretrained(tokens))


def test_positions_of_another_grid_are_not_copied_even_if_shapes_match():
    sizes = {
        "channels": 1,
        "encoder": {"name": "cnn", "filters": (4,)},
        "feature_dim": 4,
        "embedding_dim": 4,
        "hidden_dim": 4,
    }
    pretrained, model = (
        ShowAttendTell(CaptionerConfig(vocab_size=9, height=h, width=w, **sizes)) for h, w in ((4, 16), (8, 8))
    )
    assert pretrained.encoder.positions.shape == model.encoder.positions.shape
    assert copy_matching_weights(model, pretrained) == ["encoder.positions"]


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("omniglot-snail-5way", lambda: SNAIL(SNAILConfig())),
        ("bandit-snail", lambda: SNAILPolicy(SNAILPolicyConfig())),
        ("copy-ntm", lambda: NTM(NTMConfig())),
    ],
)
def test_models_without_text_need_no_tokenizer_in_init(tmp_path: Path, name: str, build):
    save_model(build(), None, tmp_path)
    assert isinstance(load_pretrained(read_recipe(name, [f'init="{tmp_path}"'])), type(build()))


@pytest.mark.parametrize("name", ["polarity-elmo", "shapes-attend"])
def test_frozen_requires_init(name: str):
    with pytest.raises(InputError, match=r"model\.frozen.*set init to a folder"):
        read_recipe(name, ["model.frozen=true"])
