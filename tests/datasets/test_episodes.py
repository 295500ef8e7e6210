"""Tests of few-shot episodes: contents, reproducibility and uniformity."""

from dataclasses import replace

import numpy as np
import pytest

from qkv.datasets.corpora.synthetic.bandits import Bandits
from qkv.datasets.counter_rng import CounterRNG
from qkv.datasets.dataset import BanditDataset, EpisodeDataset
from qkv.datasets.examples.episodes import FewShotDataset
from qkv.errors import InputError
from tests.limits import count_calls


def examples(classes: int = 12, each: int = 6, ways: int = 4, shots: int = 2) -> FewShotDataset:
    pixels = np.zeros((classes, each, 1, 2, 2), dtype=np.uint8)
    return FewShotDataset(pixels, tuple(map(str, range(classes))), ways, shots)


@pytest.mark.parametrize(
    ("classes", "each", "ways", "shots"), [(12, 6, 4, 2), (4, 3, 4, 2), (9, 2, 2, 1), (3, 6, 1, 5)]
)
def test_an_episode_has_k_images_per_class_and_unseen_queries(classes, each, ways, shots):
    drawn = examples(classes, each, ways, shots).sample(0, range(50))
    for shown, labels, queries, asked in zip(
        drawn.support, drawn.labels, drawn.queries, drawn.query_label, strict=True
    ):
        assert len(set(shown) | set(queries)) == ways * (shots + 1)
        assert sorted(labels) == sorted([*range(ways)] * shots)
        class_of = dict(zip(labels, shown // each, strict=True))
        assert all(class_of[label] == picture // each for label, picture in zip(labels, shown, strict=True))
        assert [class_of[label] for label in range(ways)] == list(queries // each)
        assert len(set(class_of.values())) == ways
        assert 0 <= asked < ways


def test_an_episode_does_not_depend_on_its_batch():
    data = examples()
    together = data.sample(7, range(20))
    for number in (0, 3, 19):
        alone = data.sample(7, [number])
        for name in ("support", "labels", "queries", "query_label"):
            assert (getattr(alone, name)[0] == getattr(together, name)[number]).all()
    assert data.sample(7, [2**40]).support.tolist() != data.sample(8, [2**40]).support.tolist()
    assert data.sample(7, [5]).support.tolist() == [[41, 16, 14, 38, 21, 0, 1, 18]]


def test_classes_labels_positions_and_images_are_uniform():
    drawn = examples(ways=3, shots=1).sample(1, range(6000))
    by_class = np.bincount((drawn.support // 6).ravel(), minlength=12) / 6000
    by_picture = np.bincount((drawn.queries % 6).ravel(), minlength=6) / 18000
    assert by_class == pytest.approx(3 / 12, abs=0.03)
    assert by_picture == pytest.approx(1 / 6, abs=0.02)
    assert np.bincount(drawn.query_label) / 6000 == pytest.approx(1 / 3, abs=0.03)
    for position in range(3):
        assert np.bincount(drawn.labels[:, position]) / 6000 == pytest.approx(1 / 3, abs=0.03)
    first = drawn.support[np.arange(6000), drawn.labels.argmin(axis=1)] // 6  # the class that bears label 0
    assert np.bincount(first, minlength=12) / 6000 == pytest.approx(1 / 12, abs=0.02)


def test_too_few_classes_or_examples_are_rejected_with_a_hint():
    with pytest.raises(InputError, match=r"3 classes are too few for 4-way episodes: lower data\.ways"):
        examples(classes=3)
    with pytest.raises(InputError, match=r"2 examples per class are too few for 2-shot episodes: lower data\.shots"):
        examples(each=2)
    with pytest.raises(InputError, match="3 classes are too few"):
        examples()[:3]


def test_the_cost_of_a_batch_is_independent_of_the_number_of_episodes_and_classes():
    few, many = (examples(classes, each=20, ways=20, shots=5) for classes in (40, 4000))
    calls = {count_calls(lambda d=data, n=size: d.sample(0, range(n))) for data in (few, many) for size in (1, 32, 320)}
    assert len(calls) == 1  # no loop over episodes or classes
    assert calls.pop() < 500


def test_streams_are_uniform_and_differ_between_seeds_and_indices():
    drawn = CounterRNG(0, range(100)).uniform(1000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert np.histogram(drawn, 10)[0] == pytest.approx(10_000, rel=0.05)
    assert len(np.unique(drawn)) == drawn.size
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 0.15
    rng = CounterRNG(3, [1, 2])
    first, second = rng.uniform(3), rng.uniform(3)
    assert np.array_equal(np.concatenate((first, second), axis=1), CounterRNG(3, [1, 2]).uniform(6))


def test_the_fingerprint_distinguishes_episodes_and_games():
    data = examples()
    loaded = [
        *(EpisodeDataset({"train": one}) for one in (data, data[:8], replace(data, ways=3), replace(data, shots=1))),
        EpisodeDataset({"train": replace(data, pixels=data.pixels + np.uint8(1))}),
        EpisodeDataset({"valid": data}),
        *(BanditDataset({"train": Bandits(*sizes)}) for sizes in ((5, 10), (10, 5))),
    ]
    assert len({one.fingerprint for one in loaded}) == len(loaded)
    assert EpisodeDataset({"train": examples()}).fingerprint == loaded[0].fingerprint
