"""Image classification task."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from qkv.config import NonNegativeFloat, Rate
from qkv.datasets.dataset import ImageDataset
from qkv.datasets.formats.images import LabeledImages
from qkv.datasets.tensor_batch import TensorBatch
from qkv.models.vit import ViT
from qkv.pipelines.inputs.image_preprocessing import scale_pixels, square_side
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation, label_details
from qkv.tasks.base.task import ACCURACY, LOSS, Pixels, Sample, Task, TaskConfig, random_batches
from qkv.types import Bool, Float, Int, Shaped, Tensor


@dataclass(frozen=True)
class PictureBatch(TensorBatch):
    """Images by index, their labels, and their augmentation; the pixels stay on the model's device."""

    rows: Int[Tensor, "batch"]
    labels: Int[Tensor, "batch"]
    valid: Int[Tensor, "batch"]  # 1, or 0 for padding
    offsets: Int[Tensor, "batch 2"]  # top left corner of the crop, in the picture padded by `shift` pixels
    mirrored: Bool[Tensor, "batch"]
    cutouts: Int[Tensor, "batch 2"]  # top left corner of the square that is blanked out
    distortions: Float[Tensor, "batch 2 2"]  # linear maps of the pixel positions
    mix: Float[Tensor, "batch"]  # weight of the label of each picture in its mixture with a partner
    boxes: Int[Tensor, "batch 4"]  # top, left, bottom and right of the rectangle taken from the partner
    partners: Int[Tensor, "batch"]  # indices of the partners
    partner_labels: Int[Tensor, "batch"]
    tokens: int  # number of pictures

    def count_tokens(self) -> int:
        return int(self.valid.sum())


class PixelCache:
    """The pictures of a split by index, copied once to each device that uses them."""

    def __init__(self, pixels: Shaped[Tensor, "pictures channels height width"]) -> None:
        self._on: dict[torch.device, Tensor] = {torch.device("cpu"): pixels}

    def gather(self, indices: Int[Tensor, "*batch"]) -> Shaped[Tensor, "*batch channels height width"]:
        """Return the pictures with these indices, on the device of `indices`."""
        if indices.device not in self._on:
            self._on[indices.device] = self._on[torch.device("cpu")].to(indices.device)
        return self._on[indices.device][indices]


class ImageClassificationConfig(TaskConfig):
    """Options of the task."""

    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy
    shift: Pixels = 0  # maximum random shift in pixels
    flip: bool = False  # random horizontal flip
    cutout: Pixels = 0  # side in pixels of a random black square (DeVries and Taylor 2017)
    distort: Rate = 0.0  # maximum change of each element of a random linear map of the pixel positions
    mixup: NonNegativeFloat = 0.0  # alpha of mixup, 0 for none (Zhang et al. 2018)
    cutmix: Rate = 0.0  # probability of CutMix, a rectangle from another picture, instead of mixup (Yun et al. 2019)


