"""An episode as a page and as a picture: what was read most stands out, and who is right is told."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.episodes import FewShotDataset
from qkv.errors import InputError
from qkv.models.snail import SNAIL, Config
from qkv.tasks.answer import AttentionMap
from qkv.tasks.episode_probe import EpisodeAnswer, EpisodeProbe
from qkv.view.episode import save_episode_page, save_episode_png


def seen(weights: list[float], guess: int = 1, labels: tuple[int, ...] = (2, 1, 0, 1)) -> EpisodeAnswer:
    """Three pictures with labels and one without, each of one grey, and one layer that reads so much of them."""
    columns = (*(str(label + 1) for label in labels[:-1]), "?")
    pixels = np.stack([np.full((7, 7, 3), 60 * place, dtype=np.uint8) for place in range(len(labels))])
    shares = AttentionMap("trunk.<0>", ("?",), columns, np.array([[weights]], dtype=np.float32))
    return EpisodeAnswer("episode <3>", str(guess + 1), -0.1, (shares,), pixels=pixels, labels=labels, guess=guess)


def bars(page: str) -> list[float]:
    return [float(width) for width in re.findall(r'class="bar" width="([\d.]+)"', page)]


def test_the_page_has_the_picture_asked_for_first_and_a_bar_as_long_as_what_was_read(tmp_path: Path):
    page = save_episode_page([seen([0.1, 0.6, 0.2, 0.1])], tmp_path / "a.html").read_text()
    assert bars(page) == pytest.approx([10, 10, 60, 20])
    assert re.findall(r"<figcaption>(.*?)</figcaption>", page) == ["? -&gt; 2", "class 3", "class 2", "class 1"]
    assert [figure.strip() for figure in re.findall(r'<figure class="(.*?)">', page)] == ["same asked", "", "same", ""]
    assert "taken for class 2 (90.5%), right" in page


def test_a_wrong_answer_is_told_with_the_right_one(tmp_path: Path):
    page = save_episode_page([seen([0.1, 0.6, 0.2, 0.1], guess=0)], tmp_path / "a.html").read_text()
    assert "taken for class 1 (90.5%), wrong: it is class 2" in page


def test_the_page_runs_nothing_and_takes_names_for_text(tmp_path: Path):
    page = save_episode_page([seen([0.25] * 4)], tmp_path / "a.html", title="<script>").read_text()
    assert "<script" not in page
    assert "episode &lt;3&gt;" in page
    assert "trunk.&lt;0&gt;" in page
    assert "default-src 'none'" in page
    with pytest.raises(InputError, match="no episode"):
        save_episode_page([], tmp_path / "b.html")


def test_the_cell_of_what_was_read_most_is_darkest(tmp_path: Path):
    image = np.asarray(Image.open(save_episode_png(seen([0.1, 0.7, 0.2, 0.0]), tmp_path / "a.png"))).astype(int)
    height, width, _ = image.shape
    assert width == 12 + 4 * 124
    cells = [int(image[height - 24, 12 + 124 * place + 50].sum()) for place in range(4)]  # asked for, then those shown
    assert cells[2] < cells[3] < cells[1] < cells[0]
    assert image[40, 60].tolist() == [180] * 3  # the picture that is asked for comes first


def examples(ways: int = 3) -> FewShotDataset:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 4, 1, 8, 8), dtype=np.uint8)
    return FewShotDataset(pixels, tuple("abcdefgh"), ways, 2)


def test_what_is_observed_is_what_the_model_says_and_reads_of_that_episode():
    torch.manual_seed(0)
    model = SNAIL(Config(3, 2, height=8, width=8, maps=4, stages=2, features=5, keys=(4, 6), values=(3, 5), filters=4))
    observer, data = EpisodeProbe(model, examples()), examples()
    first, second = observer.probe([4, 9])
    assert first.source == "episode 4"
    assert observer(9).labels == second.labels
    drawn = data.sample(2**31, [4])
    assert first.labels == (*drawn.labels[0], drawn.query_label[0])
    query = drawn.queries[0, drawn.query_label[0]]
    assert np.array_equal(first.pixels[-1, :, :, 0], data.pixels[query // 4, query % 4, 0])
    assert [one.layer for one in first.maps] == ["trunk.0", "trunk.2"]
    assert first.by_layer.weights.shape == (1, 2, 7)
    assert first.by_layer.weights.sum(axis=-1) == pytest.approx(1.0, abs=1e-5)
    assert first.by_layer.columns == (*(str(label + 1) for label in drawn.labels[0]), "?")
    assert [one.layer for one in observer.probe([4], "trunk.2")[0].maps] == ["trunk.2"]


def test_episodes_or_layers_that_are_not_the_models_are_refused():
    model = SNAIL(Config(3, 2, height=8, width=8, maps=4, stages=2, features=5, keys=(4,), values=(3,), filters=4))
    with pytest.raises(InputError, match=r"\[2, 1, 8, 8\] do not match the model's \[3, 1, 8, 8\]"):
        EpisodeProbe(model, examples(ways=2))
    with pytest.raises(InputError, match="no attention layer matches 'encoder'"):
        EpisodeProbe(model, examples()).probe([0], "encoder")
