"""Explainable predictions for images, whose units are regions: captions, and labels of a vision Transformer."""

from abc import abstractmethod
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from qkv.attention.layers import attention_layers
from qkv.datasets.formats.images import read_image_for_display
from qkv.errors import InputError
from qkv.interpret.explainable import NO_UNIT, Explainable
from qkv.interpret.explainable_decoders import Decoded
from qkv.interpret.explainable_texts import Classified
from qkv.models.vit import ViTConfig
from qkv.pipelines.captioner import Captioner, NamedImage
from qkv.pipelines.image_classifier import ImageClassifier
from qkv.pipelines.inputs.image_preprocessing import as_model_input
from qkv.pipelines.output import region_names
from qkv.types import Bool, Float, Tensor


class ImagePrediction(Explainable):
    """A prediction for an image; its units are the regions of a grid, named row,column."""

    unit = "region"
    grid: tuple[int, int]
    pixels: UInt8[np.ndarray, "height width colors"]  # for display

    def set_image(self, image: NamedImage, inputs: Float[Tensor, "channels height width"]) -> None:
        """Set the input of the model, and the image for display."""
        config = self.model.config
        expected = (config.channels, config.height, config.width)
        if inputs.shape != expected:
            raise InputError(f"{image.name}: is {list(inputs.shape)}, but this model takes {list(expected)}")
        self.pixels = image.pixels
        self.image = inputs[None].to(self.model.device).float()

    @abstractmethod
    def predict(self, images: Float[Tensor, "variants channels height width"]) -> Tensor:
        """Return the logits [variants, outputs, classes] of each output."""

    def forward(self, keep: Bool[Tensor, "variants units"]) -> Float[Tensor, "variants outputs classes"]:
        """Return the logits of each output; regions that are not kept have the mean color."""
        rows, columns = self.grid
        height, width = self.image.shape[2] // rows, self.image.shape[3] // columns
        visible = keep.view(-1, 1, rows, columns).repeat_interleave(height, 2).repeat_interleave(width, 3)
        return self.predict(torch.where(visible.to(self.image.device), self.image, self.baseline))

    @property
    def baseline(self) -> Float[Tensor, "1 channels 1 1"]:
        """The mean of each channel."""
        return self.image.mean(dim=(2, 3), keepdim=True)

    def input_gradients(self, scales: Float[Tensor, "steps"]) -> tuple[Tensor, Tensor]:
        """Return x - x' and the gradients by x, the pixels; x' is the mean color (see `Explainable`)."""
        difference = self.image - self.baseline
        x = (self.baseline + scales.to(self.image.device)[:, None, None, None] * difference).requires_grad_()
        with torch.enable_grad():
            log_p = self.chosen(self.predict(x))
        gradients = self._gradients(log_p, x)[:, 0]
        return self._by_region(difference)[0], self._by_region(gradients)

    def to_input_units(self, values: Float[Tensor, "outputs units"]) -> Float[Tensor, "outputs units"]:
        return values.cpu()

    def _by_region(
        self, images: Float[Tensor, "images channels height width"]
    ) -> Float[Tensor, "images regions features"]:
        """Divide images into their regions, row by row."""
        rows, columns = self.grid
        parts = images.unflatten(3, (columns, -1)).unflatten(2, (rows, -1))  # [images, channels, rows, h, columns, w]
        return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class ImageCaption(Decoded, ImagePrediction):
    """A caption; its units are the regions of the image that the model attends to."""

    def __init__(self, captioner: Captioner, image: str | Path | NamedImage, target: str | None = None) -> None:
        image = image if isinstance(image, NamedImage) else captioner.load_image(image)
        self.begin, self.grid = captioner.special_tokens.begin, captioner.model.config.grid
        units = region_names(self.grid)
        super().__init__(captioner.model, units, torch.arange(len(units)))
        self.set_image(image, as_model_input(torch.from_numpy(image.image.copy())))
        self.layers = self.model.alignment_layers
        ((best, *_),) = captioner.decode(self.image)
        tokenizer = captioner.tokenizer
        self.explain_tokens(tokenizer.decode(best.tokens), [*best.tokens], tokenizer.piece, target)

    def predict(self, images: Float[Tensor, "variants channels height width"]) -> Tensor:
        """Return the logits of each token after those before it."""
        tokens = torch.tensor([[self.begin, *self.tokens[:-1]]], device=images.device).expand(len(images), -1)
        return self.model(images, tokens)[:, self.rows]


class ImageClassification(Classified, ImagePrediction):
    """The label of an image by a vision Transformer; its units are the patches."""

    def __init__(self, classifier: ImageClassifier, image: str | Path | NamedImage, target: str | None = None) -> None:
        config = classifier.model.config
        image = image if isinstance(image, NamedImage) else _read(image, config)
        self.grid = config.grid
        units = region_names(self.grid)
        # The class token is the first position.
        super().__init__(classifier.model, units, torch.tensor([NO_UNIT, *range(len(units))]))
        self.set_image(image, classifier.scale(torch.from_numpy(image.image.copy())[None])[0])
        names = attention_layers(self.model)
        self.layers, self.self_layers = tuple(reversed(names)), tuple(names)
        self.explain_label(target)

    def predict(self, images: Float[Tensor, "variants channels height width"]) -> Tensor:
        """Return the logits of the labels."""
        return self.model(images)[:, None]

    def query_rows(self, output: int) -> list[int]:
        """The class token, or all patches if their mean is classified."""
        return [0] if self.model.config.pool == "class" else [*range(1, len(self.owner))]


def _read(image: str | Path, config: ViTConfig) -> NamedImage:
    """Read an image at the size of the model's input."""
    size = config.channels, config.height, config.width
    return NamedImage(Path(image).name, *read_image_for_display(image, *size, count=1))