@register("task", "classify_images")
class ImageClassificationTask(Task):
    """Images in random order, randomly shifted, mirrored, distorted, mixed and with a square cut out.

    All pictures are kept and augmented on the model's device; a batch holds the parameters.
    """

    title = "image classification"
    cli_command = "classify"
    metrics: ClassVar = {"loss": LOSS, "accuracy": ACCURACY}
    model = ViT
    unit = "images"
    datasets = (ImageDataset,)
    batch_units = ("examples",)
    config_class = ImageClassificationConfig
    from_data = ("classes", "label_names", "height", "width", "channels")
    evaluation_unit = "images"
    capturable = True

    @classmethod
    def sizes(cls, data: ImageDataset, tokenizer: None) -> dict[str, Any]:
        train = data.splits["train"]
        _, channels, height, width = train.pixels.shape
        return {
            "classes": len(train.names), "label_names": train.names,
            "height": height, "width": width, "channels": channels,
        }  # fmt: skip

    @classmethod
    def reader_options(cls, model: Any) -> dict[str, Any]:
        return {"side": square_side(model), "channels": model.channels}

    def setup(self, data: ImageDataset) -> None:
        self.train, self.valid = data.splits["train"], data.splits["valid"]
        self.number = 0  # of the current epoch
        self.pixel_cache = PixelCache(torch.from_numpy(self.train.pixels))

    def describe(self) -> str:
        return f"{len(self.train):,} images"

    def epoch(self, number: int) -> list[list[int]]:
        self.number = number
        return random_batches(len(self.train), self.train_config.batch_size, self.seed, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> PictureBatch:
        generator = torch.Generator().manual_seed(random.Random(f"{self.seed} {self.number} {rows[0]}").getrandbits(63))
        shift, count = self.options.shift, len(rows)
        offsets = torch.randint(2 * shift + 1, (count, 2), generator=generator)
        mirrored = (torch.rand(count, generator=generator) < 0.5) & torch.tensor(self.options.flip)
        sides = torch.tensor(self.train.pixels.shape[2:])
        cutouts = (torch.rand(count, 2, generator=generator) * (1 + sides)).long() - self.options.cutout // 2
        batch = PictureBatch(
            torch.tensor(rows), torch.from_numpy(self.train.labels[rows]), torch.ones(count, dtype=torch.long),
            offsets, mirrored, cutouts, random_maps((count,), self.options.distort, generator),
            *self._mixtures(count, rows[0]), torch.tensor(rows).flip(0),
            torch.from_numpy(self.train.labels[rows]).flip(0), count,
        )  # fmt: skip
        missing = self.train_config.batch_size - count if padded_to_shape else 0
        if missing <= 0:
            return batch
        padded = {
            name: F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, missing)) for name, tensor in batch.tensors.items()
        }
        return batch.with_tensors(padded)

    def _mixtures(self, count: int, first: int) -> tuple[Float[Tensor, "batch"], Int[Tensor, "batch 4"]]:
        """Draw the weight and the rectangle of each mixture: weight 1 and an empty rectangle without a mixture.

        Mixup draws the weight from Beta(alpha, alpha). In CutMix, the weight is the share of the picture outside the
        rectangle: of the shape of the picture, with a uniform area and a uniform center, clipped to the picture.
        """
        seed = random.Random(f"mixup {self.seed} {self.number} {first}").getrandbits(63)
        rng, alpha = np.random.default_rng(seed), self.options.mixup
        sides = np.array(self.train.pixels.shape[2:])
        reach = np.sqrt(rng.random((count, 1))) * sides / 2
        reach[rng.random(count) >= self.options.cutmix] = 0
        center = rng.random((count, 2)) * sides
        corners = (center - reach).round().clip(0), (center + reach).round().clip(max=sides)
        area = (corners[1] - corners[0]).prod(axis=1) / sides.prod()
        mixed = rng.beta(alpha, alpha, count) if alpha else np.ones(count)
        weights = np.where(reach.any(axis=1), 1 - area, mixed)
        boxes = np.concatenate(corners, axis=1)
        return torch.from_numpy(weights).float(), torch.from_numpy(boxes).long()

    def images(self, batch: PictureBatch) -> Float[Tensor, "batch channels height width"]:
        """Augmented pictures of a batch, as numbers from -1 to 1."""
        pixels = self.pixel_cache.gather(batch.rows)
        if self.options.mixup or self.options.cutmix:
            pixels = mix(pixels, self.pixel_cache.gather(batch.partners), batch.mix, batch.boxes)
        pixels = shift_crop(pixels, self.options.shift, batch.offsets)
        pixels = torch.where(batch.mirrored[:, None, None, None], pixels.flip(-1), pixels)
        if self.options.distort:
            pixels = distort(pixels, batch.distortions)
        return scale_pixels(cutout(pixels, self.options.cutout, batch.cutouts))

    def loss(self, model: ViT, batch: PictureBatch) -> Float[Tensor, ""]:
        logits = model(self.images(batch)).float()
        cross_entropy = partial(F.cross_entropy, label_smoothing=self.options.label_smoothing, reduction="none")
        losses = cross_entropy(logits, batch.labels)
        if self.options.mixup or self.options.cutmix:
            losses = torch.lerp(cross_entropy(logits, batch.partner_labels), losses, batch.mix)
        return (losses * batch.valid).sum() / batch.valid.sum()

    def examples(self, data: ImageDataset, split: str) -> LabeledImages:
        examples = data.splits[split]
        return examples.with_names(self.model_config.label_names, split) if self.model_config.label_names else examples

    def samples(self, model: ViT, count: int) -> list[Sample]:
        images, names = self.valid[:count], self.valid.names
        sources = images.files or [f"image {number + 1}" for number in range(len(images))]
        with torch.inference_mode():
            logits = model(scale_pixels(torch.from_numpy(images.pixels)).to(model.device))
        predicted = (names[label] for label in logits.argmax(dim=-1).tolist())
        return [
            Sample(Path(source).name, label, names[reference])
            for source, label, reference in zip(sources, predicted, images.labels, strict=True)
        ]

    @torch.inference_mode()
    def score_examples(self, model: ViT, examples: LabeledImages) -> dict[str, float]:
        return self._scores(self._logits(model, examples), examples)

    @torch.inference_mode()
    def evaluate(self, model: ViT, data: ImageDataset, split: str) -> Evaluation:
        """All metrics on a split, the scores of each class, and the calibration."""
        examples = self.examples(data, split)
        logits = list(self._logits(model, examples))
        references = [examples.names[label] for label in examples.labels.tolist()]
        sources = examples.files or [f"image {number}" for number in range(1, len(examples) + 1)]
        details = label_details(torch.cat(logits).softmax(dim=-1).cpu(), model.labels, references, sources)
        wrong = {mistake.source for mistake in details["mistakes"]}
        pixels = zip(sources, examples.pixels, strict=True)
        pictures = {source: np.moveaxis(image, 0, -1) for source, image in pixels if source in wrong}
        return Evaluation(
            len(examples), self.evaluation_unit, self._scores(logits, examples), pictures=pictures, **details
        )

    def _logits(self, model: ViT, examples: LabeledImages) -> Iterator[Float[Tensor, "_batch classes"]]:
        """Yield the logits of the classes, batch by batch."""
        for begin in range(0, len(examples), self.train_config.batch_size):
            chunk = examples[begin : begin + self.train_config.batch_size]
            yield model(scale_pixels(torch.from_numpy(chunk.pixels)).to(model.device)).float()

    def _scores(self, batches: Iterable[Float[Tensor, "_batch classes"]], examples: LabeledImages) -> dict[str, float]:
        total, right, size = 0.0, 0.0, self.train_config.batch_size
        for number, logits in enumerate(batches):
            labels = torch.from_numpy(examples.labels[number * size : (number + 1) * size]).to(logits.device)
            total += float(F.cross_entropy(logits, labels, reduction="sum"))
            right += float((logits.argmax(dim=-1) == labels).sum())
        return {"loss": total / len(examples), "accuracy": right / len(examples)}


