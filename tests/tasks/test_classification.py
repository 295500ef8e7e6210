"""Classification: texts that are too long, labels that are not known, and what is counted."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.data.pair import Pair
from qkv.data.registry import LoadedData
from qkv.data.vocabulary import BEGIN, END, Vocabulary
from qkv.errors import InputError
from qkv.tasks.classification import ClassificationTask, cut, label_log_probabilities, label_scores
from qkv.tasks.pieces import IGNORE, Splitter
from qkv.training.recipe import TrainConfig
from tests.tasks.text_encoders import TableEncoder

PAIRS = [Pair("good film", "positive"), Pair("bad", "negative"), Pair("a good one", "positive"), Pair("", "negative")]
VOCABULARY = Vocabulary.train([pair.source for pair in PAIRS], "char")
LABELS = ("negative", "positive")
NUMBERS = {"negative": 0, "positive": 1}


def prepared(longest: int = 64, **train: Any) -> ClassificationTask:
    data = LoadedData({"train": PAIRS, "valid": PAIRS})
    model = SimpleNamespace(max_length=longest, label_names=LABELS)
    return ClassificationTask.prepare(data, VOCABULARY, model, TrainConfig(**{"batch_tokens": 40, **train}), 0)


def test_a_text_is_read_between_its_edges_as_far_as_there_is_room():
    whole, short = (cut(Splitter(VOCABULARY), PAIRS[:1], NUMBERS, longest).pieces[0] for longest in (64, 6))
    assert whole.ids == [BEGIN, *VOCABULARY.encode("good film").ids, END]
    assert short.ids == [BEGIN, *VOCABULARY.encode("good").ids, END]
    assert whole.targets == short.targets == 1
    assert prepared(longest=6).notes == ("2 training text(s) are read to model.max_length = 6 tokens and no further",)
    assert prepared(longest=5).notes == ("2 training text(s) are read to model.max_length = 5 tokens and no further",)
    assert prepared(longest=12).notes == ()  # as long as the longest of them: it is read to its end


def test_the_data_decide_the_labels():
    sizes = ClassificationTask.sizes(LoadedData({"train": PAIRS}), VOCABULARY)
    assert sizes == {"vocabulary_size": len(VOCABULARY), "head": "classifier", "labels": 2, "label_names": LABELS}


def test_one_label_is_nothing_to_learn():
    with pytest.raises(InputError, match="all training texts have one label, 'negative': give texts of two"):
        ClassificationTask.sizes(LoadedData({"train": PAIRS[1:2]}), VOCABULARY)


def test_the_loss_is_the_mean_over_texts_and_padding_is_not_read():
    task = prepared()
    model = TableEncoder(len(VOCABULARY), LABELS, "classifier")
    batch = task.batch([0, 1, 2, 3])
    assert batch.tokens == 4
    each = []
    for pair in PAIRS:
        ids = [BEGIN, *(VOCABULARY.encode(pair.source).ids or [1]), END]
        each.append(F.cross_entropy(model.table.weight[ids].sum(dim=0), torch.tensor(NUMBERS[pair.target])).item())
    assert task.loss(model, batch).item() == pytest.approx(sum(each) / 4, rel=1e-5)
    assert task.validate(model)["loss"] == pytest.approx(sum(each) / 4, rel=1e-5)


@pytest.mark.parametrize("budget", [8, 1000])
def test_what_is_said_of_a_text_does_not_depend_on_its_neighbours(budget):
    model = TableEncoder(len(VOCABULARY), LABELS, "classifier")
    together = label_log_probabilities(model, Splitter(VOCABULARY), PAIRS, budget)
    alone = [label_log_probabilities(model, Splitter(VOCABULARY), [pair], budget) for pair in PAIRS]
    torch.testing.assert_close(together, torch.cat(alone))
    torch.testing.assert_close(together.exp().sum(dim=1), torch.ones(4))


def test_a_label_that_the_model_does_not_know_is_never_right():
    log_p = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    found = label_scores(log_p, [Pair("x", "negative"), Pair("y", "neutral")], LABELS)
    assert found == {"loss": pytest.approx(-torch.tensor(0.9).log().item()), "accuracy": 0.5}
    assert cut(Splitter(VOCABULARY), [Pair("x", "neutral")], NUMBERS, 9).pieces[0].targets == IGNORE


def test_a_batch_that_is_filled_up_has_one_of_few_shapes_and_the_same_loss():
    task = prepared()
    model = TableEncoder(len(VOCABULARY), LABELS, "classifier")
    for rows in ([0, 1], [1], [2, 3]):
        plain, filled = task.batch(rows), task.batch(rows, filled=True)
        width = filled.tokens_read.shape[1]
        assert width % 4 == 0
        assert len(filled.lengths) == 40 // width > len(rows)
        assert filled.tokens == plain.tokens == len(rows)
        torch.testing.assert_close(task.loss(model, filled), task.loss(model, plain))
    assert task.loss(model, replace(filled, targets=torch.full_like(filled.targets, IGNORE))).item() == 0


def test_a_filled_batch_is_no_wider_than_the_model_can_read():
    assert prepared(longest=6).batch([0, 1], filled=True).tokens_read.shape == (6, 6)


def test_an_epoch_has_every_text_once():
    task = prepared()
    assert sorted(row for rows in task.epoch(0) for row in rows) == [0, 1, 2, 3]
    assert task.describe() == "4 texts, 2 labels"
