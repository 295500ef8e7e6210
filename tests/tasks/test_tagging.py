"""Tagging: words and their first tokens, sentences that are too long, and what is counted."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.data.registry import LoadedData
from qkv.data.tagged import Tagged
from qkv.data.vocabulary import BEGIN, END, Vocabulary
from qkv.errors import InputError
from qkv.tasks.pieces import IGNORE, Splitter
from qkv.tasks.tagging import TaggingTask, cut, tag_scores, tags_of
from qkv.training.recipe import TrainConfig
from tests.tasks.text_encoders import TableEncoder

SENTENCES = [
    Tagged(("the", "cat", "sat"), ("DET", "NOUN", "VERB")),
    Tagged(("a", "dog"), ("DET", "NOUN")),
    Tagged(("cat",), ("NOUN",)),
]
VOCABULARY = Vocabulary.train([" ".join(one.words) for one in SENTENCES], "char")
LABELS = ("DET", "NOUN", "VERB")
NUMBERS = {name: number for number, name in enumerate(LABELS)}


def prepared(longest: int = 64, **train: Any) -> TaggingTask:
    data = LoadedData({}, tagged={"train": SENTENCES, "valid": SENTENCES[:2]})
    model = SimpleNamespace(max_length=longest, label_names=LABELS)
    return TaggingTask.prepare(data, VOCABULARY, model, TrainConfig(**{"batch_tokens": 40, **train}), 0)


def test_the_first_token_of_a_word_says_its_tag_and_the_others_say_nothing():
    found = cut(Splitter(VOCABULARY), SENTENCES[:1], NUMBERS, 64)
    (piece,) = found.pieces
    assert piece.ids == [BEGIN, *VOCABULARY.encode("thecatsat").ids, END]
    assert piece.targets == [IGNORE, 0, *[IGNORE] * 2, 1, *[IGNORE] * 2, 2, *[IGNORE] * 2]
    assert [(word.number, word.place) for word in found.words[0]] == [(0, 1), (1, 4), (2, 7)]


@pytest.mark.parametrize("longest", range(3, 14))
def test_a_sentence_that_is_too_long_is_read_in_parts_and_no_word_is_lost(longest):
    found = cut(Splitter(VOCABULARY), SENTENCES, NUMBERS, longest)
    assert max(len(piece.ids) for piece in found.pieces) <= longest
    words = [(word.sentence, word.number) for part in found.words for word in part]
    assert words == [(number, place) for number, one in enumerate(SENTENCES) for place in range(len(one.words))]
    for piece, part in zip(found.pieces, found.words, strict=True):
        tags = [SENTENCES[word.sentence].tags[word.number] for word in part]
        assert [piece.targets[word.place] for word in part] == [NUMBERS[tag] for tag in tags]
        assert sum(target != IGNORE for target in piece.targets) == len(part)


def test_a_word_in_which_nothing_is_left_is_read_as_unknown():
    assert Splitter(VOCABULARY).split(["", "the"])[0] == [1]


def test_the_data_decide_the_labels_and_a_tag_that_is_not_among_them_is_not_asked_for():
    sizes = TaggingTask.sizes(LoadedData({}, tagged={"train": SENTENCES}), VOCABULARY)
    assert sizes == {"vocabulary_size": len(VOCABULARY), "head": "tagger", "labels": 3, "label_names": LABELS}
    (piece,) = cut(Splitter(VOCABULARY), [Tagged(("cat",), ("X",))], NUMBERS, 64).pieces
    assert set(piece.targets) == {IGNORE}


def test_the_loss_is_the_mean_over_words():
    task = prepared()
    model = TableEncoder(len(VOCABULARY), LABELS, "tagger")
    batch = task.batch([0, 1, 2])
    assert batch.tokens == 6
    each = [
        F.cross_entropy(model.table.weight[VOCABULARY.encode(word).ids[0]], torch.tensor(NUMBERS[tag])).item()
        for one in SENTENCES
        for word, tag in zip(one.words, one.tags, strict=True)
    ]
    assert task.loss(model, batch).item() == pytest.approx(sum(each) / 6, rel=1e-5)


@pytest.mark.parametrize("budget", [8, 16, 1000])
@pytest.mark.parametrize("longest", [5, 64])
def test_the_tags_are_those_that_each_word_gets_alone(budget, longest):
    model = TableEncoder(len(VOCABULARY), LABELS, "tagger", longest)
    found = tags_of(model, Splitter(VOCABULARY), [one.words for one in SENTENCES], budget)
    alone = [
        [LABELS[int(model.table.weight[VOCABULARY.encode(word).ids[0]].argmax())] for word in one.words]
        for one in SENTENCES
    ]
    assert found == alone


def test_validation_counts_words_and_entities():
    model = TableEncoder(len(VOCABULARY), LABELS, "tagger")
    with torch.no_grad():
        for word, tag in (("the", 0), ("cat", 1), ("sat", 2), ("a", 0), ("dog", 1)):
            model.table.weight[VOCABULARY.encode(word).ids[0]] = 20 * F.one_hot(torch.tensor(tag), 3).float()
    found = prepared().validate(model)
    assert found["accuracy"] == found["f1"] == 1.0
    assert found["loss"] < 1e-3
    entities = [Tagged(("x", "y"), ("B-a", "I-a")), Tagged(("z",), ("O",))]
    assert tag_scores([["B-a", "O"], ["O"]], entities) == {"accuracy": pytest.approx(2 / 3), "f1": 0.0}


def test_a_batch_that_is_filled_up_has_one_of_few_shapes_and_the_same_loss():
    task = prepared()
    model = TableEncoder(len(VOCABULARY), LABELS, "tagger")
    for rows in ([0, 1], [2]):
        plain, filled = task.batch(rows), task.batch(rows, filled=True)
        width = filled.tokens_read.shape[1]
        assert width % 4 == 0
        assert len(filled.lengths) == 40 // width > len(rows)
        assert filled.tokens == plain.tokens
        torch.testing.assert_close(task.loss(model, filled), task.loss(model, plain))


def test_tags_that_nobody_named_are_numbered():
    model = TableEncoder(len(VOCABULARY), LABELS, "tagger")
    model.config.label_names = ()
    model.table.weight.data[VOCABULARY.encode("a").ids[0]] = torch.tensor([0.0, 0.0, 9.0])
    assert tags_of(model, Splitter(VOCABULARY), [["a"]], 8) == [["LABEL_2"]]


def test_an_epoch_has_every_piece_once():
    task = prepared()
    assert sorted(row for rows in task.epoch(0) for row in rows) == [0, 1, 2]
    assert task.epoch(3) == task.epoch(3)
    assert task.describe() == "3 sentences"


def test_a_model_without_room_is_refused():
    with pytest.raises(InputError, match=r"model\.max_length = 2 has no room"):
        prepared(longest=2)
