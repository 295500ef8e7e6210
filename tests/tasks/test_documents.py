"""Documents as a task and as answers: sentences in batches of few shapes, labels, and what counted."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.data.pair import Pair
from qkv.data.registry import LoadedData
from qkv.data.vocabulary import Vocabulary
from qkv.data.wordpiece import learn_wordpieces
from qkv.errors import InputError
from qkv.models.han import HAN, Config
from qkv.tasks.classification import ClassificationTask, label_log_probabilities
from qkv.tasks.document_observer import DocumentObserver
from qkv.tasks.observer import Observer
from qkv.tasks.pieces import SentenceSplitter
from qkv.training.recipe import TrainConfig
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

PAIRS = [
    Pair("A fine film. It has a plot, and a cat.", "positive"),
    Pair("Dull!", "negative"),
    Pair("The cat was fine. The dog was not. The plot was dull. I left.", "negative"),
    Pair("Fine.", "positive"),
]
TEXTS = [pair.source for pair in PAIRS]
VOCABULARY = Vocabulary.train(TEXTS, "word", lowercase=True)
LABELS = ("negative", "positive")


def network(**changes: Any) -> HAN:
    torch.manual_seed(0)
    sizes = {"vocabulary_size": len(VOCABULARY), "embedding": 6, "hidden": 4, "dropout": 0.0}
    model = HAN(Config(**{**sizes, "max_length": 3, "max_words": 6, "label_names": LABELS, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model.eval()


def prepared(model: HAN, **train: Any) -> ClassificationTask:
    data = LoadedData({"train": PAIRS, "valid": PAIRS})
    return ClassificationTask.prepare(data, VOCABULARY, model.config, TrainConfig(**{"batch_tokens": 80, **train}), 0)


def test_documents_are_learned_from_like_other_texts_and_their_limits_are_told():
    task = prepared(network())
    assert task.notes == ("1 training text(s) are read to model.max_length = 3 sentences and no further",)
    assert [len(piece.ids) for piece in task.train] == [3, 1, 3, 1]  # a long sentence goes on as another
    assert sorted(row for rows in task.epoch(0) for row in rows) == [0, 1, 2, 3]
    assert task.capturable


def test_a_filled_batch_of_documents_has_one_of_few_shapes_and_the_same_loss():
    model = network()
    task = prepared(model)
    for rows in ([0, 2], [1, 3], [1]):
        plain, filled = task.batch(rows), task.batch(rows, filled=True)
        assert filled.tokens_read.shape == (80 // 6 // 3, 3)
        torch.testing.assert_close(task.loss(model, filled), task.loss(model, plain))


def test_a_document_is_given_the_same_label_alone_and_among_others():
    model = network()
    splitter = prepared(model).splitter
    together = label_log_probabilities(model, splitter, PAIRS, 80)
    alone = [label_log_probabilities(model, splitter, [pair], 1) for pair in PAIRS]
    torch.testing.assert_close(together, torch.cat(alone))
    cut = Pair("The cat was fine. The dog was not. The plot was dull. Whatever.", "")
    torch.testing.assert_close(label_log_probabilities(model, splitter, [cut], 80)[0], together[2])


@pytest.mark.parametrize("kind", ["word", "wordpiece"])
def test_what_counted_is_the_text_with_weights_that_make_one_whole(kind, tmp_path):
    vocabulary = VOCABULARY if kind == "word" else learn_wordpieces(TEXTS, 60, lowercase=True)
    folder = saved(network(vocabulary_size=len(vocabulary), max_length=9), vocabulary, tmp_path / "han")
    observer, classifier = DocumentObserver(folder, device="cpu"), qkv.Classifier(folder, device="cpu")
    text = "A fine film.\nIt has a plot, and a  cat\tthat is “dull”. ☃ The end"
    found = observer(text)
    assert found.label == classifier(text).label
    assert found.probabilities == pytest.approx(classifier(text).probabilities, abs=1e-6)
    assert "".join("".join(one.text for one in found.sentences).split()) == "".join(text.split())
    assert (found.sentences[0].text, found.left_out) == ("A fine film.", 0)
    assert sum(one.weight for one in found.sentences) == pytest.approx(1, abs=1e-5)
    for one in found.sentences:
        assert len(one.pieces) == len(one.weights)
        assert one.weights.sum() == pytest.approx(1, abs=1e-5)
    assert sum(one.shares.sum() for one in found.sentences) == pytest.approx(1, abs=1e-5)
    assert len({round(float(share), 4) for one in found.sentences for share in one.shares}) > 5


def test_the_weights_shown_are_those_of_the_words_they_stand_by():
    model = network(max_length=9)
    observer = DocumentObserver(model, VOCABULARY)
    found = observer(TEXTS[2])
    assert [one.pieces[-1] for one in found.sentences] == ["."] * 4
    for one in islice(found.sentences, 2):
        tokens = torch.tensor([[VOCABULARY.encode(one.text).ids]])
        with qkv.watch(model) as seen, torch.no_grad():
            model(tokens)
        np.testing.assert_allclose(one.weights, seen["words"].weights[0, 0, 0].numpy(), atol=1e-6)


def test_a_document_has_an_embedding_like_any_text():
    model = network(head=None, label_names=())
    found = qkv.Embedder(model, VOCABULARY)(TEXTS, normalise=False, batch_tokens=12)
    splitter = SentenceSplitter(VOCABULARY, 6)
    for row, numbers in zip(found, splitter.split(TEXTS), strict=True):
        hidden = model(splitter.read(torch.tensor([numbers[:3]])))
        torch.testing.assert_close(row, hidden[0].mean(dim=0).detach())


def test_what_was_not_read_is_counted():
    found = DocumentObserver(network(), VOCABULARY)(TEXTS[2])
    assert (len(found.sentences), found.left_out) == (3, 1)
    assert sum(one.weight for one in found.sentences) == pytest.approx(1, abs=1e-5)


def test_what_cannot_be_shown_is_refused_in_words(tmp_path):
    with pytest.raises(InputError, match="input 2 is empty"):
        DocumentObserver(network(), VOCABULARY).observe(["fine", " \n"])
    with pytest.raises(InputError, match="input 1 is empty"):
        qkv.Classifier(network(), VOCABULARY)("\n\n")
    with pytest.raises(InputError, match="was trained with pooling = 'mean', and has no attention to look at"):
        DocumentObserver(network(pooling="mean"), VOCABULARY)
    with pytest.raises(InputError, match="reads documents by their sentences: see them with a DocumentObserver"):
        Observer(network(), VOCABULARY)
    with pytest.raises(InputError, match="holds a Bert, which does not read by sentences"):
        DocumentObserver(tiny_bert("classifier"), tiny_tokenizer(tmp_path))
