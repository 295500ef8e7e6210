"""Attention maps of a vision Transformer over the patches of a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from qkv.attention import watch
from qkv.attention.layers import attention_layers
from qkv.datasets.formats.images import ImageSource, read_image_for_display, short_names
from qkv.interpret.attention_probe import MAX_WEIGHTS, layers_that_fit
from qkv.interpret.attribution import roll_out
from qkv.interpret.encoder_predictions import rank_labels
from qkv.models.vit import ViT
from qkv.pipelines.inputs.image_preprocessing import pixel_scale
from qkv.pipelines.output import Answer, AttentionMap, Prediction, region_names
from qkv.pipelines.pipeline import ModelSource, Pipeline, one_or_many
from qkv.types import Float, Tensor

CLASS, MEAN = "[class]", "[mean]"
ROLLOUT = "rollout of all layers"


@dataclass(frozen=True, kw_only=True, repr=False)
class PictureAnswer(Answer):
    """The predicted label of a picture, and the attention of the class token and the patches.

    The rows of each map are the class token, the patches in row-major order, and the mean of these patches; of a model
    that classifies the mean, it is the first row and the class token the last. The columns are the class token and the
    patches.
    """

    pixels: UInt8[np.ndarray, "height width colors"]  # the image; the model's input is all of it, resized
    grid: tuple[int, int]  # rows and columns of patches
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
        self.averages = self.model.config.pool == "mean"

    @one_or_many
    def __call__(self, images: Sequence[ImageSource], layer: str | None = None) -> list[PictureAnswer]:
        """Return the attention maps of each picture, resized to the model's input size."""
        config = self.model.config
        shape, count = (config.channels, config.height, config.width), max(1, len(images))
        pictures = [read_image_for_display(image, *shape, count) for image in images]
        return [
            self._probe(name, pixels, shown, layer, MAX_WEIGHTS // count)
            for name, (pixels, shown) in zip(short_names(images), pictures, strict=True)
        ]

    @torch.inference_mode()
    def _probe(
        self,
        name: str,
        pixels: UInt8[np.ndarray, "channels height width"],
        shown: UInt8[np.ndarray, "rows columns colors"],
        layer: str | None,
        budget: int,
    ) -> PictureAnswer:
        rows, columns = self.model.config.grid
        tokens = 1 + rows * columns
        with watch(self.model, layers=layers_that_fit(self.layers, (tokens + 1) * tokens, layer, budget)) as records:
            output = self.model(self.scale(torch.from_numpy(pixels.copy())[None]).to(self.model.device))[0]
        patches = region_names((rows, columns))
        queries = (MEAN, *patches, CLASS) if self.averages else (CLASS, *patches, MEAN)
        maps = tuple(
            AttentionMap(name, queries, (CLASS, *patches), self._rows(record.weights[0]))
            for name, record in records.items()
        )
        rollout = None
        if len(records) == len(self.layers):
            mixed = roll_out(record.weights[0].mean(dim=0).float().cpu() for record in records.values())
            rollout = AttentionMap(ROLLOUT, queries, (CLASS, *patches), self._rows(mixed[None]))
        predictions: tuple[Prediction, ...] = ()
        label, score = "", math.nan
        if self.model.config.classes is not None:
            predictions = (rank_labels("", self.model.labels, output),)
            label, score = predictions[0].candidates[0].text, float(output.float().log_softmax(dim=-1).max())
        return PictureAnswer(
            name, label, score, maps, predictions=predictions, pixels=shown, grid=(rows, columns), rollout=rollout
        )

    def _rows(self, weights: Float[Tensor, "heads tokens tokens"]) -> Float[np.ndarray, "heads rows tokens"]:
        """Return the rows of the class token, of the patches, and their mean; the row of the prediction comes first."""
        of_class, of_patches = weights.float().cpu().split((1, weights.shape[1] - 1), dim=1)
        rows = [of_class, of_patches, of_patches.mean(dim=1, keepdim=True)]
        return torch.cat(rows[::-1] if self.averages else rows, dim=1).numpy()
