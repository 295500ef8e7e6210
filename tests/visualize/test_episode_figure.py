"""Episodes as a PNG, and the attention of episodes."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.datasets.examples.episodes import FewShotDataset
from qkv.errors import InputError
from qkv.interpret.episode_probe import EpisodeAnswer, EpisodeProbe
from qkv.models.snail import SNAIL, SNAILConfig
from qkv.pipelines.output import AttentionMap, Candidate, Prediction
from qkv.visualize.episode_figure import save_episode_png


def seen(weights: list[float], guess: int = 1, labels: tuple[int, ...] = (2, 1, 0, 1)) -> EpisodeAnswer:
    """Three support images and a query, each of one grey level, and one layer with the given weights."""
    columns = (*(str(label + 1) for label in labels[:-1]), "?")
    pixels = np.stack([np.full((7, 7, 3), 60 * index, dtype=np.uint8) for index in range(len(labels))])
    shares = AttentionMap("trunk.<0>", ("?",), columns, np.array([[weights]], dtype=np.float32))
    predictions = (Prediction("", (Candidate(str(guess + 1), 0.9),)),)
    return EpisodeAnswer(
        "episode <3>", str(guess + 1), math.log(0.9), (shares,), predictions=predictions, pixels=pixels, labels=labels,
        guess=guess,
    )  # fmt: skip


def test_the_cell_with_the_largest_weight_is_darkest(tmp_path: Path):
    image = np.asarray(Image.open(save_episode_png(seen([0.1, 0.7, 0.2, 0.0]), tmp_path / "a.png"))).astype(int)
    height, width, _ = image.shape
    assert width == 12 + 4 * 124
    cells = [int(image[height - 24, 12 + 124 * index + 50].sum()) for index in range(4)]  # asked for, then those shown
    assert cells[2] < cells[3] < cells[1] < cells[0]
    assert image[40, 60].tolist() == [180] * 3  # the picture that is asked for comes first


SIZES = {
    "ways": 3,
    "shots": 2,
    "height": 8,
    "width": 8,
    "conv_channels": 4,
    "conv_layers": 2,
    "image_dim": 5,
    "filters": 4,
}


def examples(ways: int = 3) -> FewShotDataset:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 4, 1, 8, 8), dtype=np.uint8)
    return FewShotDataset(pixels, tuple("abcdefgh"), ways, 2)


def test_recorded_attention_and_prediction_equal_the_model():
    torch.manual_seed(0)
    model = SNAIL(SNAILConfig(**SIZES, key_dims=(4, 6), value_dims=(3, 5)))
    observer, data = EpisodeProbe(model, examples()), examples()
    first, second = observer([4, 9])
    assert first.source == "episode 4"
    assert observer(9).labels == second.labels
    drawn = data.sample(2**31, [4])
    ranked = first.predictions[0].candidates
    assert ranked[0] == (first.text, pytest.approx(np.exp(first.score), abs=1e-6))
    assert sum(p for _, p in ranked) == pytest.approx(1.0, abs=1e-6)
    assert first.labels == (*drawn.labels[0], drawn.query_label[0])
    query = drawn.queries[0, drawn.query_label[0]]
    assert np.array_equal(first.pixels[-1, :, :, 0], data.pixels[query // 4, query % 4, 0])
    assert [one.layer for one in first.attention] == ["trunk.0", "trunk.2"]
    assert first.by_layer.weights.shape == (1, 2, 7)
    assert first.by_layer.weights.sum(axis=-1) == pytest.approx(1.0, abs=1e-5)
    assert first.by_layer.columns == (*(str(label + 1) for label in drawn.labels[0]), "?")
    assert [one.layer for one in observer([4], "trunk.2")[0].attention] == ["trunk.2"]


def test_mismatched_episodes_and_unknown_layers_are_errors():
    model = SNAIL(SNAILConfig(**SIZES, key_dims=(4,), value_dims=(3,)))
    with pytest.raises(InputError, match=r"\[2, 1, 8, 8\].*\[3, 1, 8, 8\]"):
        EpisodeProbe(model, examples(ways=2))
    with pytest.raises(InputError, match="encoder"):
        EpisodeProbe(model, examples())([0], "encoder")
