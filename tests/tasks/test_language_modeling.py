"""Language modelling task: chunks of a text, the state carried between them, and the metrics."""

import math
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.dataset import TextDataset
from qkv.errors import CheckpointError, InputError
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.tasks import language_modeling as language_model
from qkv.tasks.language_modeling import Chunk, EncodedText, LanguageModelingTask
from qkv.tokenizers import BPETokenizer, CharTokenizer
from tests.tasks.settings import prepare

TEXT = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=1000))
VALID = TEXT[137:300]
LOADED = TextDataset({"train": TEXT, "valid": VALID})


def prepared(text: str = TEXT, valid: str = VALID, seed: int = 0, **train: Any) -> LanguageModelingTask:
    data = TextDataset({"train": text, "valid": valid}, notes=("a note",))
    settings = {"batch_size": 80, "length": 20, **train}
    return prepare(LanguageModelingTask, data, CharTokenizer.train([text]), None, seed, **settings)


def small(task: LanguageModelingTask, **changes: Any) -> RNNLM:
    torch.manual_seed(1)
    sizes = {"layers": 2, "embedding_dim": 6, "hidden_dim": 8, "dropout": 0.0, **changes}
    return RNNLM(RNNLMConfig(**task.sizes(LOADED, task.tokenizer), **sizes)).double()


def chunks(task: LanguageModelingTask, epoch: int) -> Iterator[Chunk]:
    for rows in task.epoch(epoch):
        yield task.batch(rows)


def test_streams_cover_the_text_and_targets_are_the_next_tokens():
    task = prepared()
    for epoch in range(3):
        batches = list(chunks(task, epoch))
        assert [chunk.starts_stream for chunk in batches] == [True] + [False] * (len(batches) - 1)
        assert {(tuple(chunk.inputs.shape), chunk.tokens) for chunk in batches} == {((4, 20), 80)}
        inputs, targets = (torch.cat([getattr(c, name) for c in batches], dim=1) for name in ("inputs", "targets"))
        texts = [task.tokenizer.decode(stream.tolist()) for stream in inputs]
        starts = [TEXT.index(text) for text in texts]
        assert starts == sorted(starts)
        assert all(begin + len(text) <= after for (begin, after), text in zip(pairwise(starts), texts, strict=False))
        assert [task.tokenizer.decode(stream.tolist()) for stream in targets] == [
            TEXT[begin + 1 : begin + 1 + len(text)] for begin, text in zip(starts, texts, strict=True)
        ]
        assert sum(map(len, texts)) > len(TEXT) - 4 * 20 - 20 - 4  # less than a chunk of each stream is dropped


def test_seed_and_epoch_determine_the_offset_of_the_chunks():
    task, again, other = prepared(), prepared(), prepared(seed=1)

    def offsets_of(task: LanguageModelingTask, epochs: range) -> list[int]:
        return [(task.epoch(epoch), task.offset)[1] for epoch in epochs]

    offsets = offsets_of(task, range(20))
    assert offsets[7:3:-1] == [offsets_of(again, range(epoch, epoch + 1))[0] for epoch in (7, 6, 5, 4)]
    assert len(set(offsets)) > 5
    assert offsets != offsets_of(other, range(20))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_chunks_with_carried_state_have_the_loss_of_one_pass(cell):
    task = prepared()
    model = small(task, cell=cell, learned_initial_state=True)
    batches = list(chunks(task, 0))
    inputs, targets = (torch.cat([getattr(c, name) for c in batches], dim=1) for name in ("inputs", "targets"))
    losses = F.cross_entropy(model(inputs).transpose(1, 2).float(), targets, reduction="none").double()
    for number, chunk in enumerate(batches):
        loss = task.loss(model, chunk)
        assert loss.item() == pytest.approx(losses[:, number * 20 : (number + 1) * 20].mean().item(), abs=1e-6)
        assert not any(tensor.requires_grad for tensor in task.carried_state().values())
    first = task.loss(model, batches[0])  # the next epoch starts from a fresh state
    assert first.item() == pytest.approx(losses[:, :20].mean().item(), abs=1e-6)


def test_backpropagation_is_truncated_at_the_chunk():
    task = prepared()
    model = small(task)
    first, second, *_ = chunks(task, 0)
    task.loss(model, first)
    state = {name: tensor.clone() for name, tensor in task.carried_state().items()}
    gradients = torch.autograd.grad(task.loss(model, second), list(model.parameters()))
    task.load_carried_state(model, state)  # the same values without a graph
    expected = torch.autograd.grad(task.loss(model, second), list(model.parameters()))
    assert all(left.equal(right) for left, right in zip(gradients, expected, strict=True))


def nats_one_by_one(model: RNNLM, tokens: list[int]) -> float:
    """-log p of every token after the first, one token at a time."""
    state, total = model.init_state(1), 0.0
    for token, target in pairwise(tokens):
        logits, state = model.step(torch.tensor([token]), state)
        total -= logits[0].log_softmax(-1)[target].item()
    return total


