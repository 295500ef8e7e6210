"""Attention maps of a vision Transformer over the patches of a picture."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from qkv.attention import watch
from qkv.attention.layers import attention_layers
from qkv.datasets.formats.images import ImageSource, image_name, read_image_and_aspect
from qkv.interpret.attention_probe import MAX_WEIGHTS, Prediction, layers_that_fit
from qkv.interpret.attribution import roll_out
from qkv.models.vit import ViT
from qkv.pipelines.inputs.image_preprocessing import as_rgb, pixel_scale
from qkv.pipelines.output import Answer, AttentionMap
from qkv.pipelines.pipeline import ModelSource, Pipeline, one_or_many
from qkv.types import Float, Tensor

CLASS, MEAN = "[class]", "[mean]"
ROLLOUT = "rollout of all layers"


@dataclass(frozen=True, kw_only=True, repr=False)
class PictureAnswer(Answer):
    """The predicted label of a picture, and the attention of the class token and the patches.

    The rows of each map are the class token, the patches in row-major order, and the mean of all these; its columns are
    the class token and the patches.
    """

    pixels: UInt8[np.ndarray, "height width colours"]  # the model's input
    grid: tuple[int, int]  # rows and columns of patches
    aspect: float | None = None  # width / height of the image before it was resized to the model's input
    rollout: AttentionMap | None = None  # through all layers; None if not all of them were recorded


class PictureProbe(Pipeline):
    """A vision Transformer: `PictureProbe("runs/fashion-vit-0")("boot.png").attention`."""

    task_description: ClassVar = "attention over an image"
    model_class: ClassVar = ViT
    input_types: ClassVar = (str, Path, Image.Image)
    model: ViT

    def __init__(self, model: ModelSource, *, device: str | torch.device = "auto") -> None:
        super().__init__(model, device=device)
        self.scale = pixel_scale(model, self.model.config.channels)
        self.layers = attention_layers(self.model)

    @one_or_many
    def __call__(self, images: Sequence[ImageSource], layer: str | None = None) -> list[PictureAnswer]:
        """Return the attention maps of each picture, resized to the model's input size."""
        config = self.model.config
        pictures = [read_image_and_aspect(image, config.channels, config.height, config.width) for image in images]
        names = [Path(image_name(image)).name for image in images]
        return [
            replace(self._probe(name, pixels, layer, MAX_WEIGHTS // max(1, len(images))), aspect=aspect)
            for name, (pixels, aspect) in zip(names, pictures, strict=True)
        ]

    @torch.inference_mode()
    def _probe(
        self, name: str, pixels: UInt8[np.ndarray, "channels height width"], layer: str | None, budget: int
    ) -> PictureAnswer:
        rows, columns = self.model.config.grid
        tokens = 1 + rows * columns
        with watch(self.model, layers=layers_that_fit(self.layers, (tokens + 1) * tokens, layer, budget)) as records:
            output = self.model(self.scale(torch.from_numpy(pixels.copy())[None]).to(self.model.device))[0]
        patches = [f"{row},{column}" for row in range(1, rows + 1) for column in range(1, columns + 1)]
        maps = tuple(
            AttentionMap(name, (CLASS, *patches, MEAN), (CLASS, *patches), _with_mean(record.weights[0]))
            for name, record in records.items()
        )
        rollout = None
        if len(records) == len(self.layers):
            mixed = roll_out(record.weights[0].mean(dim=0).float().cpu() for record in records.values())
            rollout = AttentionMap(ROLLOUT, (CLASS, *patches, MEAN), (CLASS, *patches), _with_mean(mixed[None]))
        return PictureAnswer(
            name, *self._predict(output), maps, pixels=as_rgb(pixels), grid=(rows, columns), rollout=rollout
        )

    def _predict(self, output: Float[Tensor, "scores"]) -> Prediction:
        if self.model.config.classes is None:
            return Prediction()
        score, label = output.float().log_softmax(dim=-1).max(dim=-1)
        return Prediction(self.model.labels[int(label)], float(score))


def _with_mean(weights: Float[Tensor, "heads tokens tokens"]) -> Float[np.ndarray, "heads rows tokens"]:
    weights = weights.float().cpu()
    return torch.cat((weights, weights.mean(dim=1, keepdim=True)), dim=1).numpy()
