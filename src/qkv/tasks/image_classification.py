"""Telling pictures apart as a task to learn: from the pixels of a picture to its label."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.data.images import LabeledImages
from qkv.data.registry import LoadedData
from qkv.data.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.models.vit import ViT
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Bool, Float, Int, Shaped, Tensor


@dataclass(frozen=True)
class PictureBatch(TensorBatch):
    """Some pictures by their numbers, their labels, and what is done to each; the pixels stay where the model is."""

    rows: Int[Tensor, "batch"]
    labels: Int[Tensor, "batch"]
    counted: Int[Tensor, "batch"]  # 1, or 0 for one that only fills the batch up
    places: Int[Tensor, "batch 2"]  # its first row and column, in the picture with an edge of `shift` black pixels
    mirrored: Bool[Tensor, "batch"]
    covers: Int[Tensor, "batch 2"]  # the first row and column of the square that covers a part of it
    tokens: int  # how many pictures count


@dataclass
class ImageClassificationTask(ScoredTask):
    """Pictures in an order that the seed decides, each in its epoch a little moved, mirrored and covered.

    All of them lie on the model's device, and are altered there: a batch says how.
    """

    title = "telling pictures apart"
    command = "classify"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "accuracy": Metric("accuracy", percent=True),
    }
    model = ViT
    unit = "pictures"
    learns_from = "pictures"
    from_data = ("classes", "label_names", "height", "width", "channels")
    capturable = True

    train: LabeledImages
    valid: LabeledImages
    settings: Settings
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.vocabulary = None
        self.number = 0  # of the epoch
        self.pixels: dict[torch.device, Tensor] = {}  # of all pictures to learn from

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        side = table.get("patch", 16)
        return {"classes": 1, "label_names": (), "height": side, "width": side, "channels": 1}

    @classmethod
    def sizes(cls, data: LoadedData, vocabulary: None) -> dict[str, Any]:
        train = data.images["train"]
        _, channels, height, width = train.pixels.shape
        return {
            "classes": len(train.names), "label_names": train.names,
            "height": height, "width": width, "channels": channels,
        }  # fmt: skip

    @classmethod
    def prepare(
        cls, data: LoadedData, vocabulary: None, model: Any, train: Settings, seed: int
    ) -> "ImageClassificationTask":
        pictures = data.images["train"]
        if len(pictures) < 1:
            raise InputError("there are no pictures to train on")
        return cls(pictures, data.images["valid"], train, seed, data.notes)

    def describe(self) -> str:
        return f"{len(self.train):,} pictures"

    def epoch(self, number: int) -> list[list[int]]:
        self.number = number
        order = list(range(len(self.train)))
        random.Random(f"{self.seed} {number}").shuffle(order)
        size = self.settings.batch_tokens
        return [order[begin : begin + size] for begin in range(0, len(order), size)]

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> PictureBatch:
        chance = torch.Generator().manual_seed(random.Random(f"{self.seed} {self.number} {rows[0]}").getrandbits(63))
        shift, count = self.settings.shift, len(rows)
        places = torch.randint(2 * shift + 1, (count, 2), generator=chance)
        mirrored = (torch.rand(count, generator=chance) < 0.5) & torch.tensor(self.settings.mirror)
        sides = torch.tensor(self.train.pixels.shape[2:])
        covers = (torch.rand(count, 2, generator=chance) * (1 + sides)).long() - self.settings.cover // 2
        batch = PictureBatch(
            torch.tensor(rows), torch.from_numpy(self.train.labels[rows]), torch.ones(count, dtype=torch.long),
            places, mirrored, covers, count,
        )  # fmt: skip
        missing = self.settings.batch_tokens - count if filled else 0
        if missing <= 0:
            return batch
        fill = {name: F.pad(one, (0, 0) * (one.ndim - 1) + (0, missing)) for name, one in batch.tensors.items()}
        return batch.with_tensors(fill)

    def images(self, batch: PictureBatch) -> Float[Tensor, "batch channels height width"]:
        """The pictures of a batch as numbers from -1 to 1, altered as it says."""
        device = batch.rows.device
        if device not in self.pixels:
            self.pixels[device] = torch.from_numpy(self.train.pixels).to(device)
        pixels = moved(self.pixels[device][batch.rows], self.settings.shift, batch.places)
        pixels = torch.where(batch.mirrored[:, None, None, None], pixels.flip(-1), pixels)
        return scaled(covered(pixels, self.settings.cover, batch.covers))

    def loss(self, model: ViT, batch: PictureBatch) -> Float[Tensor, ""]:
        logits = model(self.images(batch)).float()
        each = F.cross_entropy(logits, batch.labels, label_smoothing=self.settings.label_smoothing, reduction="none")
        return (each * batch.counted).sum() / batch.counted.sum()

    def validate(self, model: ViT) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: LoadedData) -> list[str]:
        return list(data.images)

    def examine(self, model: ViT, data: LoadedData, split: str) -> Examined:
        return Examined(len(data.images[split]), "pictures", self._scores(model, data.images[split]))

    @torch.inference_mode()
    def _scores(self, model: ViT, pictures: LabeledImages) -> dict[str, float]:
        total = right = torch.zeros((), dtype=torch.float64, device=model.device)
        for begin in range(0, len(pictures), self.settings.batch_tokens):
            part = pictures[begin : begin + self.settings.batch_tokens]
            labels = torch.from_numpy(part.labels).to(model.device)
            logits = model(scaled(torch.from_numpy(part.pixels)).to(model.device)).float()
            total = total + F.cross_entropy(logits, labels, reduction="sum")
            right = right + (logits.argmax(dim=-1) == labels).sum()
        return {"loss": float(total) / len(pictures), "accuracy": float(right) / len(pictures)}


def scaled(pixels: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Bytes as numbers from -1 to 1, as the released vision Transformers have them too."""
    return pixels.float() / 127.5 - 1


def moved(
    pixels: Shaped[Tensor, "batch channels height width"], most: int, places: Int[Tensor, "batch 2"]
) -> Shaped[Tensor, "batch channels height width"]:
    """Each picture by up to so many pixels up or down and left or right; what comes in at the edge is black."""
    if most == 0:
        return pixels
    count, _, height, width = pixels.shape
    wide = F.pad(pixels, (most, most, most, most))
    row = torch.arange(count, device=pixels.device)[:, None, None]
    down = places[:, 0, None] + torch.arange(height, device=pixels.device)
    right = places[:, 1, None] + torch.arange(width, device=pixels.device)
    return wide[row, :, down[:, :, None], right[:, None, :]].movedim(-1, 1)


def covered(
    pixels: Shaped[Tensor, "batch channels height width"], side: int, corners: Int[Tensor, "batch 2"]
) -> Shaped[Tensor, "batch channels height width"]:
    """Each picture with a black square of so many pixels a side on it, or what of it lies inside (cutout, DeVries and
    Taylor 2017).
    """
    if side == 0:
        return pixels
    height, width = (torch.arange(size, device=pixels.device) for size in pixels.shape[2:])
    top, left = (corners[:, axis, None] for axis in (0, 1))
    rows, columns = (height >= top) & (height < top + side), (width >= left) & (width < left + side)
    return pixels.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)
