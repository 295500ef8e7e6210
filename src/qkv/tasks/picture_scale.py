"""Pictures as the numbers that a model was trained on: a released folder may say which."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from qkv.errors import InputError
from qkv.interop import load_as
from qkv.interop.document import read_object
from qkv.interop.folder import locate
from qkv.models.vit import ViT
from qkv.runtime.device import pick_device
from qkv.types import Float, Shaped, Tensor

PREPROCESSOR = "preprocessor_config.json"  # as Hugging Face's folders have it
BRIGHTEST = 255


@dataclass(frozen=True)
class Scale:
    """(pixel / 255 - mean) / deviation for each channel; by default from -1 to 1, as pictures are in training here."""

    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.5,)

    def __call__(
        self, pixels: Shaped[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        mean, deviation = (torch.tensor(one)[:, None, None] for one in (self.mean, self.deviation))
        return (pixels.float() / BRIGHTEST - mean) / deviation


def model_and_scale(model: str | Path | ViT, device: str) -> tuple[ViT, Scale]:
    """A model, given itself or by its folder, and how pictures are scaled for it."""
    if isinstance(model, ViT):
        return model, Scale()
    loaded = load_as(ViT, model, pick_device(device))
    return loaded, scale_of(locate(model), loaded.config.channels)


def scale_of(folder: Path, channels: int) -> Scale:
    """What the folder of a model says, or the default where it says nothing."""
    path = folder / PREPROCESSOR
    if not os.path.lexists(path):
        return Scale()
    said = read_object(path)
    if said.get("do_rescale", True) is not True or not math.isclose(
        _number(said.get("rescale_factor", 1 / 255)), 1 / 255
    ):
        raise InputError(f"{path}: pixels that are not divided by 255 are not known here")
    if said.get("do_normalize", True) is not True:
        return Scale((0.0,), (1.0,))
    found = {}
    for key in ("image_mean", "image_std"):
        values = said.get(key, [0.5])
        numbers = tuple(map(_number, values)) if isinstance(values, list) else ()
        if len(numbers) not in (1, channels) or not all(map(math.isfinite, numbers)):
            raise InputError(f"{path}: {key} must be a list of a number for each of {channels} channels")
        found[key] = numbers
    if not all(found["image_std"]):
        raise InputError(f"{path}: image_std must not be 0")
    return Scale(found["image_mean"], found["image_std"])


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
