"""Text classification task: truncation, unknown labels, loss and metrics."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.batching import BatchSize
from qkv.datasets.dataset import LabeledTextDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.pipelines.classifier import encode_texts, label_log_probabilities
from qkv.pipelines.inputs.text_inputs import IGNORE, ExampleEncoder
from qkv.tasks.text_classification import TextClassificationTask, label_scores
from qkv.tokenizers import CharTokenizer
from qkv.tokenizers.trained import BEGIN, END
from tests.tasks.settings import prepare
from tests.tasks.text_encoders import TableEncoder

PAIRS = [Pair("good film", "positive"), Pair("bad", "negative"), Pair("a good one", "positive"), Pair("", "negative")]
TEXTS = [pair.source for pair in PAIRS]
TOKENIZER = CharTokenizer.train(TEXTS)
LABELS = ("negative", "positive")
NUMBERS = {"negative": 0, "positive": 1}


def prepared(longest: int = 64, **train: Any) -> TextClassificationTask:
    data = LabeledTextDataset({"train": PAIRS, "valid": PAIRS})
    model = SimpleNamespace(max_length=longest, label_names=LABELS)
    return prepare(TextClassificationTask, data, TOKENIZER, model, **{"batch_size": 40, **train})


def test_texts_get_special_tokens_and_are_truncated():
    encoder = ExampleEncoder(TOKENIZER)
    whole, short = (encode_texts(encoder, ["good film"], longest, [1])[0][0] for longest in (64, 6))
    assert whole.ids == [BEGIN, *TOKENIZER.encode("good film"), END]
    assert short.ids == [BEGIN, *TOKENIZER.encode("good"), END]
    assert whole.targets == short.targets == 1
    assert prepared(longest=6).notes == ("2 training text(s) are truncated to model.max_length = 6 tokens",)
    assert prepared(longest=5).notes == ("2 training text(s) are truncated to model.max_length = 5 tokens",)
    assert prepared(longest=12).notes == ()  # exactly as long as the longest text


def test_labels_come_from_the_data():
    sizes = TextClassificationTask.sizes(LabeledTextDataset({"train": PAIRS}), TOKENIZER)
    assert sizes == {"vocab_size": len(TOKENIZER), "labels": 2, "label_names": LABELS}


def test_a_single_label_is_an_error():
    with pytest.raises(InputError, match="one label, 'negative'"):
        TextClassificationTask.sizes(LabeledTextDataset({"train": PAIRS[1:2]}), TOKENIZER)


def test_loss_is_the_mean_over_texts_and_ignores_padding():
    task = prepared()
    model = TableEncoder(len(TOKENIZER), LABELS, "classifier")
    batch = task.batch([0, 1, 2, 3])
    assert batch.tokens == 4
    each = []
    for pair in PAIRS:
        ids = [BEGIN, *(TOKENIZER.encode(pair.source) or [1]), END]
        each.append(F.cross_entropy(model.table.weight[ids].sum(dim=0), torch.tensor(NUMBERS[pair.target])).item())
    assert task.loss(model, batch).item() == pytest.approx(sum(each) / 4, rel=1e-5)
    assert task.validate(model)["loss"] == pytest.approx(sum(each) / 4, rel=1e-5)


@pytest.mark.parametrize("budget", [8, 1000])
def test_predictions_do_not_depend_on_the_rest_of_the_batch(budget):
    model = TableEncoder(len(TOKENIZER), LABELS, "classifier")
    together = label_log_probabilities(model, ExampleEncoder(TOKENIZER), TEXTS, BatchSize(budget))
    alone = [label_log_probabilities(model, ExampleEncoder(TOKENIZER), [text], BatchSize(budget)) for text in TEXTS]
    torch.testing.assert_close(together, torch.cat(alone))
    torch.testing.assert_close(together.exp().sum(dim=1), torch.ones(4))


def test_an_unknown_label_counts_as_an_error():
    log_p = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    data = LabeledTextDataset({"train": [Pair("x", "neutral")], "valid": []})
    task = prepare(TextClassificationTask, data, TOKENIZER, SimpleNamespace(max_length=9, label_names=LABELS))
    assert task.train[0].targets == IGNORE
    scores = label_scores(log_p, [Pair("x", "negative"), Pair("y", "neutral")], NUMBERS)
    assert scores == {"loss": pytest.approx(-torch.tensor(0.9).log().item()), "accuracy": 0.5}


def test_a_padded_batch_has_one_of_few_shapes_and_the_same_loss():
    task = prepared()
    model = TableEncoder(len(TOKENIZER), LABELS, "classifier")
    for rows in ([0, 1], [1], [2, 3]):
        plain, padded = task.batch(rows), task.batch(rows, padded_to_shape=True)
        width = padded.token_ids.shape[1]
        assert width % 4 == 0
        assert len(padded.lengths) == 40 // width > len(rows)
        assert padded.tokens == plain.tokens == len(rows)
        torch.testing.assert_close(task.loss(model, padded), task.loss(model, plain))
    assert task.loss(model, replace(padded, targets=torch.full_like(padded.targets, IGNORE))).item() == 0


def test_a_padded_batch_is_no_wider_than_max_length():
    assert prepared(longest=6).batch([0, 1], padded_to_shape=True).token_ids.shape == (6, 6)


def test_an_epoch_has_every_text_once():
    task = prepared()
    assert sorted(row for rows in task.epoch(0) for row in rows) == [0, 1, 2, 3]
    assert task.describe() == "4 texts, 2 labels"
