"""Hierarchical models of documents: batches of sentences, labels, and attention weights."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.datasets.batching import BatchSize
from qkv.datasets.dataset import LabeledTextDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.interpret.attention_probe import AttentionProbe
from qkv.interpret.document_probe import DocumentProbe
from qkv.models.han import HAN, HANConfig
from qkv.pipelines.classifier import label_log_probabilities
from qkv.pipelines.inputs.text_inputs import SentenceExampleEncoder
from qkv.tasks.text_classification import TextClassificationTask
from qkv.tokenizers import WordPieceTokenizer, WordTokenizer
from tests.tasks.settings import prepare
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

PAIRS = [
    Pair("A fine film. It has a plot, and a cat.", "positive"),
    Pair("Dull!", "negative"),
    Pair("The cat was fine. The dog was not. The plot was dull. I left.", "negative"),
    Pair("Fine.", "positive"),
]
TEXTS = [pair.source for pair in PAIRS]
TOKENIZER = WordTokenizer.train(TEXTS, lowercase=True)
LABELS = ("negative", "positive")


def network(**changes: Any) -> HAN:
    torch.manual_seed(0)
    sizes = {"vocab_size": len(TOKENIZER), "embedding_dim": 6, "hidden_dim": 4, "dropout": 0.0}
    model = HAN(HANConfig(**{**sizes, "max_length": 3, "max_words": 6, "label_names": LABELS, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model.eval()


def prepared(model: HAN, **train: Any) -> TextClassificationTask:
    data = LabeledTextDataset({"train": PAIRS, "valid": PAIRS})
    return prepare(TextClassificationTask, data, TOKENIZER, model.config, **{"batch_size": 80, **train})


def test_documents_are_examples_and_truncation_is_noted():
    task = prepared(network())
    assert task.notes == ("1 training text(s) are truncated to model.max_length = 3 sentences",)
    assert [len(example.ids) for example in task.train] == [3, 1, 3, 1]  # a long sentence counts as two
    assert sorted(row for rows in task.epoch(0) for row in rows) == [0, 1, 2, 3]
    assert task.capturable


def test_a_padded_batch_of_documents_has_one_of_few_shapes_and_the_same_loss():
    model = network()
    task = prepared(model)
    for rows in ([0, 2], [1, 3], [1]):
        plain, padded = task.batch(rows), task.batch(rows, padded_to_shape=True)
        assert padded.token_ids.shape == (80 // 6 // 3, 3)
        torch.testing.assert_close(task.loss(model, padded), task.loss(model, plain))


def test_labels_do_not_depend_on_the_rest_of_the_batch():
    model = network()
    encoder = prepared(model).encoder
    together = label_log_probabilities(model, encoder, TEXTS, BatchSize(80))
    alone = [label_log_probabilities(model, encoder, [text], BatchSize(1)) for text in TEXTS]
    torch.testing.assert_close(together, torch.cat(alone))
    truncated = "The cat was fine. The dog was not. The plot was dull. Whatever."
    torch.testing.assert_close(label_log_probabilities(model, encoder, [truncated], BatchSize(80))[0], together[2])


@pytest.mark.parametrize("kind", ["word", "wordpiece"])
def test_pieces_cover_the_text_and_weights_sum_to_one(kind, tmp_path):
    tokenizer = TOKENIZER if kind == "word" else WordPieceTokenizer.train(TEXTS, vocab_size=60, lowercase=True)
    folder = saved(network(vocab_size=len(tokenizer), max_length=9), tokenizer, tmp_path / "han")
    probe, classifier = DocumentProbe(folder, device="cpu"), qkv.Classifier(folder, device="cpu")
    text = "A fine film.\nIt has a plot, and a  cat\tthat is “dull”. ☃ The end"
    document = probe(text)
    assert document.label == classifier(text).label
    assert document.probabilities == pytest.approx(classifier(text).probabilities, abs=1e-6)
    assert "".join("".join(sentence.text for sentence in document.sentences).split()) == "".join(text.split())
    assert (document.sentences[0].text, document.left_out) == ("A fine film.", 0)
    assert sum(sentence.weight for sentence in document.sentences) == pytest.approx(1, abs=1e-5)
    for sentence in document.sentences:
        assert len(sentence.pieces) == len(sentence.weights)
        assert sentence.weights.sum() == pytest.approx(1, abs=1e-5)
    assert sum(sentence.shares.sum() for sentence in document.sentences) == pytest.approx(1, abs=1e-5)
    assert len({round(float(share), 4) for sentence in document.sentences for share in sentence.shares}) > 5


def test_weights_are_those_of_their_words():
    model = network(max_length=9)
    probe = DocumentProbe(model, TOKENIZER)
    document = probe(TEXTS[2])
    assert [sentence.pieces[-1] for sentence in document.sentences] == ["."] * 4
    for sentence in islice(document.sentences, 2):
        tokens = torch.tensor([[TOKENIZER.encode(sentence.text)]])
        with qkv.watch(model) as records, torch.no_grad():
            model(tokens)
        np.testing.assert_allclose(sentence.weights, records["words"].weights[0, 0, 0].numpy(), atol=1e-6)


def test_documents_can_be_embedded():
    model = network(head=None, label_names=())
    vectors = qkv.Embedder(model, TOKENIZER)(TEXTS, normalize=False, batch_size=2)
    encoder = SentenceExampleEncoder(TOKENIZER, 6)
    for row, ids in zip(vectors, encoder.encode(TEXTS), strict=True):
        hidden = model(encoder.lookup(torch.tensor([ids[:3]])))
        torch.testing.assert_close(row, hidden[0].mean(dim=0).detach())


def test_parts_of_long_sentences_are_marked():
    document = DocumentProbe(network(max_words=3, max_length=9), TOKENIZER)(
        "The plot . A good film with a plot . Fine ."
    )
    assert [sentence.continues for sentence in document.sentences] == [False, True, True, False, False]
    assert "".join("".join(each.pieces) for each in document.sentences[1:4]).strip() == "A good film with a plot ."


def test_truncated_sentences_are_counted():
    document = DocumentProbe(network(), TOKENIZER)(TEXTS[2])
    assert (len(document.sentences), document.left_out) == (3, 1)
    assert sum(sentence.weight for sentence in document.sentences) == pytest.approx(1, abs=1e-5)


def test_invalid_inputs_and_models_are_errors(tmp_path):
    with pytest.raises(InputError, match="input 2 is empty"):
        DocumentProbe(network(), TOKENIZER)(["fine", " \n"])
    with pytest.raises(InputError, match="input 1 is empty"):
        qkv.Classifier(network(), TOKENIZER)("\n\n")
    with pytest.raises(InputError, match="pooling = 'mean'"):
        DocumentProbe(network(pooling="mean"), TOKENIZER)
    with pytest.raises(InputError, match="DocumentProbe"):
        AttentionProbe(network(), TOKENIZER)
    with pytest.raises(InputError, match="Bert"):
        DocumentProbe(tiny_bert("classifier"), tiny_tokenizer(tmp_path))
