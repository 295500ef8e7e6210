"""Observing a vision Transformer: a picture in, and out which patches of it were attended to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from qkv.attention import watch
from qkv.attention.layers import attention_layers
from qkv.data.image_file import read_image
from qkv.models.vit import ViT
from qkv.tasks.answer import Answer, AttentionMap
from qkv.tasks.observer import MOST_WEIGHTS, Said, layers_that_fit
from qkv.tasks.picture_scale import model_and_scale
from qkv.types import Float, Tensor

CLASS, MEAN = "[class]", "[mean]"


@dataclass(frozen=True, kw_only=True)
class Pictured(Answer):
    """What a picture is taken for, and what the class token and the patches attended to.

    The rows of each map are the class token, the patches, one row of them after the other, and the mean of all these;
    its columns are the class token and the patches.
    """

    pixels: UInt8[np.ndarray, "height width colours"]  # as the model has seen them
    grid: tuple[int, int]  # how many patches there are one below the other, and side by side


class PictureObserver:
    """A vision Transformer: `PictureObserver("runs/fashion-vit-0")("boot.png").maps`."""

    def __init__(self, model: str | Path | ViT, device: str = "auto") -> None:
        given, self.scale = model_and_scale(model, device)
        self.model: ViT = given.eval()
        self.layers = attention_layers(self.model)

    def __call__(self, path: str | Path) -> Pictured:
        """What the model attends to in one picture."""
        return self.observe([path])[0]

    def observe(self, paths: Sequence[str | Path], layer: str | None = None) -> list[Pictured]:
        """What the model attends to in each picture, scaled to the size that it was made for."""
        config = self.model.config
        pictures = [read_image(Path(path), config.channels, config.height, config.width) for path in paths]
        return [
            self._observed(Path(path).name, pixels, layer, MOST_WEIGHTS // max(1, len(paths)))
            for path, pixels in zip(paths, pictures, strict=True)
        ]

    @torch.inference_mode()
    def _observed(
        self, name: str, pixels: UInt8[np.ndarray, "channels height width"], layer: str | None, most: int
    ) -> Pictured:
        tokens = 1 + self.model.config.patches
        with watch(self.model, layers=layers_that_fit(self.layers, (tokens + 1) * tokens, layer, most)) as seen:
            output = self.model(self.scale(torch.from_numpy(pixels.copy())[None]).to(self.model.device))[0]
        down, across = self.model.config.grid
        patches = [f"{row},{column}" for row in range(1, down + 1) for column in range(1, across + 1)]
        maps = tuple(
            AttentionMap(name, (CLASS, *patches, MEAN), (CLASS, *patches), _with_mean(record.weights[0]).numpy())
            for name, record in seen.items()
        )
        colours = np.moveaxis(pixels.repeat(3, axis=0) if len(pixels) == 1 else pixels, 0, -1)
        return Pictured(name, *self._said(output), maps, pixels=colours, grid=(down, across))

    def _said(self, output: Float[Tensor, "scores"]) -> Said:
        if self.model.config.classes is None:
            return Said()
        score, label = output.float().log_softmax(dim=-1).max(dim=-1)
        return Said(self.model.labels[int(label)], float(score))


def _with_mean(weights: Float[Tensor, "heads tokens tokens"]) -> Float[Tensor, "heads rows tokens"]:
    weights = weights.float().cpu()
    return torch.cat((weights, weights.mean(dim=1, keepdim=True)), dim=1)