def shift_crop(
    pixels: Shaped[Tensor, "batch channels height width"], max_shift: int, offsets: Int[Tensor, "batch 2"]
) -> Shaped[Tensor, "batch channels height width"]:
    """Crop each picture, padded with `max_shift` black pixels, to its size at the given offset."""
    if max_shift == 0:
        return pixels
    count, _, height, width = pixels.shape
    padded = F.pad(pixels, (max_shift, max_shift, max_shift, max_shift))
    row = torch.arange(count, device=pixels.device)[:, None, None]
    rows = offsets[:, 0, None] + torch.arange(height, device=pixels.device)
    columns = offsets[:, 1, None] + torch.arange(width, device=pixels.device)
    return padded[row, :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def random_maps(shape: tuple[int, ...], most: float, generator: torch.Generator) -> Float[Tensor, "*shape 2 2"]:
    """Draw 2 x 2 matrices whose elements differ from the unit matrix by at most `most`."""
    if not most:
        return torch.eye(2).expand(*shape, 2, 2)
    return torch.eye(2) + most * (2 * torch.rand(*shape, 2, 2, generator=generator) - 1)


def distort(
    pixels: Shaped[Tensor, "batch channels height width"], maps: Float[Tensor, "batch 2 2"]
) -> Float[Tensor, "batch channels height width"]:
    """Value of each picture at M (x, y), with the origin in the middle, by bilinear interpolation; black outside."""
    y, x = (
        ((torch.arange(side, device=pixels.device) + 0.5) * 2 / side - 1).view(shape)
        for side, shape in zip(pixels.shape[2:], ((-1, 1), (1, -1)), strict=True)
    )
    maps = maps[..., None, None]
    # Not a matrix product, which autocast would round.
    grid = torch.stack([maps[:, row, 0] * x + maps[:, row, 1] * y for row in range(2)], dim=-1)
    return F.grid_sample(pixels.float(), grid, align_corners=False)


def mix(
    pixels: Shaped[Tensor, "batch channels height width"],
    partners: Shaped[Tensor, "batch channels height width"],
    weights: Float[Tensor, "batch"],
    boxes: Int[Tensor, "batch 4"],
) -> Float[Tensor, "batch channels height width"]:
    """Mixtures of pictures: the weighted mean (mixup) or, with a box, the partner inside and the picture outside."""
    inside = _rectangles(boxes, *pixels.shape[2:])
    weights = torch.where(inside.flatten(1).any(dim=1), 1.0, weights)
    mean = torch.lerp(partners.float(), pixels.float(), weights[:, None, None, None])
    return torch.where(inside[:, None], partners.float(), mean)


def _rectangles(boxes: Int[Tensor, "batch 4"], height: int, width: int) -> Bool[Tensor, "batch height width"]:
    """Whether a pixel is in the box (top, left, bottom, right) of each picture."""
    rows, columns = torch.arange(height, device=boxes.device), torch.arange(width, device=boxes.device)
    top, left, bottom, right = boxes[:, :, None].unbind(1)
    return ((rows >= top) & (rows < bottom))[:, :, None] & ((columns >= left) & (columns < right))[:, None, :]


def cutout(
    pixels: Shaped[Tensor, "batch channels height width"], side: int, corners: Int[Tensor, "batch 2"]
) -> Shaped[Tensor, "batch channels height width"]:
    """Blank out a square of `side` pixels in each picture, clipped to the picture (cutout, DeVries and Taylor 2017)."""
    if side == 0:
        return pixels
    boxes = torch.cat((corners, corners + side), dim=1)
    return pixels.masked_fill(_rectangles(boxes, *pixels.shape[2:])[:, None], 0)
