"""Language modelling: how a text is cut into windows, what is carried from one to the next, and what is measured."""

import math
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.data.registry import Loaded
from qkv.data.vocabulary import Vocabulary
from qkv.errors import CheckpointError, InputError
from qkv.models.gpt2 import GPT2
from qkv.models.gpt2 import Config as GPT2Config
from qkv.models.rnn_lm import RNNLM, Config
from qkv.tasks import language_model
from qkv.tasks.language_model import EncodedText, LanguageModelTask, Window
from qkv.training.recipe import TrainConfig

TEXT = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=1000))
VALID = TEXT[137:300]
LOADED = Loaded({}, texts={"train": TEXT, "valid": VALID})


def prepared(text: str = TEXT, valid: str = VALID, seed: int = 0, **train: Any) -> LanguageModelTask:
    data = Loaded({}, texts={"train": text, "valid": valid}, notes=("a note",))
    settings = TrainConfig(**{"batch_tokens": 80, "length": 20, **train})
    return LanguageModelTask.prepare(data, Vocabulary.train([text], "char"), None, settings, seed)


def small(task: LanguageModelTask, **changes: Any) -> RNNLM:
    torch.manual_seed(1)
    sizes = {"layers": 2, "embedding": 6, "hidden": 8, "dropout": 0.0, **changes}
    return RNNLM(Config(**task.sizes(LOADED, task.vocabulary), **sizes)).double()


def windows(task: LanguageModelTask, epoch: int) -> Iterator[Window]:
    for rows in task.epoch(epoch):
        yield task.batch(rows)


def test_the_streams_are_the_text_and_each_token_is_to_be_followed_by_the_next():
    task = prepared()
    for epoch in range(3):
        seen = list(windows(task, epoch))
        assert [window.opens for window in seen] == [True] + [False] * (len(seen) - 1)
        assert {(tuple(window.read.shape), window.tokens) for window in seen} == {((4, 20), 80)}
        read, coming = (torch.cat([getattr(w, name) for w in seen], dim=1) for name in ("read", "coming"))
        texts = [task.vocabulary.decode(stream.tolist()) for stream in read]
        places = [TEXT.index(text) for text in texts]
        assert places == sorted(places)
        assert all(begin + len(text) <= after for (begin, after), text in zip(pairwise(places), texts, strict=False))
        assert [task.vocabulary.decode(stream.tolist()) for stream in coming] == [
            TEXT[begin + 1 : begin + 1 + len(text)] for begin, text in zip(places, texts, strict=True)
        ]
        assert sum(map(len, texts)) > len(TEXT) - 4 * 20 - 20 - 4  # less than a window of each stream is left out


def test_the_seed_and_the_number_of_an_epoch_decide_where_its_windows_begin():
    task, again, other = prepared(), prepared(), prepared(seed=1)

    def beginnings(task: LanguageModelTask, epochs: range) -> list[int]:
        return [(task.epoch(epoch), task.offset)[1] for epoch in epochs]

    found = beginnings(task, range(20))
    assert found[7:3:-1] == [beginnings(again, range(epoch, epoch + 1))[0] for epoch in (7, 6, 5, 4)]
    assert len(set(found)) > 5
    assert found != beginnings(other, range(20))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_windows_with_a_carried_state_cost_what_the_text_costs_in_one_pass(cell):
    task = prepared()
    model = small(task, cell=cell, learned_start=True)
    seen = list(windows(task, 0))
    read, coming = (torch.cat([getattr(w, name) for w in seen], dim=1) for name in ("read", "coming"))
    each = F.cross_entropy(model(read).transpose(1, 2).float(), coming, reduction="none").double()
    for number, window in enumerate(seen):
        loss = task.loss(model, window)
        assert loss.item() == pytest.approx(each[:, number * 20 : (number + 1) * 20].mean().item(), abs=1e-6)
        assert not any(tensor.requires_grad for tensor in task.carried().values())
    first = task.loss(model, seen[0])  # the next epoch begins from a fresh state again
    assert first.item() == pytest.approx(each[:, :20].mean().item(), abs=1e-6)


def test_back_propagation_ends_where_the_window_begins():
    task = prepared()
    model = small(task)
    one, two, *_ = windows(task, 0)
    task.loss(model, one)
    state = {name: tensor.clone() for name, tensor in task.carried().items()}
    found = torch.autograd.grad(task.loss(model, two), list(model.parameters()))
    task.carry(model, state)  # the same numbers, from nowhere
    expected = torch.autograd.grad(task.loss(model, two), list(model.parameters()))
    assert all(left.equal(right) for left, right in zip(found, expected, strict=True))


def nats_one_by_one(model: RNNLM, tokens: list[int]) -> float:
    """-log p of every token after the first, in a loop that knows one token at a time."""
    state, total = model.init_state(1), 0.0
    for token, coming in pairwise(tokens):
        logits, state = model.step(torch.tensor([token]), state)
        total -= logits[0].log_softmax(-1)[coming].item()
    return total


