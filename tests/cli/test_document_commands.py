"""`qkv classify` and `qkv view` on documents: whole files, truncation and errors."""

import json
import re
from pathlib import Path

import pytest
import torch

import qkv as library
from qkv.interpret.document_probe import DocumentProbe
from qkv.models.han import HAN, HANConfig
from qkv.tokenizers import WordTokenizer
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

REVIEW = "A fine film.\n\nThe cat was good, and the dog was fine.\nI left. The end."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model."""
    tokenizer = WordTokenizer.train([REVIEW], lowercase=True)
    torch.manual_seed(0)
    network = HAN(
        HANConfig(
            vocab_size=len(tokenizer),
            embedding_dim=4,
            hidden_dim=3,
            max_length=3,
            label_names=("negative", "positive"),
        )
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_()
    return saved(network.eval(), tokenizer, tmp_path_factory.mktemp("han"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "review.txt"
    path.write_text(REVIEW + "\n", encoding="utf-8")
    return path


def test_a_file_is_one_document_and_truncation_is_noted(qkv, model, file):
    done = qkv("classify", model, "--document", file, "--document", file, "--json", "--device", "cpu")
    assert done.code == 0
    assert "2 inputs are truncated to the model's maximum of 3 sentences" in done.err
    found = [json.loads(line) for line in done.out.splitlines()]
    expected = library.Classifier(model, device="cpu")(REVIEW)
    assert [(one["input"], one["label"]) for one in found] == [(1, expected.label), (2, expected.label)]
    assert found[0]["probabilities"] == pytest.approx(expected.probabilities, abs=2e-6)
    as_text = qkv("classify", model, REVIEW, "--device", "cpu")
    assert as_text.out.split("\t")[0] == expected.label


def test_the_number_of_labels_is_one_in_text_and_all_in_json_by_default(qkv, model):
    def run(*options):
        return qkv("classify", model, "Fine!", "--device", "cpu", *options).out

    labels = [*library.Classifier(model, device="cpu")("Fine!").probabilities]
    assert run().split("\t")[::2] == labels[:1]
    assert run("--top-k", 2).split("\t")[::2] == labels
    assert [*json.loads(run("--json"))["probabilities"]] == labels
    assert [*json.loads(run("--json", "--top-k", 1))["probabilities"]] == labels[:1]


def test_a_page_shows_every_sentence_up_to_the_maximum(qkv, model, file, tmp_path):
    page = tmp_path / "page.html"
    done = qkv("view", model, "Fine!", "--document", file, "--page", page, "--device", "cpu")
    assert done.code == 0
    first, second = DocumentProbe(model, device="cpu")(["Fine!", REVIEW])
    assert f"{first.label}  {first.probabilities[first.label]:.1%}" in done.err
    assert done.out == f"100.0%  Fine!\n{page}\n"
    (data,) = re.findall(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    examples = json.loads(data)["examples"]
    sentences = [sentence for example in examples for sentence in example["document"]["sentences"]]
    shown = ["".join(sentence["words"]).strip() for sentence in sentences]
    assert shown == ["Fine!", *(sentence.text for sentence in second.sentences)]
    assert shown[1:] == ["A fine film.", "The cat was good, and the dog was fine.", "I left."]
    weights = [first.sentences[0].weight, *(sentence.weight for sentence in second.sentences)]
    assert [sentence["weight"] for sentence in sentences] == pytest.approx(weights, abs=1e-6)
    assert "1 more sentence(s) truncated" in examples[1]["notes"]
    done = qkv("view", model, "Fine!", "--json", "--page", page, "--device", "cpu")
    assert json.loads(done.out) == {"page": str(page)}


def test_a_flat_text_model_also_accepts_documents(qkv, file, tmp_path):
    bert = saved(tiny_bert("classifier", label_names=("no", "yes")), tiny_tokenizer(tmp_path), tmp_path / "bert")
    done = qkv("classify", bert, "--document", file, "--device", "cpu")
    assert done.out.split("\t")[0] == library.Classifier(bert, device="cpu")(REVIEW).label
    done = qkv("view", bert, "--document", file, "--page", tmp_path / "page.html", "--device", "cpu")
    assert done.code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("classify", "--document", "EMPTY"), r"empty\.txt: .*empty"),
        (("view", "--document", "EMPTY"), r"empty\.txt: .*empty"),
        (("classify", "--document", "nowhere.txt"), r"nowhere\.txt: no such file"),
        (("classify", "text", "--document", "EMPTY"), "--document"),
        (("classify", " \n "), "input 1 is empty"),
        (("view", " "), "input 1 is empty"),
        (("view",), "pass a text"),
        (("view", "text", "--layer", "words"), "--layer"),
    ],
)
def test_invalid_documents_and_options_are_errors(qkv, model, tmp_path, arguments, words):
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n\n")
    command, *rest = (str(empty) if word == "EMPTY" else word for word in arguments)
    assert re.search(words, qkv(command, model, *rest, "--device", "cpu").error)
