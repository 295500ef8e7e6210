"""Image classification: the label of a picture file, with the probability of each label."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from qkv.datasets.image_files import read_image
from qkv.errors import InputError
from qkv.models.vit import ViT
from qkv.pipelines.classifier import Classified
from qkv.pipelines.image_preprocessing import model_and_scale

MAX_BATCH = 64  # pictures per forward pass


class PictureClassifier:
    """A vision Transformer: `PictureClassifier("runs/fashion-vit-0")("boot.png").label`.

    LabeledImages are resized to the model's input size.
    """

    def __init__(self, model: str | Path | ViT, device: str = "auto") -> None:
        loaded, self.scale = model_and_scale(model, device)
        if loaded.config.classes is None:
            name = "the ViT" if isinstance(model, ViT) else str(model)
            raise InputError(f"{name} has no classification head")
        self.model: ViT = loaded.eval()

    def __call__(self, path: str | Path) -> Classified:
        """Classify one picture."""
        return self.classify([path])[0]

    @torch.inference_mode()
    def classify(self, paths: Sequence[str | Path]) -> list[Classified]:
        """Classify each picture; `Classified.text` is its path."""
        config, results = self.model.config, []
        for begin in range(0, len(paths), MAX_BATCH):
            chunk = paths[begin : begin + MAX_BATCH]
            pixels = [read_image(Path(path), config.channels, config.height, config.width) for path in chunk]
            logits = self.model(self.scale(torch.from_numpy(np.stack(pixels))).to(self.model.device))
            rows = logits.float().softmax(dim=-1).tolist()
            results += [self._classified(str(path), row) for path, row in zip(chunk, rows, strict=True)]
        return results

    def _classified(self, path: str, probabilities: Sequence[float]) -> Classified:
        ranked = sorted(zip(self.model.labels, probabilities, strict=True), key=lambda pair: -pair[1])
        return Classified(path, ranked[0][0], dict(ranked))