@pytest.mark.parametrize("budget", [1, 7, 80, 10_000])
def test_validation_loss_equals_a_loop_over_the_text(budget):
    task = prepared(batch_size=80)
    model = small(task).eval()
    with torch.no_grad():
        nats = nats_one_by_one(model, task.valid.tokens.tolist())
    scores = task.valid.scores(model, budget, length=8)
    characters = len(VALID) - 1
    assert scores["loss"] == pytest.approx(nats / characters, rel=1e-6)
    assert scores["nats"] == pytest.approx(nats / characters, rel=1e-6)
    assert scores["bits"] == pytest.approx(nats / characters / math.log(2), rel=1e-6)
    assert scores["perplexity"] == pytest.approx(math.exp(nats / characters), rel=1e-6)
    assert task.validate(model).keys() == task.metrics.keys()


def test_a_long_text_is_validated_in_parts(monkeypatch):
    monkeypatch.setattr(language_model, "MIN_PART", 10)
    monkeypatch.setattr(language_model, "PARTS", 5)
    task = prepared()
    model = small(task).eval()
    tokens = task.valid.tokens.tolist()  # 163: five parts of 32, and two tokens more at the end of the last
    parts = [tokens[begin : begin + 33] for begin in range(0, 128, 32)] + [tokens[128:]]
    with torch.no_grad():
        expected = sum(nats_one_by_one(model, part) for part in parts) / (len(tokens) - 1)
    assert task.valid.scores(model, 50, length=8)["loss"] == pytest.approx(expected, rel=1e-6)


def test_characters_are_counted_for_subword_tokens():
    text = "the cat sat on the mat and the dog sat on the cat " * 8
    tokenizer = BPETokenizer.train([text], vocab_size=40)
    encoded = EncodedText.from_text(tokenizer, text)
    assert len(encoded.tokens) < len(text)
    first = tokenizer.decode(encoded.tokens[:1].tolist())
    assert text.startswith(first)
    assert encoded.characters == len(text) - len(first)
    torch.manual_seed(0)
    scores = encoded.scores(RNNLM(RNNLMConfig(vocab_size=len(tokenizer), hidden_dim=8)).eval(), 100, length=8)
    assert scores["nats"] * encoded.characters == pytest.approx(scores["loss"] * (len(encoded.tokens) - 1))


def test_description_notes_and_sizes():
    task = prepared()
    assert task.describe() == "1,000 tokens"
    assert task.notes == ("a note",)
    assert task.sizes(LOADED, task.tokenizer) == {"vocab_size": len(task.tokenizer)}
    assert task.carried_state() == {}


def test_minimum_length_of_the_training_text():
    task = prepared(text=TEXT[:81])
    (chunk,) = chunks(task, 0)
    assert task.tokenizer.decode(chunk.inputs.flatten().tolist()) == TEXT[:80]
    with pytest.raises(InputError, match="80 tokens, too few"):
        prepared(text=TEXT[:80])


def test_invalid_lengths_are_errors():
    with pytest.raises(InputError, match=r"train\.batch_size = 80"):
        prepared(length=81)
    with pytest.raises(InputError, match="the validation text has fewer than two tokens"):
        prepared(valid="a")


def test_the_state_of_another_model_is_an_error():
    task = prepared()
    with pytest.raises(CheckpointError, match="does not match"):
        task.load_carried_state(small(task, cell="gru"), {"hidden": torch.zeros(4, 2, 8), "cell": torch.zeros(4, 2, 8)})


def bounded_context(task: LanguageModelingTask) -> GPT2:
    torch.manual_seed(1)
    sizes = {"dim": 8, "heads": 2, "layers": 1, "max_length": 24, "dropout": 0.0, "attention_dropout": 0.0}
    return GPT2(GPT2Config(**task.sizes(LOADED, task.tokenizer), **sizes)).double()


@pytest.mark.parametrize("valid", [VALID, VALID[:161]], ids=["remainder", "whole chunks"])
@pytest.mark.parametrize("budget", [20, 60, 200])
def test_bounded_context_is_validated_chunk_by_chunk_without_losing_tokens(valid, budget):
    task = prepared(valid=valid, batch_size=budget)
    model = bounded_context(task).eval()
    tokens = task.valid.tokens
    total = 0.0
    for begin in range(0, len(tokens) - 1, 20):
        chunk = tokens[begin : begin + 21]
        total += F.cross_entropy(model(chunk[None, :-1])[0], chunk[1:], reduction="sum").item()
    assert task.validate(model)["loss"] == pytest.approx(total / (len(tokens) - 1), rel=1e-6)


def test_bounded_context_starts_every_chunk_afresh_and_is_capturable():
    data = TextDataset({"train": TEXT, "valid": VALID})
    settings = {"batch_size": 80, "length": 20}
    tokenizer = CharTokenizer.train([TEXT])
    task = prepare(LanguageModelingTask, data, tokenizer, GPT2Config(vocab_size=30, max_length=24), **settings)
    model = bounded_context(task)
    for chunk in chunks(task, 0):
        expected = F.cross_entropy(model(chunk.inputs).flatten(0, 1), chunk.targets.flatten())
        assert task.loss(model, chunk).item() == pytest.approx(expected.item())
    assert task.carried_state() == {}
    assert task.capturable
    assert not prepared().capturable
    with pytest.raises(InputError, match=r"task\.length = 20"):
        prepare(LanguageModelingTask, data, tokenizer, GPT2Config(vocab_size=30, max_length=16), **settings)