@pytest.mark.parametrize("budget", [1, 7, 80, 10_000])
def test_the_validation_loss_is_that_of_a_loop_over_the_whole_text(budget):
    task = prepared(batch_tokens=80)
    model = small(task).eval()
    with torch.no_grad():
        nats = nats_one_by_one(model, task.valid.tokens.tolist())
    scores = task.valid.scores(model, budget)
    characters = len(VALID) - 1
    assert scores["loss"] == pytest.approx(nats / characters, rel=1e-6)
    assert scores["nats"] == pytest.approx(nats / characters, rel=1e-6)
    assert scores["bits"] == pytest.approx(nats / characters / math.log(2), rel=1e-6)
    assert scores["perplexity"] == pytest.approx(math.exp(nats / characters), rel=1e-6)
    assert task.validate(model).keys() == task.metrics.keys()


def test_a_long_text_is_validated_in_parts_that_together_are_the_text(monkeypatch):
    monkeypatch.setattr(language_model, "LEAST_PART", 10)
    task = prepared()
    model = small(task).eval()
    tokens = task.valid.tokens.tolist()  # 163: five parts of 32, and two tokens more at the end of the last
    parts = [tokens[begin : begin + 33] for begin in range(0, 128, 32)] + [tokens[128:]]
    with torch.no_grad():
        expected = sum(nats_one_by_one(model, part) for part in parts) / (len(tokens) - 1)
    assert task.valid.scores(model, 50, parts=5)["loss"] == pytest.approx(expected, rel=1e-6)


def test_characters_are_counted_where_tokens_are_not_characters():
    text = "the cat sat on the mat and the dog sat on the cat " * 8
    vocabulary = Vocabulary.train([text], "bpe:40")
    encoded = EncodedText.of(vocabulary, text)
    assert len(encoded.tokens) < len(text)
    first = vocabulary.decode(encoded.tokens[:1].tolist())
    assert text.startswith(first)
    assert encoded.characters == len(text) - len(first)
    torch.manual_seed(0)
    scores = encoded.scores(RNNLM(Config(len(vocabulary), hidden=8)).eval(), 100)
    assert scores["nats"] * encoded.characters == pytest.approx(scores["loss"] * (len(encoded.tokens) - 1))


def test_the_task_says_what_it_is_made_of():
    task = prepared()
    assert task.describe() == "1,000 tokens"
    assert task.notes == ("a note",)
    assert task.sizes(LOADED, task.vocabulary) == {"vocabulary_size": len(task.vocabulary)}
    assert task.carried() == {}


def test_a_text_with_one_token_more_than_a_window_of_each_stream_is_just_enough():
    task = prepared(text=TEXT[:81])
    (window,) = windows(task, 0)
    assert task.vocabulary.decode(window.read.flatten().tolist()) == TEXT[:80]
    with pytest.raises(InputError, match=r"the training text has 80 tokens, too few for 4 streams of 20 tokens"):
        prepared(text=TEXT[:80])


def test_texts_and_windows_that_cannot_be_are_refused():
    with pytest.raises(InputError, match=r"train\.batch_tokens = 80 is less than one window of train\.length = 81"):
        prepared(length=81)
    with pytest.raises(InputError, match="the validation text has fewer than two tokens"):
        prepared(valid="a")


def test_a_state_of_another_model_is_not_carried_on():
    task = prepared()
    with pytest.raises(CheckpointError, match="not a state of this model"):
        task.carry(small(task, cell="gru"), {"hidden": torch.zeros(4, 2, 8), "cell": torch.zeros(4, 2, 8)})


def with_horizon(task: LanguageModelTask) -> GPT2:
    torch.manual_seed(1)
    sizes = {"dim": 8, "heads": 2, "layers": 1, "max_length": 24, "dropout": 0.0, "attention_dropout": 0.0}
    return GPT2(GPT2Config(**task.sizes(LOADED, task.vocabulary), **sizes)).double()


@pytest.mark.parametrize("valid", [VALID, VALID[:161]], ids=["with a rest", "whole windows"])
@pytest.mark.parametrize("budget", [20, 60, 200])
def test_a_model_with_a_horizon_is_validated_window_by_window_and_no_token_is_left_out(valid, budget):
    task = prepared(valid=valid, batch_tokens=budget)
    model = with_horizon(task).eval()
    tokens = task.valid.tokens
    total = 0.0
    for begin in range(0, len(tokens) - 1, 20):
        window = tokens[begin : begin + 21]
        total += F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="sum").item()
    assert task.validate(model)["loss"] == pytest.approx(total / (len(tokens) - 1), rel=1e-6)


def test_a_model_with_a_horizon_reads_every_window_afresh_and_can_be_captured():
    data = Loaded({}, texts={"train": TEXT, "valid": VALID})
    settings = TrainConfig(batch_tokens=80, length=20)
    vocabulary = Vocabulary.train([TEXT], "char")
    task = LanguageModelTask.prepare(data, vocabulary, GPT2Config(30, max_length=24), settings, 0)
    model = with_horizon(task)
    for window in windows(task, 0):
        expected = F.cross_entropy(model(window.read).flatten(0, 1), window.coming.flatten())
        assert task.loss(model, window).item() == pytest.approx(expected.item())
    assert task.carried() == {}
    assert task.capturable
    assert not prepared().capturable
    with pytest.raises(InputError, match=r"train\.length = 20 is more than the model can look at: 16 tokens"):
        LanguageModelTask.prepare(data, vocabulary, GPT2Config(30, max_length=16), settings, 0)
