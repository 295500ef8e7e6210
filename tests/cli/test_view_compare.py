"""`qkv view --compare`: two models on the same inputs, and errors of models that cannot be compared."""

import html
import json
from pathlib import Path

import pytest
import torch

import qkv as library
from qkv.errors import InputError
from qkv.hub import save_model
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.vit import ViT
from qkv.tokenizers import CharTokenizer
from tests.cli.test_view_of_readers import TEXT, VIT, stored
from tests.pipelines.recordings import las, tokenizer, write_wav
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("compared")
    characters = CharTokenizer.train([TEXT])
    sizes = {"vocab_size": len(characters), "dim": 16, "heads": 2, "layers": 2, "max_length": 32}
    models = {}
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        models[name] = (GPT2(GPT2Config(**sizes)), characters)
    models |= {"bert": (tiny_bert("tagger", max_length=10), tiny_tokenizer(path)), "vit": (ViT(VIT), None)}
    models["las"] = (las(), tokenizer())
    return {name: saved(model, own, path / name) for name, (model, own) in models.items()}


def test_the_page_holds_the_answers_of_both_models_in_turn(qkv, folders, tmp_path):
    page = tmp_path / "a.html"
    done = qkv("view", folders["one"], TEXT, "a cat", "--compare", folders["two"], "--page", page)
    assert done.code == 0
    assert done.err.splitlines() == [f"{folders['one']}: {TEXT}", f"{folders['two']}: {TEXT}"]
    assert done.out.count("blocks.0 · average of 2 heads") == 2
    assert done.out.splitlines()[-1] == str(page)
    examples = stored(page)
    expected = [(TEXT, "one"), (TEXT, "two"), ("a cat", "one"), ("a cat", "two")]
    assert [(each["source"], Path(each["model"]).name) for each in examples] == expected
    text = page.read_text(encoding="utf-8")
    parent = Path(folders["one"]).parent.name
    both = f"Attention: {parent}/one and {parent}/two, {TEXT}"
    assert f"<title>{html.escape(both)}</title>" in text
    assert '"view":"compare"' in text
    assert examples[0]["maps"][0]["weights"] != examples[1]["maps"][0]["weights"]


def test_models_of_other_kinds_are_compared_if_they_take_the_same_inputs(qkv, folders, tmp_path):
    done = qkv("view", folders["bert"], TEXT, "--compare", folders["one"], "--page", tmp_path / "a.html", "--json")
    assert json.loads(done.out) == {"page": str(tmp_path / "a.html")}
    first, second = stored(tmp_path / "a.html")
    assert ("[CLS]" in first["texts"][0], "[CLS]" in second["texts"][0]) == (True, False)


def test_layer_and_head_are_those_of_the_first_model(qkv, folders, tmp_path):
    arguments = ("--compare", folders["one"], "--layer", "encoder.1", "--head", 1, "--page", tmp_path / "a.html")
    done = qkv("view", folders["bert"], TEXT, *arguments)
    assert done.code == 0
    assert "encoder.1 · head 1 of 2" in done.out
    assert "blocks.0 · average of 2 heads" in done.out


def test_two_recognizers_are_compared_on_a_recording(qkv, folders, tmp_path):
    (tmp_path / "other").mkdir()
    save_model(las(score="dot"), tokenizer(), tmp_path / "other")
    path = write_wav(tmp_path / "a.wav", 0.5)
    done = qkv("view", folders["las"], path, "--compare", tmp_path / "other", "--page", tmp_path / "a.html")
    assert done.code == 0
    first, second = stored(tmp_path / "a.html")
    assert first["source"] == second["source"] == "a.wav 0.00-0.50 s"
    assert first["audio"]["values"] == second["audio"]["values"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["one", TEXT, "--compare", "none"], "none"),
        (["one", TEXT, "--compare", "vit"], "takes an image path, not a text"),
        (["one", TEXT, "--compare", "las"], "takes a WAV file, not a text"),
        (["one", TEXT, "--compare", "one"], "the same model"),
        (["one", "--compare", "two"], "pass a text"),
        (["one", TEXT, "--compare", "bert", "--max-new-tokens", 3], "--max-new-tokens"),
        (["vit", "a.png", "--compare", "one"], "takes a text, not an image path"),
    ],
)
def test_models_that_cannot_be_compared_are_errors_and_nothing_is_written(qkv, folders, tmp_path, arguments, words):
    named = [folders.get(word, word) for word in arguments]
    assert words in qkv("view", *named, "--page", tmp_path / "a.html").error
    assert not [*tmp_path.iterdir()]


def test_networks_are_compared_in_python(folders, tmp_path):
    networks = [library.load(folders[name]) for name in ("one", "two")]
    view = library.view(networks[0], TEXT, compare=networks[1])
    assert [view.answers[0].source, view.compared.answers[0].source] == [TEXT, TEXT]
    first, second = stored(view.save(tmp_path / "a.html"))
    assert first["maps"][0]["weights"] != second["maps"][0]["weights"]
    assert [first["model"], second["model"]] == ["GPT2 (1)", "GPT2 (2)"]
    with pytest.raises(InputError, match="same model"):
        library.view(networks[0], TEXT, compare=networks[0])
