"""Two-way language modelling: what is read, what is predicted at each place, and what is counted."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.data.characters import Characters
from qkv.data.pair import Pair
from qkv.data.registry import DataConfig, Loaded
from qkv.data.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary
from qkv.errors import InputError
from qkv.models.elmo import Config, Elmo
from qkv.tasks.two_way_language_model import SentenceBatch, TwoWayLanguageModelTask
from qkv.training.recipe import TrainConfig

TEXTS = ["The cat sat. The dog didn't sit on the mat!", "A cat.", "Dogs sat on the cat and on the dog and on the mat."]
DATA = Loaded({"train": [Pair(text, "x") for text in TEXTS], "valid": [Pair(TEXTS[0], "x")]})
SENTENCES = [
    ["The", "cat", "sat", "."], ["The", "dog", "did", "n't", "sit", "on", "the", "mat", "!"], ["A", "cat", "."],
    ["Dogs", "sat", "on", "the", "cat", "and", "on", "the", "dog", "and"], ["on", "the", "mat", "."],
]  # fmt: skip
WORDS = TwoWayLanguageModelTask.learn_vocabulary(DATA, DataConfig(name="labelled", vocabulary="word:12"), None)
SIZES: dict[str, Any] = {
    "vocabulary_size": 12, "head": "language_model", "max_characters": 6, "character_dim": 3,
    "filters": ((1, 3), (2, 4)), "highway_layers": 1, "dim": 4, "hidden": 5, "layers": 2, "dropout": 0.0,
}  # fmt: skip


def prepared(**train: Any) -> TwoWayLanguageModelTask:
    settings = TrainConfig(**{"length": 10, "batch_tokens": 24, **train})
    return TwoWayLanguageModelTask.prepare(DATA, WORDS, Config(**SIZES), settings, 0)


def elmo(**changes: Any) -> Elmo:
    torch.manual_seed(0)
    return Elmo(Config(**{**SIZES, **changes})).double()


def number(word: str) -> int:
    return WORDS.encode_ids([word])[0][0]


def test_the_words_that_are_predicted_are_the_most_frequent():
    # four times, thrice, and of those that come twice the first by the alphabet: "sat" is one too many
    expected = ["on", "the", ".", "cat", "The", "and", "dog", "mat"]
    assert [WORDS.piece(number) for number in range(4, 12)] == expected
    sizes = TwoWayLanguageModelTask.sizes(DATA, WORDS)
    assert sizes == {"vocabulary_size": 12, "head": "language_model"}


def test_a_text_is_read_sentence_by_sentence_and_a_long_one_is_cut():
    sentences = prepared().train
    assert sentences.lengths.tolist() == [len(words) for words in SENTENCES]
    for row, words in enumerate(SENTENCES):
        batch = sentences.batch([row])
        assert torch.equal(sentences.splitter.read(batch.words), Characters(6)([words]))
        expected = [number(word) for word in words]
        assert UNKNOWN in [number(word) for words in SENTENCES for word in words]
        assert batch.ahead.tolist() == [[*expected, END]]
        assert batch.back.tolist() == [[BEGIN, *expected]]
        assert batch.tokens == len(words) + 1


@pytest.mark.parametrize("filled", [False, True])
def test_what_fills_a_batch_up_is_not_asked_for(filled):
    task, model = prepared(), elmo()
    batch = task.batch([0, 2], filled=filled)
    assert batch.words.shape == ((6, 4) if filled else (2, 4))
    assert batch.ahead[1].tolist() == [number("A"), number("cat"), number("."), END, PAD]
    assert batch.back[1].tolist() == [BEGIN, number("A"), number("cat"), number("."), PAD]
    assert not batch.words[2:].any()
    assert (batch.ahead[2:] == PAD).all()
    assert (batch.back[2:] == PAD).all()
    assert batch.tokens == 5 + 4
    total = 0.0
    for words in (SENTENCES[0], SENTENCES[2]):  # word by word, alone
        for logits, targets in zip(
            model.bilm_logits(Characters(6)([words])), ([*words, END], [BEGIN, *words]), strict=True
        ):
            for place, target in enumerate(targets):
                wanted = target if isinstance(target, int) else number(target)
                total -= float(logits[0, place].detach().log_softmax(dim=-1)[wanted])
    assert task.loss(model, batch).item() == pytest.approx(total / 2 / 9, rel=1e-9)


def test_batches_of_an_epoch_come_in_few_shapes_and_have_every_sentence_once():
    task = prepared()
    assert sorted(row for rows in task.epoch(3) for row in rows) == list(range(5))
    assert task.epoch(3) == task.epoch(3)
    shapes = {task.batch(rows, filled=True).words.shape for rows in task.epoch(0)}
    assert shapes <= {(6, 4), (3, 8), (2, 10)}
    assert task.describe() == f"5 sentences, {sum(map(len, SENTENCES))} words"


def test_validation_is_the_mean_over_all_places_and_examining_a_split_is_the_same():
    task, model = prepared(batch_tokens=9), elmo().eval()
    each = [task.loss(model, task.valid.batch([row])).item() * (len(SENTENCES[row]) + 1) for row in (0, 1)]
    found = task.validate(model)
    assert found["loss"] == pytest.approx(sum(each) / 15, rel=1e-6)
    assert found["perplexity"] == pytest.approx(torch.tensor(found["loss"]).exp().item(), rel=1e-6)
    size, unit, scores = task.examine(model, DATA, "valid")
    assert (size, unit, scores) == (2, "sentences", found)


def test_the_gradient_of_both_directions_is_that_of_finite_differences():
    task, model = prepared(), elmo(cell_clip=None, projection_clip=None)
    batch = task.batch([0, 2])
    parameters = dict(model.named_parameters())
    slopes = torch.autograd.grad(task.loss(model, batch), list(parameters.values()))
    for (name, parameter), slope in zip(parameters.items(), slopes, strict=True):
        flat, step = parameter.detach().view(-1), 1e-6
        place = int(slope.abs().argmax())
        before = flat[place].item()
        found = []
        for moved in (before + step, before - step):
            flat[place] = moved
            with torch.no_grad():
                found.append(task.loss(model, batch).item())
        flat[place] = before
        assert slope.view(-1)[place].item() == pytest.approx((found[0] - found[1]) / (2 * step), rel=1e-5), name


def test_half_of_the_loss_is_each_direction():
    task, model = prepared(), elmo()
    batch = task.batch([1, 3])
    ahead, back = model.bilm_logits(task.train.splitter.read(batch.words), batch.lengths)
    sides = [
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        for logits, targets in ((ahead, batch.ahead), (back, batch.back))
    ]
    torch.testing.assert_close(task.loss(model, batch), sum(sides) / 2)
    assert abs(sides[0] - sides[1]) > 1e-3


def test_a_model_that_training_goes_on_with_brings_its_words():
    settings = TrainConfig(length=10)
    again = TwoWayLanguageModelTask.prepare(DATA, Characters(6, WORDS), Config(**SIZES), settings, 0)
    assert again.vocabulary is WORDS
    with pytest.raises(InputError, match="released without the words that it predicts"):
        TwoWayLanguageModelTask.prepare(DATA, Characters(6), Config(**SIZES), settings, 0)


def test_without_a_sentence_there_is_nothing_to_learn():
    empty = Loaded({"train": [Pair("  ", "x")], "valid": [Pair("a", "x")]})
    with pytest.raises(InputError, match="no sentences"):
        TwoWayLanguageModelTask.prepare(empty, WORDS, Config(**SIZES), TrainConfig(), 0)


def test_a_batch_goes_to_a_device_whole():
    batch = prepared().batch([0])
    moved = batch.to(torch.device("meta"))
    assert isinstance(moved, SentenceBatch)
    assert {moved.words.device.type, moved.lengths.device.type, moved.ahead.device.type, moved.back.device.type} == {
        "meta"
    }
    assert moved.tokens == batch.tokens


def test_its_words_come_back_from_a_file():
    again = Vocabulary.from_json(WORDS.to_json(), "here")
    assert [again.encode_ids([word]) for word in ("the", "n't", ".")] == [
        [[number("the")]],
        [[UNKNOWN]],
        [[number(".")]],
    ]
