"""Few-shot classification task: batches, metrics, and training."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.dataset import EpisodeDataset
from qkv.datasets.examples.episodes import FewShotDataset
from qkv.models.snail import SNAIL, SNAILConfig
from qkv.registry import lookup
from qkv.tasks.few_shot import EVAL_SEED, FewShotTask, scores
from qkv.training import job
from qkv.training.recipe import read_recipe
from tests.tasks.settings import prepare

SMALL = {
    "conv_channels": 8, "conv_layers": 2, "image_dim": 16, "key_dims": (16, 16), "value_dims": (16, 16), "filters": 16,
}  # fmt: skip


def patterns(classes: int, seed: int, ways: int = 3, shots: int = 1) -> FewShotDataset:
    """Classes are patterns of bright and dark 2 x 2 fields; their pictures add noise."""
    rng = np.random.default_rng(seed)
    fields = rng.integers(0, 2, (classes, 1, 1, 4, 4)) * 180
    noise = rng.integers(0, 60, (classes, 6, 1, 8, 8))
    pixels = fields.repeat(2, axis=-1).repeat(2, axis=-2) + noise
    return FewShotDataset(pixels.astype(np.uint8), tuple(map(str, range(classes))), ways, shots)


def prepared(ways: int = 3, shots: int = 1, **train: Any) -> FewShotTask:
    data = EpisodeDataset({"train": patterns(40, 0, ways, shots), "valid": patterns(20, 1, ways, shots)})
    return prepare(FewShotTask, data, None, None, **{"batch_size": 16, **train})


def small(task: FewShotTask) -> SNAIL:
    torch.manual_seed(0)
    return SNAIL(SNAILConfig(**FewShotTask.sizes(EpisodeDataset({"train": task.train}), None), **SMALL))


def test_model_sizes_come_from_the_data():
    config = small(prepared(ways=4, shots=2)).config
    assert (config.ways, config.shots, config.channels, config.height, config.width) == (4, 2, 1, 8, 8)
    assert config.length == 9


def test_epochs_have_new_episodes_in_full_batches():
    task = prepared()
    first, second = task.epoch(0), task.epoch(1)
    assert [len(rows) for rows in first] == [16, 16, 16]
    numbers = [row for rows in (*first, *second) for row in rows]
    assert numbers == list(range(96))
    assert task.epoch(0) == first


def test_the_query_is_another_picture_of_its_class():
    batch = prepared(ways=4, shots=2).batch(range(50))
    assert batch.tokens == 50
    assert batch.pictures.shape == batch.labels.shape == (50, 9)
    same = batch.pictures[:, :-1] // 6 == batch.pictures[:, -1:] // 6
    assert (same == (batch.labels[:, :-1] == batch.labels[:, -1:])).all()
    assert (same.sum(dim=1) == 2).all()
    assert (batch.pictures[:, :-1] != batch.pictures[:, -1:]).all()
    other = prepared(ways=4, shots=2, seed=1).batch(range(50))
    assert not torch.equal(other.pictures, batch.pictures)


def test_loss_is_that_of_the_query():
    task = prepared(label_smoothing=0.1)
    model, batch = small(task), task.batch([3, 4])
    pixels = torch.from_numpy(task.train.pixels).flatten(0, 1)[batch.pictures].float() / 127.5 - 1
    logits = model(pixels, batch.labels[:, :-1])
    expected = F.cross_entropy(logits, batch.labels[:, -1], label_smoothing=0.1)
    torch.testing.assert_close(task.loss(model, batch), expected)


def test_loss_of_all_queries_is_the_mean_over_episodes_with_one_of_them():
    task = prepared(shots=2, all_queries=True)
    model, batch = small(task), task.batch([3, 4])
    assert batch.labels[:, -3:].tolist() == [[0, 1, 2], [0, 1, 2]]
    pixels = torch.from_numpy(task.train.pixels).flatten(0, 1)[batch.pictures].float() / 127.5 - 1
    losses = []
    for query in range(3):
        episode = torch.cat((pixels[:, :6], pixels[:, 6 + query : 7 + query]), dim=1)
        losses.append(F.cross_entropy(model(episode, batch.labels[:, :6]), batch.labels[:, 6 + query]))
    torch.testing.assert_close(task.loss(model, batch), torch.stack(losses).mean())


def test_distorted_pictures_differ_and_are_reproducible():
    plain, task = prepared(), prepared(distort=0.2)
    model, batch = small(task), task.batch(range(4))
    assert torch.equal(batch.pictures, plain.batch(range(4)).pictures)
    assert torch.equal(batch.distortions, task.batch(range(4)).distortions)
    assert (batch.distortions - torch.eye(2)).abs().max() <= 0.2
    assert task.loss(model, batch) != plain.loss(model, plain.batch(range(4)))


def test_pictures_of_an_episode_are_shifted_independently():
    task = prepared(shift=2)
    batch = task.batch(range(16))
    assert torch.equal(batch.offsets, task.batch(range(16)).offsets)
    assert not torch.equal(batch.offsets, task.batch(range(16, 32)).offsets)
    assert set(batch.offsets.flatten().tolist()) == set(range(5))
    inputs = []

    class Recording(SNAIL):
        def forward(self, pictures, labels):
            inputs.append(pictures)
            return super().forward(pictures, labels)

    model = small(task)
    model.__class__ = Recording
    task.loss(model, batch)
    pixels = torch.from_numpy(task.train.pixels).flatten(0, 1)[batch.pictures].float() / 127.5 - 1
    for row, column in ((0, 0), (7, 3)):
        down, right = (2 - batch.offsets[row, column]).tolist()
        expected = torch.full((1, 12, 12), -1.0)
        expected[:, 2 + down : 10 + down, 2 + right : 10 + right] = pixels[row, column]
        torch.testing.assert_close(inputs[0][row, column], expected[:, 2:10, 2:10])


def test_scores_equal_a_loop_over_all_queries():
    task = prepared(shots=2)
    model, data = small(task).eval(), task.valid
    episodes = data.sample(EVAL_SEED, range(30))
    pixels = torch.from_numpy(data.pixels).flatten(0, 1).float() / 127.5 - 1
    losses, right = [], []
    for support, labels, queries in zip(episodes.support, episodes.labels, episodes.queries, strict=True):
        for answer, query in enumerate(queries):
            pictures = pixels[[*support, query]][None]
            logits = model(pictures, torch.from_numpy(labels)[None])[0]
            losses.append(-logits.log_softmax(0)[answer].item())
            right.append(float(logits.argmax().item() == answer))
    metrics = scores(model, data, 30)
    by_episode = np.array(right).reshape(30, 3).mean(axis=1)
    assert metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(np.mean(right))
    assert metrics["margin"] == pytest.approx(1.96 * by_episode.std(ddof=1) / math.sqrt(30))
    assert math.isnan(scores(model, data, 1)["margin"])


def test_every_run_is_evaluated_on_the_same_episodes():
    task = prepared(valid_size=20)
    model = small(task).eval()
    assert prepared(valid_size=20, seed=5).validate(model) == task.validate(model)
    data = EpisodeDataset({"train": task.train, "valid": task.valid, "test": patterns(20, 2)})
    assert FewShotTask.splits(data) == ["train", "valid", "test"]
    evaluated = task.evaluate(model, data, "test")
    assert (evaluated.size, evaluated.unit) == (1000, "episodes")
    assert set(evaluated.scores) == set(FewShotTask.metrics)


def test_a_small_model_generalises_to_new_classes():
    task = prepared(batch_size=32)
    model = small(task)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for number in range(60):
        optimizer.zero_grad()
        task.loss(model, task.batch(range(32 * number, 32 * number + 32))).backward()
        optimizer.step()
    assert task.validate(model.eval())["accuracy"] > 0.9


def test_a_run_on_episodes_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = EpisodeDataset({split: patterns(20, 0) for split in ("train", "valid", "test")})
    monkeypatch.setattr(lookup("dataset", "omniglot"), "read", lambda _: data)
    sizes = [f"model.{key}={list(size) if isinstance(size, tuple) else size}" for key, size in SMALL.items()]
    train = ["train.batch_size=10", "train.save_every=1", "train.epochs=2", "train.valid_size=5", "train.ema=0"]
    whole = job.begin(read_recipe("omniglot-snail-5way", [*sizes, *train]), tmp_path / "run", "cpu")
    assert whole.state.finished
    assert whole.state.step == 4
    shutil.rmtree(whole.run.checkpoints[-1])
    assert job.resume(tmp_path / "run", "cpu").state.step == 4
