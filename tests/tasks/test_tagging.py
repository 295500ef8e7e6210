"""Tagging task: words and their first tokens, long sentences, loss and metrics."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.batching import BatchSize
from qkv.datasets.dataset import TaggedDataset
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.pipelines.inputs.text_inputs import IGNORE, ExampleEncoder
from qkv.pipelines.tagger import encode_sentences, predict_tags
from qkv.tasks.tagging import TaggingTask, tag_scores
from qkv.tokenizers import CharTokenizer
from qkv.tokenizers.trained import BEGIN, END
from tests.tasks.settings import prepare
from tests.tasks.text_encoders import TableEncoder

SENTENCES = [
    Tagged(("the", "cat", "sat"), ("DET", "NOUN", "VERB")),
    Tagged(("a", "dog"), ("DET", "NOUN")),
    Tagged(("cat",), ("NOUN",)),
]
TOKENIZER = CharTokenizer.train([" ".join(one.words) for one in SENTENCES])
LABELS = ("DET", "NOUN", "VERB")
NUMBERS = {name: number for number, name in enumerate(LABELS)}


def prepared(longest: int = 64, **train: Any) -> TaggingTask:
    data = TaggedDataset({"train": SENTENCES, "valid": SENTENCES[:2]})
    model = SimpleNamespace(max_length=longest, label_names=LABELS)
    return prepare(TaggingTask, data, TOKENIZER, model, **{"batch_size": 40, **train})


def test_only_the_first_token_of_a_word_has_a_target():
    encoded = encode_sentences(ExampleEncoder(TOKENIZER), SENTENCES[:1], NUMBERS, 64)
    (example,) = encoded.examples
    assert example.ids == [BEGIN, *TOKENIZER.encode("thecatsat"), END]
    assert example.targets == [IGNORE, 0, *[IGNORE] * 2, 1, *[IGNORE] * 2, 2, *[IGNORE] * 2]
    assert [(word.number, word.position) for word in encoded.words[0]] == [(0, 1), (1, 4), (2, 7)]


@pytest.mark.parametrize("longest", range(3, 14))
def test_long_sentences_are_split_without_losing_words(longest):
    encoded = encode_sentences(ExampleEncoder(TOKENIZER), SENTENCES, NUMBERS, longest)
    assert max(len(example.ids) for example in encoded.examples) <= longest
    words = [(word.sentence, word.number) for part in encoded.words for word in part]
    assert words == [
        (number, index) for number, sentence in enumerate(SENTENCES) for index in range(len(sentence.words))
    ]
    for example, part in zip(encoded.examples, encoded.words, strict=True):
        tags = [SENTENCES[word.sentence].tags[word.number] for word in part]
        assert [example.targets[word.position] for word in part] == [NUMBERS[tag] for tag in tags]
        assert sum(target != IGNORE for target in example.targets) == len(part)


def test_an_empty_word_is_encoded_as_unknown():
    assert ExampleEncoder(TOKENIZER).encode(["", "the"])[0] == [1]


def test_labels_come_from_the_data_and_unknown_tags_are_ignored():
    sizes = TaggingTask.sizes(TaggedDataset({"train": SENTENCES}), TOKENIZER)
    assert sizes == {"vocab_size": len(TOKENIZER), "labels": 3, "label_names": LABELS}
    (example,) = encode_sentences(ExampleEncoder(TOKENIZER), [Tagged(("cat",), ("X",))], NUMBERS, 64).examples
    assert set(example.targets) == {IGNORE}


def test_loss_is_the_mean_over_words():
    task = prepared()
    model = TableEncoder(len(TOKENIZER), LABELS, "tagger")
    batch = task.batch([0, 1, 2])
    assert batch.tokens == 6
    each = [
        F.cross_entropy(model.table.weight[TOKENIZER.encode(word)[0]], torch.tensor(NUMBERS[tag])).item()
        for one in SENTENCES
        for word, tag in zip(one.words, one.tags, strict=True)
    ]
    assert task.loss(model, batch).item() == pytest.approx(sum(each) / 6, rel=1e-5)


@pytest.mark.parametrize("budget", [8, 16, 1000])
@pytest.mark.parametrize("longest", [5, 64])
def test_tags_do_not_depend_on_the_rest_of_the_batch(budget, longest):
    model = TableEncoder(len(TOKENIZER), LABELS, "tagger", longest)
    tags = predict_tags(model, ExampleEncoder(TOKENIZER), SENTENCES, BatchSize(budget))
    alone = [
        [LABELS[int(model.table.weight[TOKENIZER.encode(word)[0]].argmax())] for word in sentence.words]
        for sentence in SENTENCES
    ]
    assert tags == alone


def test_validation_counts_words_and_entities():
    model = TableEncoder(len(TOKENIZER), LABELS, "tagger")
    with torch.no_grad():
        for word, tag in (("the", 0), ("cat", 1), ("sat", 2), ("a", 0), ("dog", 1)):
            model.table.weight[TOKENIZER.encode(word)[0]] = 20 * F.one_hot(torch.tensor(tag), 3).float()
    scores = prepared().validate(model)
    assert scores["accuracy"] == scores["f1"] == 1.0
    assert scores["loss"] < 1e-3
    entities = [Tagged(("x", "y"), ("B-a", "I-a")), Tagged(("z",), ("O",))]
    assert tag_scores([["B-a", "O"], ["O"]], entities) == {"accuracy": pytest.approx(2 / 3), "f1": 0.0}


def test_a_padded_batch_has_one_of_few_shapes_and_the_same_loss():
    task = prepared()
    model = TableEncoder(len(TOKENIZER), LABELS, "tagger")
    for rows in ([0, 1], [2]):
        plain, padded = task.batch(rows), task.batch(rows, padded_to_shape=True)
        width = padded.token_ids.shape[1]
        assert width % 4 == 0
        assert len(padded.lengths) == 40 // width > len(rows)
        assert padded.tokens == plain.tokens
        torch.testing.assert_close(task.loss(model, padded), task.loss(model, plain))


def test_unnamed_tags_are_numbered():
    model = TableEncoder(len(TOKENIZER), LABELS, "tagger")
    model.config.label_names = ()
    model.table.weight.data[TOKENIZER.encode("a")[0]] = torch.tensor([0.0, 0.0, 9.0])
    assert predict_tags(model, ExampleEncoder(TOKENIZER), [Tagged(("a",), ("",))], BatchSize(8)) == [["LABEL_2"]]


def test_an_epoch_has_every_example_once():
    task = prepared()
    assert sorted(row for rows in task.epoch(0) for row in rows) == [0, 1, 2]
    assert task.epoch(3) == task.epoch(3)
    assert task.describe() == "3 sentences"


def test_a_max_length_without_room_for_a_token_is_an_error():
    with pytest.raises(InputError, match=r"model\.max_length = 2"):
        prepared(longest=2)
