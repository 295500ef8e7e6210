"""Language modelling of packed documents: each has the loss it has alone."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.dataset import Dataset, LabeledTextDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.pipelines.generator import Generator
from qkv.tasks.packed_lm import PackedLMTask
from qkv.tokenizers import WordTokenizer
from qkv.tokenizers.trained import END
from tests.tasks.settings import prepare

TEXTS = ["the cat sat", "a dog", "on the mat sat a dog and a cat", "mat", "and the dog ran", "cat and dog", "the end"]
TOKENIZER = WordTokenizer.train(TEXTS)
SETTINGS = {"batch_size": 24, "length": 12, "valid_size": 3}
CONFIG = GPT2Config(
    vocab_size=len(TOKENIZER),
    dim=16,
    heads=2,
    layers=2,
    max_length=12,
    dropout=0.0,
    attention_dropout=0.0,
    has_end_token=True,
)


def data(texts: list[str] = TEXTS) -> Dataset[Any]:
    pairs = [Pair(text, "") for text in texts]
    return LabeledTextDataset({"train": pairs, "valid": pairs[:4], "test": pairs[:3]})


def prepared(texts: list[str] = TEXTS, **settings: Any) -> PackedLMTask:
    return prepare(PackedLMTask, data(texts), TOKENIZER, CONFIG, **{**SETTINGS, **settings})


@pytest.fixture
def model() -> GPT2:
    torch.manual_seed(0)
    model = GPT2(CONFIG)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def alone(model: GPT2, ids: list[int]) -> tuple[float, int]:
    """Sum of -log p of each token after the first for a single document, and the number of these tokens."""
    tokens = torch.tensor([ids])
    logits = model(tokens[:, :-1]) if len(ids) > 1 else torch.zeros(1, 0, len(TOKENIZER))
    return float(F.cross_entropy(logits[0], tokens[0, 1:], reduction="sum")) if len(ids) > 1 else 0.0, len(ids) - 1


@torch.no_grad()
def test_a_packed_document_is_scored_as_if_alone(model):
    short = [text for text in TEXTS if len(text.split()) < 4]  # three of at most four tokens fit in a row
    task = prepared(short, length=12, batch_size=12, valid_size=9)
    result = task.evaluate(model, data(short[:3]), "test")
    sums = [alone(model, [*TOKENIZER.encode(text), END]) for text in short[:3]]
    expected = sum(nats for nats, _ in sums) / sum(count for _, count in sums)
    assert (result.size, result.unit) == (3, "documents")
    assert result.scores["loss"] == pytest.approx(expected, rel=1e-6)
    assert result.scores["perplexity"] == pytest.approx(math.exp(expected), rel=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_batch_loss_is_the_mean_over_its_documents(model, padded):
    task = prepared()
    for rows in task.epoch(3):
        batch = task.batch(rows, padded_to_shape=padded)
        assert batch.inputs.shape == ((2, 12) if padded else (len(rows), 12))
        total, count = 0.0, 0
        for row, documents in zip(batch.inputs, batch.documents, strict=True):
            for number in set(documents.tolist()) - {-1}:
                nats, tokens = alone(model, row[documents == number].tolist())
                total, count = total + nats, count + tokens
        assert batch.tokens == count
        assert float(task.loss(model, batch)) == pytest.approx(total / count, rel=1e-5)


def test_an_epoch_has_every_token_once_in_a_new_order():
    task = prepared()
    expected = sorted(token for text in TEXTS for token in [*TOKENIZER.encode(text), END])
    orders = []
    for number in (0, 1, 0):
        batches = [task.batch(rows) for rows in task.epoch(number)]
        tokens = [token for batch in batches for token in batch.inputs[batch.documents >= 0].tolist()]
        assert sorted(tokens) == expected
        orders.append(tokens)
    assert orders[0] == orders[2] != orders[1]


def test_validation_uses_valid_size_documents(model):
    task = prepared()
    assert task.validate(model) == task.evaluate(model, data(), "test").scores  # valid_size is three of four


def test_a_small_model_memorises_the_documents():
    task = prepared(length=12, batch_size=48)
    torch.manual_seed(0)
    model = GPT2(CONFIG).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for number in range(120):
        for rows in task.epoch(number):
            optimizer.zero_grad()
            loss = task.loss(model, task.batch(rows))
            loss.backward()
            optimizer.step()
    assert Generator(model, TOKENIZER)("the cat", max_new_tokens=9, temperature=1e-3).text == "the cat sat"
    unending = GPT2(CONFIG.replace(has_end_token=False))
    unending.load_state_dict(model.state_dict())
    assert len(Generator(unending, TOKENIZER)("the cat", max_new_tokens=9, temperature=1e-3).text.split()) == 11
    for before, after in (("on the mat sat", TOKENIZER.encode("a")[0]), ("the cat sat", END)):
        with torch.no_grad():
            assert model(torch.tensor([TOKENIZER.encode(before)]))[0, -1].argmax() == after


@pytest.mark.parametrize(
    ("changes", "texts", "words"),
    [
        ({"length": 13}, TEXTS, "task.length = 13"),
        ({"length": 1}, TEXTS, "length"),
        ({"batch_size": 8}, TEXTS, "train.batch_size = 8"),
        ({}, [" "], "no documents"),
    ],
)
def test_invalid_settings_are_errors(changes, texts, words):
    with pytest.raises(InputError, match=words):
        prepared(texts, **changes)
