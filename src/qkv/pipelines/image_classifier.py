"""Image classification: the label of an image file, with the probability of each label."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from qkv.datasets.batching import batch_by_length
from qkv.datasets.formats.images import ImageSource, image_name, image_of_array, read_image
from qkv.errors import InputError
from qkv.models.vit import ViT
from qkv.pipelines.classifier import Classification
from qkv.pipelines.inputs.image_preprocessing import pixel_scale
from qkv.pipelines.inputs.text_inputs import inference_batch_size
from qkv.pipelines.pipeline import ModelSource, Pipeline, one_or_many
from qkv.registry import names_keywords

BATCH_SIZE = 64  # if none is given


class ImageClassifier(Pipeline):
    """A vision Transformer: `ImageClassifier("runs/fashion-vit-0")("boot.png").label`.

    Images are resized to the model's input size.
    """

    task_description: ClassVar = "image classification"
    model_class: ClassVar = ViT
    input_types: ClassVar = (str, Path, Image.Image)  # or an array
    model: ViT

    @names_keywords
    def __init__(self, model: ModelSource, *, device: str | torch.device = "auto") -> None:
        """Load a model.

        Args:
            model: A training run, a saved model, the name of a model (`qkv models`, or "owner/name" on the Hugging Face
                Hub), or a network.
            device: "auto", "cpu", "cuda", "cuda:N" or "mps".
        """
        super().__init__(model, device=device)
        if self.model.config.classes is None:
            raise InputError(f"{self.name}: has no classification head")
        self.scale = pixel_scale(model, self.model.config.channels)

    @staticmethod
    def as_input(value: Any) -> Any:
        return image_of_array(value) if isinstance(value, np.ndarray) else value

    @one_or_many
    @torch.inference_mode()
    def __call__(
        self, images: Sequence[ImageSource], *, top_k: int | None = None, batch_size: int | None = None
    ) -> list[Classification]:
        """Return the label of one image or several, with the probability of each label.

        Args:
            images: A path, an image of PIL or an array of uint8 [height, width] or [height, width, 3], or several.
            top_k: Number of labels in `probabilities`, the most probable ones; by default all.
            batch_size: Number of images processed at a time; by default as many as fit in memory.

        Returns:
            One `Classification` for each image, with `label`, `score` and `probabilities`.
        """
        config, answers = self.model.config, []
        for rows in batch_by_length([1] * len(images), inference_batch_size(batch_size, BATCH_SIZE)):
            chunk = [images[row] for row in rows]
            pixels = [read_image(image, config.channels, config.height, config.width) for image in chunk]
            logits = self.model(self.scale(torch.from_numpy(np.stack(pixels))).to(self.model.device))
            probabilities = logits.float().softmax(dim=-1).tolist()
            answers += [
                Classification.from_probabilities(image_name(image), self.model.labels, row, top_k)
                for image, row in zip(chunk, probabilities, strict=True)
            ]
        return answers
