"""Claim 40: the tests of attention on models whose explanation is known, and its error if data are missing."""

from types import SimpleNamespace

import pytest

from qkv.errors import InputError
from qkv.experiments.claims.alignment.attention_as_explanation import AttentionAsExplanation
from qkv.experiments.claims.alignment.explanations import METHODS, choose_outputs, measure_explanations
from qkv.experiments.claims.runner import run_claim
from qkv.pipelines.classifier import Classifier
from tests.interpret.known_models import HONEST, MISLEADING, TEXT, BagOfWords


def classifier(words, strength: float = 8.0) -> Classifier:
    return Classifier(BagOfWords(words, strength).eval(), device="cpu")


@pytest.mark.parametrize(("words", "misleading"), [(HONEST, False), (MISLEADING, True)])
def test_misleading_attention_has_a_smaller_drop_than_the_gradient(words, misleading):
    measured = measure_explanations(classifier(words), classifier(words), [TEXT], adversarial=0)
    assert (measured["drop gradient"] - measured["drop attention"] > 0.1) == misleading
    assert measured["drop leave_one_out"] == pytest.approx(measured["drop gradient"])


def test_the_same_model_agrees_with_itself_in_all_but_random_rankings():
    measured = measure_explanations(classifier(HONEST), classifier(HONEST), [TEXT, TEXT], adversarial=0)
    for method in METHODS[:-1]:
        assert measured[f"agreement {method}"] == pytest.approx(1.0), method
    assert measured["agreement random"] < 1


def test_models_that_predict_different_labels_are_not_compared():
    measured = measure_explanations(classifier(HONEST), classifier(HONEST, -8.0), [TEXT], adversarial=0)
    assert not any(name.startswith("agreement") for name in measured)


def test_other_weights_change_the_output_of_honest_attention():
    measured = measure_explanations(classifier(HONEST, 2.0), classifier(HONEST, 2.0), [TEXT], adversarial=1)
    assert measured["permuted"] > 0.1
    assert measured["adversarial"] < 0.1


def test_inputs_of_one_word_are_left_out():
    pipeline = classifier(HONEST)
    with_one, without = (measure_explanations(pipeline, pipeline, s, 0) for s in ([TEXT, "fine"], [TEXT]))
    assert with_one == without


def test_separators_of_dates_are_not_explained():
    rows = [choose_outputs(SimpleNamespace(outputs=tuple("2026-03-05")), seed) for seed in range(50)]
    assert {row for chosen in rows for row in chosen} == {0, 1, 2, 3, 5, 6, 8, 9}
    assert all(len(set(chosen)) == 3 for chosen in rows)
    assert choose_outputs(SimpleNamespace(outputs=("positive",)), 0) == [0]
    assert choose_outputs(SimpleNamespace(outputs=("-",)), 0) == []


def test_missing_sentences_are_an_error_without_a_record(tmp_path, monkeypatch):
    def offline(url: str, *_: object, **__: object) -> None:
        raise InputError(f"{url}: no connection")

    monkeypatch.setenv("QKV_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("qkv.datasets.dataset_cache.download", offline)
    with pytest.raises(InputError, match="sentence_polarity"):
        run_claim(AttentionAsExplanation, folder=tmp_path / "out", device="cpu")
    assert not list(tmp_path.rglob("records/*.json"))
