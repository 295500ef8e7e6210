"""Language modelling of documents: packed as they are, each is learned as if it were alone."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from qkv.data.pair import Pair
from qkv.data.registry import LoadedData
from qkv.data.vocabulary import END, Vocabulary
from qkv.errors import InputError
from qkv.models.gpt2 import GPT2, Config
from qkv.tasks.document_language_model import DocumentLanguageModelTask
from qkv.tasks.generator import Generator
from qkv.training.recipe import TrainConfig

TEXTS = ["the cat sat", "a dog", "on the mat sat a dog and a cat", "mat", "and the dog ran", "cat and dog", "the end"]
VOCABULARY = Vocabulary.train(TEXTS, "word")
SETTINGS = TrainConfig(batch_tokens=24, length=12, valid_size=3)
CONFIG = Config(
    len(VOCABULARY), dim=16, heads=2, layers=2, max_length=12, dropout=0.0, attention_dropout=0.0, ends=True
)


def data(texts: list[str] = TEXTS) -> LoadedData:
    pairs = [Pair(text, "") for text in texts]
    return LoadedData({"train": pairs, "valid": pairs[:4], "test": pairs[:3]})


def prepared(settings: TrainConfig = SETTINGS, texts: list[str] = TEXTS) -> DocumentLanguageModelTask:
    return DocumentLanguageModelTask.prepare(data(texts), VOCABULARY, CONFIG, settings, seed=0)


@pytest.fixture
def model() -> GPT2:
    torch.manual_seed(0)
    model = GPT2(CONFIG)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def alone(model: GPT2, ids: list[int]) -> tuple[float, int]:
    """The sum of -log p of each token after the first, of a text that is read by itself, and how many there are."""
    tokens = torch.tensor([ids])
    logits = model(tokens[:, :-1]) if len(ids) > 1 else torch.zeros(1, 0, len(VOCABULARY))
    return float(F.cross_entropy(logits[0], tokens[0, 1:], reduction="sum")) if len(ids) > 1 else 0.0, len(ids) - 1


@torch.no_grad()
def test_a_text_that_fits_into_a_row_is_scored_as_if_it_were_alone(model):
    short = [text for text in TEXTS if len(text.split()) < 4]  # three of at most four tokens fill a row of twelve
    task = prepared(replace(SETTINGS, length=12, batch_tokens=12, valid_size=9), short)
    found = task.examine(model, data(short[:3]), "test")
    sums = [alone(model, [*VOCABULARY.encode(text).ids, END]) for text in short[:3]]
    expected = sum(one for one, _ in sums) / sum(count for _, count in sums)
    assert (found.size, found.unit) == (3, "documents")
    assert found.scores["loss"] == pytest.approx(expected, rel=1e-6)
    assert found.scores["perplexity"] == pytest.approx(math.exp(expected), rel=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("filled", [False, True])
def test_the_loss_of_a_batch_is_the_mean_over_its_pieces_each_by_itself(model, filled):
    task = prepared()
    for rows in task.epoch(3):
        batch = task.batch(rows, filled=filled)
        assert batch.read.shape == ((2, 12) if filled else (len(rows), 12))
        total, count = 0.0, 0
        for read, texts in zip(batch.read, batch.texts, strict=True):
            for number in set(texts.tolist()) - {-1}:
                nats, tokens = alone(model, read[texts == number].tolist())
                total, count = total + nats, count + tokens
        assert batch.tokens == count
        assert float(task.loss(model, batch)) == pytest.approx(total / count, rel=1e-5)


def test_every_token_is_read_once_in_an_epoch_and_texts_come_in_another_order():
    task = prepared()
    wanted = sorted(token for text in TEXTS for token in [*VOCABULARY.encode(text).ids, END])
    orders = []
    for number in (0, 1, 0):
        batches = [task.batch(rows) for rows in task.epoch(number)]
        read = [token for batch in batches for token in batch.read[batch.texts >= 0].tolist()]
        assert sorted(read) == wanted
        orders.append(read)
    assert orders[0] == orders[2] != orders[1]


def test_validation_looks_at_as_many_texts_as_it_was_told(model):
    task = prepared()
    assert task.validate(model) == task.examine(model, data(), "test").scores  # three of the four that there are


def test_eight_texts_are_learned_by_heart():
    task = prepared(replace(SETTINGS, length=12, batch_tokens=48))
    torch.manual_seed(0)
    model = GPT2(CONFIG).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for number in range(120):
        for rows in task.epoch(number):
            optimizer.zero_grad()
            loss = task.loss(model, task.batch(rows))
            loss.backward()
            optimizer.step()
    assert Generator(model, VOCABULARY)("the cat", tokens=9, temperature=1e-3).text == "the cat sat"
    unending = GPT2(replace(CONFIG, ends=False))
    unending.load_state_dict(model.state_dict())
    assert len(Generator(unending, VOCABULARY)("the cat", tokens=9, temperature=1e-3).text.split()) == 11
    for before, after in (("on the mat sat", VOCABULARY.encode("a").ids[0]), ("the cat sat", END)):
        with torch.no_grad():
            assert model(torch.tensor([VOCABULARY.encode(before).ids]))[0, -1].argmax() == after


@pytest.mark.parametrize(
    ("changes", "texts", "words"),
    [
        ({"length": 13}, TEXTS, "train.length = 13 is more than the model can look at: 12 tokens"),
        ({"length": 1}, TEXTS, "train.length must be 2 at least"),
        ({"batch_tokens": 8}, TEXTS, "train.batch_tokens = 8 is less than one row of train.length = 12"),
        ({}, [" "], "no documents to learn from"),
    ],
)
def test_what_cannot_be_learned_is_refused(changes, texts, words):
    with pytest.raises(InputError, match=words):
        prepared(replace(SETTINGS, **changes), texts)
