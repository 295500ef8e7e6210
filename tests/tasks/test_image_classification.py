"""Image classification task: batches, augmentation, metrics, and training."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.dataset import ImageDataset
from qkv.datasets.formats.images import LabeledImages
from qkv.models.vit import ViT, ViTConfig
from qkv.pipelines.inputs.image_preprocessing import scale_pixels
from qkv.registry import lookup
from qkv.tasks.image_classification import ImageClassificationTask, cutout, distort, shift_crop
from qkv.training import job
from qkv.training.recipe import read_recipe
from tests.tasks.settings import prepare


def squares(count: int, seed: int) -> LabeledImages:
    """A bright square in one of the four corners, which is the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    pixels = rng.integers(0, 60, (count, 1, 8, 8), dtype=np.uint8)
    for picture, label in zip(pixels, labels, strict=True):
        row, column = divmod(int(label), 2)
        picture[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 255
    return LabeledImages(pixels, labels, ("north-west", "north-east", "south-west", "south-east"))


def prepared(count: int = 50, **train: Any) -> ImageClassificationTask:
    data = ImageDataset({"train": squares(count, 0), "valid": squares(30, 1)})
    return prepare(ImageClassificationTask, data, None, None, **{"batch_size": 16, **train})


def small(task: ImageClassificationTask) -> ViT:
    torch.manual_seed(0)
    sizes = ImageClassificationTask.sizes(ImageDataset({"train": task.train}), None)
    return ViT(ViTConfig(**sizes, patch=4, dim=16, layers=1, heads=2, ffn_dim=32))


def test_model_sizes_come_from_the_data():
    config = small(prepared()).config
    assert (config.classes, config.channels, config.height, config.width) == (4, 1, 8, 8)
    assert config.label_names[0] == "north-west"


def test_an_epoch_has_every_picture_once_in_a_new_order():
    task = prepared()
    first, second, again = (task.epoch(number) for number in (0, 1, 0))
    assert sorted(row for rows in first for row in rows) == list(range(50))
    assert first == again != second
    assert [len(rows) for rows in first] == [16, 16, 16, 2]


def test_a_padded_batch_has_the_same_loss():
    task = prepared(label_smoothing=0.1)
    model = small(task).eval()
    rows = task.epoch(0)[-1]
    plain, padded = task.batch(rows), task.batch(rows, padded_to_shape=True)
    assert len(plain.labels) == 2
    assert len(padded.labels) == 16
    torch.testing.assert_close(task.loss(model, padded), task.loss(model, plain))
    expected = F.cross_entropy(model(task.images(plain)), plain.labels, label_smoothing=0.1)
    torch.testing.assert_close(task.loss(model, plain), expected)


@pytest.mark.parametrize("augmentation", [{"shift": 2}, {"flip": True}, {"cutout": 3}, {"distort": 0.2}])
def test_augmentation_varies_by_epoch_and_is_reproducible(augmentation):
    task, again = (prepared(**augmentation) for _ in range(2))
    rows = task.epoch(3)[0]
    again.epoch(3)
    first, second = task.images(task.batch(rows)), again.images(again.batch(rows))
    assert torch.equal(first, second)
    assert not torch.equal(first, prepared().images(prepared().batch(rows)))
    again.epoch(4)
    assert not torch.equal(first, again.images(again.batch(rows)))


def test_cutout_is_clipped_to_the_picture():
    pixels = torch.full((2, 3, 5, 6), 7, dtype=torch.uint8)
    result = cutout(pixels, 3, torch.tensor([[-1, 4], [1, 2]]))
    expected = pixels.clone()
    expected[0, :, 0:2, 4:6] = 0
    expected[1, :, 1:4, 2:5] = 0
    assert torch.equal(result, expected)
    assert cutout(pixels, 0, torch.zeros(2, 2, dtype=torch.long)) is pixels


def test_cutouts_are_spread_over_the_picture():
    task = prepared(count=4000, batch_size=4000, cutout=4)
    hidden = (cutout(torch.ones(4000, 1, 8, 8), 4, task.batch(task.epoch(0)[0]).cutouts) == 0).float().mean(0)[0]
    assert 0.1 < hidden.min() < hidden.max() < 0.3
    assert hidden[3:5, 3:5].mean() > hidden[0, 0]  # more squares overlap the centre


def test_distort_samples_pictures_at_mapped_positions():
    pixels = torch.randint(256, (2, 1, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    identity, quarter_turn = torch.eye(2), torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    turned = distort(pixels, torch.stack((identity, quarter_turn)))
    torch.testing.assert_close(turned[0], pixels[0].float(), rtol=0, atol=0.01)
    # The value at (x, y) is that of the picture at (-y, x).
    torch.testing.assert_close(turned[1], pixels[1].float().rot90(1, (-2, -1)), rtol=0, atol=0.01)
    shrunk = distort(pixels, 3 * identity.expand(2, 2, 2))
    assert (shrunk[:, :, 0] == 0).all()


def test_mixup_mixes_pictures_and_losses():
    task = prepared(mixup=0.4, label_smoothing=0.1)
    model, rows = small(task).eval(), task.epoch(0)[-1]
    assert len(rows) == 2
    batch, padded = task.batch(rows), task.batch(rows, padded_to_shape=True)
    assert ((batch.mix > 0) & (batch.mix < 1)).all()
    assert torch.equal(batch.mix, task.batch(rows).mix)
    pixels, terms = scale_pixels(torch.from_numpy(task.train.pixels[rows])), []
    for row, other in ((0, 1), (1, 0)):
        weight = batch.mix[row]
        logits = model((weight * pixels[row] + (1 - weight) * pixels[other])[None])
        of = [F.cross_entropy(logits, batch.labels[[index]], label_smoothing=0.1) for index in (row, other)]
        terms.append(weight * of[0] + (1 - weight) * of[1])
    torch.testing.assert_close(task.loss(model, batch), torch.stack(terms).mean())
    torch.testing.assert_close(task.loss(model, padded), task.loss(model, batch))


def test_cutmix_pastes_a_rectangle_of_the_partner():
    task = prepared(cutmix=0.5, mixup=0.3, label_smoothing=0.1)
    model, rows = small(task).eval(), task.epoch(0)[0]
    batch = task.batch(rows)
    pixels = scale_pixels(torch.from_numpy(task.train.pixels[rows])).flatten(2)
    height, width = task.train.pixels.shape[2:]
    expected, boxes = [], 0
    for row, (top, left, bottom, right) in enumerate(batch.boxes.tolist()):
        own, partner, weight = pixels[row], pixels[len(rows) - 1 - row], batch.mix[row]
        inside = [top <= index // width < bottom and left <= index % width < right for index in range(height * width)]
        if any(inside):
            boxes += 1
            assert weight == pytest.approx(1 - sum(inside) / len(inside))
            expected.append(torch.where(torch.tensor(inside), partner, own))
        else:
            expected.append(weight * own + (1 - weight) * partner)
    images = task.images(batch)
    torch.testing.assert_close(images.flatten(2), torch.stack(expected))
    assert 0 < boxes < len(rows)
    logits = model(images)
    own, other = (
        F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="none")
        for labels in (batch.labels, batch.labels.flip(0))
    )
    torch.testing.assert_close(task.loss(model, batch), (batch.mix * own + (1 - batch.mix) * other).mean())


def test_rectangles_of_cutmix_cover_every_pixel_and_their_area_is_spread():
    task = prepared(cutmix=0.999999)
    batches = []
    for number in range(60):
        batches += [task.batch(rows) for rows in task.epoch(number)]
    mix = torch.cat([batch.mix for batch in batches])
    assert ((mix >= 0) & (mix <= 1)).all()
    assert mix.min() < 0.2
    assert mix.max() > 0.95
    assert 0.55 < mix.mean() < 0.8  # 1/2 without clipping to the picture
    height, width = task.train.pixels.shape[2:]
    covered = torch.zeros(height, width)
    for top, left, bottom, right in torch.cat([batch.boxes for batch in batches]).tolist():
        covered[top:bottom, left:right] += 1
    assert covered.min() > 0


def test_shift_crop_moves_pictures_by_all_offsets():
    pixels = torch.randint(1, 256, (200, 3, 6, 5), dtype=torch.uint8)
    expanded = F.pad(pixels, (2, 2, 2, 2))
    offsets = set()
    generator = torch.Generator().manual_seed(0)
    for before, after in zip(
        expanded, shift_crop(pixels, 2, torch.randint(5, (200, 2), generator=generator)), strict=True
    ):
        matches = [
            (down, right)
            for down in range(5)
            for right in range(5)
            if torch.equal(before[:, down : down + 6, right : right + 5], after)
        ]
        assert len(matches) == 1
        offsets.add(matches[0])
    assert len(offsets) == 25
    assert shift_crop(pixels, 0, torch.zeros(200, 2, dtype=torch.long)) is pixels


def test_scale_pixels_maps_bytes_to_minus_one_to_one():
    assert scale_pixels(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1.0, 1.0]


def test_scores_equal_a_loop_over_the_pictures():
    task = prepared(batch_size=7)
    model = small(task).eval()
    losses, right = [], 0
    for pixels, label in zip(task.valid.pixels, task.valid.labels, strict=True):
        logits = model(torch.from_numpy(pixels)[None].float() / 127.5 - 1)[0]
        losses.append(-logits.log_softmax(0)[label].item())
        right += int(logits.argmax().item() == label)
    scores = task.validate(model)
    assert scores["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert scores["accuracy"] == right / len(losses)


def test_a_small_model_learns_it():
    task = prepared(count=200)
    model = small(task)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for epoch in range(12):
        for rows in task.epoch(epoch):
            optimizer.zero_grad()
            task.loss(model, task.batch(rows)).backward()
            optimizer.step()
    assert task.validate(model.eval())["accuracy"] > 0.95


def test_a_run_on_pictures_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = ImageDataset({"train": squares(40, 0), "valid": squares(10, 1), "test": squares(10, 2)})
    monkeypatch.setattr(lookup("dataset", "fashion_mnist"), "read", lambda _: data)
    sizes = ["model.dim=8", "model.heads=2", "model.layers=1", "train.batch_size=20", "train.save_every=1"]
    whole = job.begin(read_recipe("fashion-vit", [*sizes, "train.epochs=2"]), tmp_path / "run", "cpu")
    assert whole.state.finished
    shutil.rmtree(whole.run.checkpoints[-1])
    again = job.resume(tmp_path / "run", "cpu")
    assert again.state.step == whole.state.step


def test_mistakes_have_their_pictures():
    task = prepared()
    data = ImageDataset({"train": task.train, "valid": squares(30, 1)})
    files = tuple(f"/photos/{number}.png" for number in range(30))
    data = replace(data, splits={**data.splits, "valid": replace(data.splits["valid"], files=files)})
    model = small(task).eval()
    evaluation = prepare(ImageClassificationTask, data, None, model.config).evaluate(model, data, "valid")
    assert evaluation.mistakes
    assert {mistake.source for mistake in evaluation.mistakes} == set(evaluation.pictures)
    for source, picture in evaluation.pictures.items():
        assert np.array_equal(picture[:, :, 0], data.splits["valid"].pixels[files.index(source), 0])
