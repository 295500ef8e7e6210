"""Classification of pictures: a file in, a label out, with the probability of each label there is."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from qkv.data.image_file import read_image
from qkv.errors import InputError
from qkv.models.vit import ViT
from qkv.tasks.classifier import Classified
from qkv.tasks.picture_scale import model_and_scale

AT_ONCE = 64  # pictures that are looked at together


class PictureClassifier:
    """A vision Transformer: `PictureClassifier("runs/fashion-vit-0")("boot.png").label`.

    It looks at a picture scaled to the size that it was made for.
    """

    def __init__(self, model: str | Path | ViT, device: str = "auto") -> None:
        given, self.scale = model_and_scale(model, device)
        if given.config.classes is None:
            name = "the ViT" if isinstance(model, ViT) else str(model)
            raise InputError(f"{name} has no head for classes, and gives representations alone: train it with one")
        self.model: ViT = given.eval()

    def __call__(self, path: str | Path) -> Classified:
        """The label of one picture."""
        return self.classify([path])[0]

    @torch.inference_mode()
    def classify(self, paths: Sequence[str | Path]) -> list[Classified]:
        """The label of each picture; of `Classified`, the text is where the picture lies."""
        config, found = self.model.config, []
        for begin in range(0, len(paths), AT_ONCE):
            some = paths[begin : begin + AT_ONCE]
            pixels = [read_image(Path(path), config.channels, config.height, config.width) for path in some]
            logits = self.model(self.scale(torch.from_numpy(np.stack(pixels))).to(self.model.device))
            rows = logits.float().softmax(dim=-1).tolist()
            found += [self._classified(str(path), row) for path, row in zip(some, rows, strict=True)]
        return found

    def _classified(self, path: str, probabilities: Sequence[float]) -> Classified:
        ranked = sorted(zip(self.model.labels, probabilities, strict=True), key=lambda one: -one[1])
        return Classified(path, ranked[0][0], dict(ranked))
