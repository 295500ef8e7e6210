"""`qkv tag` and `qkv classify` with ELMo: texts are split into words, and words into characters."""

import json
from pathlib import Path

import pytest
import torch

import qkv as library
from qkv.hub import save_model
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.tokenizers.characters import CharacterIds

SIZES = {
    "max_characters": 8,
    "filters": ((1, 4), (2, 4)),
    "dim": 6,
    "hidden_dim": 8,
    "max_length": 5,
    "task_hidden_dim": 3,
}
LINES = ["She didn't read it.", "", "Ünïcödé 好 🙂", "one two three four five six seven"]


@pytest.fixture(params=["tagger", "classifier"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An untrained model."""
    torch.manual_seed(0)
    model = Elmo(ElmoConfig(head=request.param, labels=3, label_names=("a", "b", "c"), **SIZES))
    save_model(model, None, tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    return tmp_path


def test_predictions_equal_those_of_the_model(qkv, folder):
    model = library.load(folder)
    command = "tag" if model.config.head == "tagger" else "classify"
    done = qkv(command, folder, "--json", "--batch-size", 8, "--device", "cpu", stdin="\n".join(LINES).encode())
    assert done.code == 0
    found = [json.loads(line) for line in done.out.splitlines()]
    words = [["She", "did", "n't", "read", "it", "."], [], ["Ünïcödé", "好", "🙂"], LINES[3].split()]
    with torch.no_grad():
        for answer, expected in zip(found, words, strict=True):
            parts = [expected[begin : begin + 5] for begin in range(0, len(expected), 5)]
            said = [model.predict(CharacterIds(8)([part]), torch.tensor([len(part)]))[0] for part in parts]
            if command == "tag":
                assert answer["words"] == expected
                assert answer["tags"] == ["abc"[label] for one in said for label in one.argmax(dim=-1)]
            elif parts:  # long texts are truncated
                wanted = dict(zip("abc", said[0].softmax(dim=-1).tolist(), strict=True))
                assert answer["probabilities"] == pytest.approx(wanted, abs=1e-5)
    if command == "classify":
        assert "2 inputs are truncated to the model's maximum of 5 tokens" in done.err


def test_a_model_with_another_head_is_an_error(qkv, folder):
    head = library.load(folder).config.head
    other = {"tagger": "classify", "classifier": "tag"}[head]
    assert head in qkv(other, folder, "a", "--device", "cpu").error
    assert "masked_lm" in qkv("fill", folder, "a [MASK]", "--device", "cpu").error
