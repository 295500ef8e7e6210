"""Bidirectional language modelling task: inputs, targets of both directions, loss and metrics."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.dataset import LabeledTextDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.tasks.bilm import BiLMTask, SentenceBatch
from qkv.tokenizers import TrainedTokenizer
from qkv.tokenizers.characters import CharacterIds
from qkv.tokenizers.trained import BEGIN, END, PAD, UNK
from tests.datasets.build import dataset
from tests.tasks.settings import prepare

TEXTS = ["The cat sat. The dog didn't sit on the mat!", "A cat.", "Dogs sat on the cat and on the dog and on the mat."]
DATA = LabeledTextDataset({"train": [Pair(text, "x") for text in TEXTS], "valid": [Pair(TEXTS[0], "x")]})
SENTENCES = [
    ["The", "cat", "sat", "."], ["The", "dog", "did", "n't", "sit", "on", "the", "mat", "!"], ["A", "cat", "."],
    ["Dogs", "sat", "on", "the", "cat", "and", "on", "the", "dog", "and"], ["on", "the", "mat", "."],
]  # fmt: skip
SIZES: dict[str, Any] = {
    "vocab_size": 12, "head": "language_model", "max_characters": 6, "character_dim": 3,
    "filters": ((1, 3), (2, 4)), "highway_layers": 1, "dim": 4, "hidden_dim": 5, "layers": 2, "dropout": 0.0,
}  # fmt: skip
LABELLED = dataset("labelled", tokenizer={"name": "word", "vocab_size": 12})
TEXT_WORDS = BiLMTask.train_tokenizer(DATA, LABELLED, ElmoConfig(**SIZES))


def prepared(**train: Any) -> BiLMTask:
    return prepare(BiLMTask, DATA, TEXT_WORDS, ElmoConfig(**SIZES), **{"length": 10, "batch_size": 24, **train})


def elmo(**changes: Any) -> Elmo:
    torch.manual_seed(0)
    return Elmo(ElmoConfig(**{**SIZES, **changes})).double()


def number(word: str) -> int:
    return TEXT_WORDS.encode([word])[0][0]


def test_the_output_vocabulary_is_the_most_frequent_words():
    # by frequency, ties in alphabetical order: "sat" no longer fits
    expected = ["on", "the", ".", "cat", "The", "and", "dog", "mat"]
    assert [TEXT_WORDS.piece(number) for number in range(4, 12)] == expected
    sizes = BiLMTask.sizes(DATA, TEXT_WORDS)
    assert sizes == {"vocab_size": 12}


def test_texts_are_split_into_sentences_of_limited_length():
    sentences = prepared().train
    assert sentences.lengths.tolist() == [len(words) for words in SENTENCES]
    for row, words in enumerate(SENTENCES):
        batch = sentences.batch([row])
        assert torch.equal(sentences.encoder.lookup(batch.words), CharacterIds(6)([words]))
        expected = [number(word) for word in words]
        assert UNK in [number(word) for words in SENTENCES for word in words]
        assert batch.forward_targets.tolist() == [[*expected, END]]
        assert batch.backward_targets.tolist() == [[BEGIN, *expected]]
        assert batch.tokens == len(words) + 1


@pytest.mark.parametrize("padded", [False, True])
def test_padding_has_no_targets(padded):
    task, model = prepared(), elmo()
    batch = task.batch([0, 2], padded_to_shape=padded)
    assert batch.words.shape == ((6, 4) if padded else (2, 4))
    assert batch.forward_targets[1].tolist() == [number("A"), number("cat"), number("."), END, PAD]
    assert batch.backward_targets[1].tolist() == [BEGIN, number("A"), number("cat"), number("."), PAD]
    assert not batch.words[2:].any()
    assert (batch.forward_targets[2:] == PAD).all()
    assert (batch.backward_targets[2:] == PAD).all()
    assert batch.tokens == 5 + 4
    total = 0.0
    for words in (SENTENCES[0], SENTENCES[2]):  # word by word, alone
        for logits, targets in zip(
            model.bilm_logits(CharacterIds(6)([words])), ([*words, END], [BEGIN, *words]), strict=True
        ):
            for position, target in enumerate(targets):
                token = target if isinstance(target, int) else number(target)
                total -= float(logits[0, position].detach().log_softmax(dim=-1)[token])
    assert task.loss(model, batch).item() == pytest.approx(total / 2 / 9, rel=1e-9)


def test_an_epoch_has_every_sentence_once_in_few_shapes():
    task = prepared()
    assert sorted(row for rows in task.epoch(3) for row in rows) == list(range(5))
    assert task.epoch(3) == task.epoch(3)
    shapes = {task.batch(rows, padded_to_shape=True).words.shape for rows in task.epoch(0)}
    assert shapes <= {(6, 4), (3, 8), (2, 10)}
    assert task.describe() == f"5 sentences, {sum(map(len, SENTENCES))} words"


def test_validation_is_the_mean_over_positions_and_equals_evaluate():
    task, model = prepared(batch_size=9), elmo().eval()
    each = [task.loss(model, task.valid.batch([row])).item() * (len(SENTENCES[row]) + 1) for row in (0, 1)]
    metrics = task.validate(model)
    assert metrics["loss"] == pytest.approx(sum(each) / 15, rel=1e-6)
    assert metrics["perplexity"] == pytest.approx(torch.tensor(metrics["loss"]).exp().item(), rel=1e-6)
    evaluation = task.evaluate(model, DATA, "valid")
    assert (evaluation.size, evaluation.unit, evaluation.scores) == (2, "sentences", metrics)


def test_gradients_equal_finite_differences():
    task, model = prepared(), elmo(cell_clip=None, projection_clip=None)
    batch = task.batch([0, 2])
    parameters = dict(model.named_parameters())
    slopes = torch.autograd.grad(task.loss(model, batch), list(parameters.values()))
    for (name, parameter), slope in zip(parameters.items(), slopes, strict=True):
        flat, step = parameter.detach().view(-1), 1e-6
        index = int(slope.abs().argmax())
        before = flat[index].item()
        losses = []
        for value in (before + step, before - step):
            flat[index] = value
            with torch.no_grad():
                losses.append(task.loss(model, batch).item())
        flat[index] = before
        assert slope.view(-1)[index].item() == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5), name


def test_loss_is_the_mean_of_both_directions():
    task, model = prepared(), elmo()
    batch = task.batch([1, 3])
    forward_logits, backward_logits = model.bilm_logits(task.train.encoder.lookup(batch.words), batch.lengths)
    sides = [
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        for logits, targets in ((forward_logits, batch.forward_targets), (backward_logits, batch.backward_targets))
    ]
    torch.testing.assert_close(task.loss(model, batch), sum(sides) / 2)
    assert abs(sides[0] - sides[1]) > 1e-3


def test_a_pretrained_model_brings_its_output_vocabulary():
    assert prepare(BiLMTask, DATA, TEXT_WORDS, ElmoConfig(**SIZES), length=10).tokenizer is TEXT_WORDS
    with pytest.raises(InputError, match="output vocabulary"):
        BiLMTask.sizes(DATA, None)


def test_data_without_sentences_is_an_error():
    empty = LabeledTextDataset({"train": [Pair("  ", "x")], "valid": [Pair("a", "x")]})
    with pytest.raises(InputError, match="no sentences"):
        prepare(BiLMTask, empty, TEXT_WORDS, ElmoConfig(**SIZES))


def test_a_batch_moves_to_a_device():
    batch = prepared().batch([0])
    moved = batch.to(torch.device("meta"))
    assert isinstance(moved, SentenceBatch)
    assert {tensor.device.type for tensor in moved.tensors.values()} == {"meta"}
    assert moved.tokens == batch.tokens


def test_the_output_vocabulary_survives_serialization():
    again = TrainedTokenizer.from_json(TEXT_WORDS.to_json(), "here")
    assert [again.encode([word]) for word in ("the", "n't", ".")] == [
        [[number("the")]],
        [[UNK]],
        [[number(".")]],
    ]
