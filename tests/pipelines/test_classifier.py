"""The text classifier: probabilities are independent of the batch, and errors."""

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import InputError, TruncationWarning
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.vit import ViT, ViTConfig
from qkv.tokenizers import CharTokenizer
from qkv.tokenizers.trained import BEGIN, END
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

TEXTS = ["A good film.", "bad", "The cat sat on the mat, the dog on the cat.", "Playing dogs!", "good good good", "Zzz"]
LABELS = ("negative", "neutral", "positive")


@pytest.fixture
def classifier(tmp_path):
    model = tiny_bert("classifier", labels=3, label_names=LABELS)
    return qkv.Classifier(saved(model, tiny_tokenizer(tmp_path), tmp_path / "model"), device="cpu")


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_probabilities_do_not_depend_on_the_batch(classifier, batch_size):
    results = classifier(TEXTS, batch_size=batch_size)
    assert [result.text for result in results] == TEXTS
    model, tokenizer = classifier.model, classifier.model.tokenizer
    for text, result in zip(TEXTS, results, strict=True):
        with torch.no_grad():
            alone = model.logits(model(torch.tensor([tokenizer.encode(text, add_special_tokens=True)])))[0].softmax(
                dim=0
            )
        assert result.probabilities == pytest.approx(dict(zip(LABELS, alone.tolist(), strict=True)), abs=1e-5)
        assert result.label == LABELS[int(alone.argmax())] == next(iter(result.probabilities))
        assert [*result.probabilities.values()] == sorted(result.probabilities.values(), reverse=True)
    assert len({result.label for result in results}) > 1
    assert classifier(TEXTS[0]).label == results[0].label
    assert results[0].score == next(iter(results[0].probabilities.values()))


def test_top_k_keeps_the_most_probable_labels(classifier):
    everything = classifier(TEXTS)
    for best, full in zip(classifier(TEXTS, top_k=2), everything, strict=True):
        assert (best.label, best.score) == (full.label, full.score)
        assert [*best.probabilities.items()] == sorted(full.probabilities.items(), key=lambda pair: -pair[1])[:2]
    assert classifier(TEXTS[0], top_k=None) == everything[0] == classifier(TEXTS[0], top_k=9)
    with pytest.raises(InputError, match="top_k"):
        classifier(TEXTS[0], top_k=0)


def test_texts_are_truncated_to_max_length(tmp_path):
    model = tiny_bert("classifier", labels=3, max_length=6)
    classifier = qkv.Classifier(model, tiny_tokenizer(tmp_path))
    long, longer = "the cat sat on", "the cat sat on the mat"
    assert classifier(long).probabilities == pytest.approx(classifier(longer).probabilities, abs=1e-6)
    assert classifier.too_long([long, longer, "a", longer]) == [2, 4]


def test_unnamed_labels_are_named_as_in_transformers(tmp_path):
    classifier = qkv.Classifier(tiny_bert("classifier", labels=2), tiny_tokenizer(tmp_path))
    assert sorted(classifier("good").probabilities) == ["LABEL_0", "LABEL_1"]


def test_a_trained_tokenizer_can_be_used(tmp_path):
    tokenizer = CharTokenizer.train(TEXTS)
    model = tiny_bert("classifier", vocab_size=len(tokenizer), label_names=("no", "yes"), max_length=64)
    classifier = qkv.Classifier(saved(model, tokenizer, tmp_path / "own"), device="cpu")
    ids = [BEGIN, *tokenizer.encode("bad film"), END]
    with torch.no_grad():
        alone = model.logits(model(torch.tensor([ids])))[0].softmax(dim=0)
    assert classifier("bad film").probabilities["yes"] == pytest.approx(float(alone[1]), abs=1e-5)


def test_no_texts_give_no_results_and_an_empty_text_is_an_error(classifier):
    assert classifier([]) == []
    with pytest.raises(InputError, match="input 2 is empty"):
        classifier(["good", " \t"])


@pytest.mark.parametrize(("head", "words"), [(None, "no head"), ("tagger", "the head tagger")])
def test_a_model_with_another_head_is_an_error(head, words, tmp_path):
    folder = saved(tiny_bert(head), tiny_tokenizer(tmp_path), tmp_path / "model")
    with pytest.raises(InputError, match=f"text classification requires .* head classifier, but this one has {words}"):
        qkv.Classifier(folder, device="cpu")


def test_another_kind_of_model_or_a_missing_tokenizer_is_an_error(tmp_path):
    language_model = RNNLM(RNNLMConfig(vocab_size=9, layers=1, embedding_dim=4, hidden_dim=4))
    words = r"is a language model"
    with pytest.raises(InputError, match=words):
        qkv.Classifier(saved(language_model, None, tmp_path / "language-model"), device="cpu")
    with pytest.raises(InputError, match="RNNLM: text classification requires a TextEncoder"):
        qkv.Classifier(language_model)
    vit = ViT(ViTConfig(height=8, width=8, patch=4, dim=8, layers=1, heads=2, ffn_dim=8, classes=2))
    for model in (vit, saved(vit, None, tmp_path / "vit")):
        with pytest.raises(InputError, match=r"qkv\.ImageClassifier"):
            qkv.Classifier(model, device="cpu")
    with pytest.raises(InputError, match="batch_size must be"):
        qkv.Classifier(tiny_bert("classifier"), tiny_tokenizer(tmp_path))(["a"], batch_size=0)
    with pytest.raises(InputError, match="Bert: no tokenizer"):
        qkv.Classifier(tiny_bert("classifier"))


def test_truncated_texts_are_warned_of_once_per_call(classifier, recwarn):
    longest = classifier.max_tokens
    short, long = " ".join(["good"] * longest), " ".join(["good"] * (longest + 1))
    classifier([short, "bad"])
    assert not recwarn
    with pytest.warns(TruncationWarning, match=f"input 2 is truncated .* {longest} tokens") as caught:
        results = classifier([short, long])
    assert [warning.filename for warning in caught] == [__file__]
    assert results[1].probabilities == pytest.approx(results[0].probabilities)
    with pytest.warns(TruncationWarning, match="2 inputs are truncated .* first: input 1"):
        classifier([long, long, short])
    with pytest.warns(TruncationWarning, match="input 1 is truncated"):
        qkv.Embedder(classifier.model)([long])


def test_columns_of_tables_are_lists_of_texts(classifier):
    pandas = pytest.importorskip("pandas")
    labels = [result.label for result in classifier(TEXTS)]
    assert [result.label for result in classifier(pandas.Series(TEXTS))] == labels
    assert [result.label for result in classifier(np.array(TEXTS))] == labels
    for wrong in (np.zeros(2), np.array([TEXTS]), pandas.DataFrame({"text": TEXTS})):
        with pytest.raises(InputError, match="must be str"):
            classifier(wrong)
