"""The pretrained models in the package: intact, described by their records, and useful."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qkv
from qkv.experiments.packaging import summarize
from qkv.experiments.results import read_records
from qkv.hub import convert
from qkv.hub.checkpoint_manifest import verify_manifest
from qkv.hub.model_folder import ModelFolder
from qkv.hub.pretrained import listed_files, packaged_folder, pretrained_names, read_catalog, recorded_example
from qkv.runtime.files import sha256
from qkv.training.run import Run

NAMES = sorted(path.parent.name for path in packaged_folder().glob("*/checkpoint.json"))
SENTENCES = [
    "Where is the station?",
    "I don't know what to do.",
    "My sister bought a new car last week.",
    "How much does that cost?",
    "It's raining, so we will stay at home.",
]


def test_names() -> None:
    assert set(NAMES) <= set(pretrained_names())
    assert {"tatoeba-en-de", "shakespeare", "sentiment", "dates", "g2p", "copy-ntm"} <= set(NAMES)
    assert not read_catalog().keys() & set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_intact_and_its_card_has_the_recorded_scores(name: str) -> None:
    folder = packaged_folder() / name
    record = verify_manifest(folder)
    assert {path.name for path in folder.iterdir()} == {*record["sha256"], "checkpoint.json"}
    assert listed_files(folder).keys() == record["sha256"].keys()
    card = (folder / "README.md").read_text()
    assert sha256(folder / "model.safetensors") in card
    run = Run.open(folder)
    assert run.recipe.data.license in card
    assert run.recipe.data.license != "unknown"
    measured = read_records(folder)[0]
    assert (measured.recipe, measured.seed) == (run.recipe.name, run.recipe.seed)
    assert measured.split.startswith("test") or measured.data == "tinyshakespeare"  # which has no test data
    value = summarize(folder).score.split()[-1].rstrip("%")
    assert f" {value} |" in card
    text = "".join(path.read_text() for path in folder.iterdir() if path.suffix != ".safetensors")
    assert "/work" not in text
    assert "/home" not in text
    assert "/tmp" not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_model_loads_by_name(name: str) -> None:
    model = qkv.load(name)
    assert isinstance(model, ModelFolder(packaged_folder() / name).network)
    assert not model.training


def test_models_of_other_inputs_than_english_sentences_name_an_example() -> None:
    examples = {name: example for name in NAMES if (example := recorded_example(packaged_folder() / name))}
    assert examples.keys() == {"dates", "g2p", "shakespeare"}
    assert qkv.Translator("dates", device="cpu")(examples["dates"]).text == "2026-03-05"


def test_the_translator_keeps_case_and_punctuation() -> None:
    answers = qkv.Translator("tatoeba-en-de", device="cpu")(SENTENCES)
    texts = [answer.text for answer in answers]
    assert texts[0] == "Wo ist der Bahnhof?"
    assert all(text[0].isupper() and text[-1] == source[-1] for text, source in zip(texts, SENTENCES, strict=True))


def test_the_translator_answers_the_same_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    convert("tatoeba-en-de", tmp_path / "hf")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    for beams in (1, 3):
        outputs = model.generate(**inputs, num_beams=beams, do_sample=False, max_length=40, early_stopping=False)
        ours = qkv.Translator(qkv.load("tatoeba-en-de", dequantize=True), device="cpu")
        texts = [answer.text for answer in ours(SENTENCES, num_beams=beams, max_new_tokens=39)]
        assert tokenizer.batch_decode(outputs, skip_special_tokens=True) == texts


def test_the_classifier_tells_praise_from_blame() -> None:
    classify = qkv.Classifier("sentiment", device="cpu")
    labels = [answer.label for answer in classify(["A warm, funny and moving film.", "Dull and badly acted."])]
    assert labels == ["positive", "negative"]


def test_pronunciations_do_not_depend_on_case() -> None:
    translate = qkv.Translator("g2p", device="cpu")
    lower, upper, capital = translate(["attention", "ATTENTION", "Attention"])
    assert lower.text == upper.text == capital.text == "AH0 T EH1 N SH AH0 N"


def test_the_shell_completes_their_names() -> None:
    variables = {"_QKV_COMPLETE": "complete_bash", "COMP_WORDS": "qkv translate ta", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['qkv']; from qkv.cli.main import app; app(prog_name='qkv')"],
        env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["tatoeba-en-de"]


def test_the_records_name_the_weights_that_were_measured() -> None:
    for name in NAMES:
        folder = packaged_folder() / name
        lines = (folder / "results.jsonl").read_text().splitlines()
        assert all(json.loads(line)["data_hash"] == verify_manifest(folder)["data"] for line in lines)
