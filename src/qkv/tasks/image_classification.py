"""Telling pictures apart as a task to learn: from the pixels of a picture to its label."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.data.pictures import Pictures
from qkv.data.registry import Loaded
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.models.vit import ViT
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Int, Shaped, Tensor


@dataclass(frozen=True)
class PictureBatch:
    """Some pictures, as numbers from -1 to 1, and their labels."""

    images: Float[Tensor, "batch channels height width"]
    labels: Int[Tensor, "batch"]
    counted: Int[Tensor, "batch"]  # 1, or 0 for one that only fills the batch up

    @property
    def tokens(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "PictureBatch":
        return PictureBatch(self.images.to(device), self.labels.to(device), self.counted.to(device))


@dataclass
class ImageClassificationTask(ScoredTask):
    """Pictures in an order that the seed decides, each in its epoch a little moved, and half of them mirrored."""

    title = "telling pictures apart"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "accuracy": Metric("accuracy", percent=True),
    }
    model = ViT
    learns_from = "pictures"
    from_data = ("classes", "label_names", "height", "width", "channels")
    capturable = True

    train: Pictures
    valid: Pictures
    settings: Settings
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.vocabulary = None
        self.number = 0  # of the epoch

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        side = table.get("patch", 16)
        return {"classes": 1, "label_names": (), "height": side, "width": side, "channels": 1}

    @classmethod
    def sizes(cls, data: Loaded, vocabulary: None) -> dict[str, Any]:
        train = data.pictures["train"]
        _, channels, height, width = train.pixels.shape
        return {
            "classes": len(train.names), "label_names": train.names,
            "height": height, "width": width, "channels": channels,
        }  # fmt: skip

    @classmethod
    def prepare(
        cls, data: Loaded, vocabulary: None, model: Any, train: Settings, seed: int
    ) -> "ImageClassificationTask":
        pictures = data.pictures["train"]
        if len(pictures) < 1:
            raise InputError("there are no pictures to train on")
        return cls(pictures, data.pictures["valid"], train, seed, data.notes)

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
        images = scaled(moved(torch.from_numpy(self.train.pixels[rows]), self.settings.shift, chance))
        if self.settings.mirror:
            images = torch.where(torch.rand(len(rows), 1, 1, 1, generator=chance) < 0.5, images.flip(-1), images)
        labels, counted = torch.from_numpy(self.train.labels[rows]), torch.ones(len(rows), dtype=torch.long)
        missing = self.settings.batch_tokens - len(rows) if filled else 0
        if missing > 0:
            images = torch.cat((images, images[:1].expand(missing, -1, -1, -1)))
            labels, counted = (F.pad(one, (0, missing)) for one in (labels, counted))
        return PictureBatch(images, labels, counted)

    def loss(self, model: ViT, batch: PictureBatch) -> Float[Tensor, ""]:
        each = F.cross_entropy(
            model(batch.images).float(), batch.labels, label_smoothing=self.settings.label_smoothing, reduction="none"
        )
        return (each * batch.counted).sum() / batch.counted.sum()

    def validate(self, model: ViT) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: Loaded) -> list[str]:
        return list(data.pictures)

    def examine(self, model: ViT, data: Loaded, split: str) -> Examined:
        return Examined(len(data.pictures[split]), "pictures", self._scores(model, data.pictures[split]))

    @torch.inference_mode()
    def _scores(self, model: ViT, pictures: Pictures) -> dict[str, float]:
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
    pixels: Shaped[Tensor, "batch channels height width"], most: int, chance: torch.Generator
) -> Shaped[Tensor, "batch channels height width"]:
    """Each picture by up to so many pixels up or down and left or right; what comes in at the edge is black."""
    if most == 0:
        return pixels
    count, _, height, width = pixels.shape
    wide = F.pad(pixels, (most, most, most, most))
    down, right = torch.randint(2 * most + 1, (2, count, 1), generator=chance)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    return wide[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
