"""Claim 49: probes of layers with known contents, the vectors of a small ELMo, and its error if data are missing."""

import pytest
import torch

from qkv.errors import InputError
from qkv.experiments.claims.pretraining.layer_mix import LayerMix
from qkv.experiments.claims.pretraining.layer_probes import LAYERS, MAX_WORDS, layer_vectors, mix_probe
from qkv.experiments.claims.runner import run_claim
from qkv.models.elmo import Elmo, ElmoConfig

ROWS, HALF = 2000, 1000


def layers_with_label_in(layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return three layers of noise, one of which has the label, and the labels."""
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, 3, 8), torch.randint(2, (ROWS,))
    x[:, layer, 3] += 4 * y
    return x, y


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_mix_finds_the_layer_with_the_label(layer):
    x, y = layers_with_label_in(layer)
    accuracy, weights = mix_probe(x[:HALF], y[:HALF], x[HALF:], y[HALF:])
    assert accuracy > 0.95
    assert sum(weights) == pytest.approx(1.0)
    assert weights.index(max(weights)) == layer
    assert weights[layer] > 0.7


@pytest.mark.parametrize(("layer", "condition"), [(2, "top layer"), (0, "word vectors")])
def test_a_single_layer_has_the_label_or_not(layer, condition):
    x, y = layers_with_label_in(layer)
    for name in ("top layer", "word vectors"):
        part = x[:, LAYERS[name]]
        accuracy, weights = mix_probe(part[:HALF], y[:HALF], part[HALF:], y[HALF:])
        assert weights == [1.0]
        if name == condition:
            assert accuracy > 0.95
        else:
            assert accuracy == pytest.approx(0.5, abs=0.08)


def small_elmo() -> Elmo:
    torch.manual_seed(0)
    config = ElmoConfig(dim=4, hidden_dim=8, filters=((1, 4),), max_characters=8, character_dim=4, highway_layers=1)
    return Elmo(config).eval()


def test_vectors_of_a_word_depend_on_the_context_above_the_first_layer():
    words, other = ["a", "fine", "film"], ["a", "fine", "day", "out"]
    vectors, others = layer_vectors(small_elmo(), [words, other])
    assert vectors.shape == (3, 3, 8)
    assert others.shape == (4, 3, 8)
    torch.testing.assert_close(vectors[1, LAYERS["word vectors"]], others[1, LAYERS["word vectors"]])
    assert not torch.allclose(vectors[1, LAYERS["top layer"]], others[1, LAYERS["top layer"]])


def test_vectors_do_not_depend_on_the_batch():
    model = small_elmo()
    sentences = [["a", "film"], ["a", "very", "fine", "film"]]
    for sentence, vectors in zip(sentences, layer_vectors(model, sentences), strict=True):
        torch.testing.assert_close(layer_vectors(model, [sentence])[0], vectors)


def test_long_sentences_are_truncated():
    (vectors,) = layer_vectors(small_elmo(), [["word"] * (MAX_WORDS + 5)])
    assert len(vectors) == MAX_WORDS


def test_missing_data_are_an_error_without_a_record(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="ud_english_ewt"):
        run_claim(LayerMix, folder=tmp_path / "out", device="cpu")
    assert not list(tmp_path.rglob("records/*.json"))
