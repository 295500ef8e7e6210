"""Normalization of images as in a model's training, read from a released folder."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import nn

from qkv.errors import InputError
from qkv.hub.model_folder import locate
from qkv.runtime.documents import read_object
from qkv.types import Float, Shaped, Tensor

PREPROCESSOR = "preprocessor_config.json"  # in Hugging Face folders
MAX_PIXEL = 255


def scale_pixels(pixels: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Scale bytes to numbers from -1 to 1, as released vision Transformers do."""
    return pixels.float() / 127.5 - 1


def as_model_input(images: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Scale bytes to numbers from -1 to 1; features are unchanged."""
    return scale_pixels(images) if images.dtype == torch.uint8 else images


def as_rgb(
    pixels: UInt8[np.ndarray, "*batch channels height width"],
) -> UInt8[np.ndarray, "*batch height width channels"]:
    """Return images for display, with three channels, the last axis."""
    return np.moveaxis(pixels.repeat(3, axis=-3) if pixels.shape[-3] == 1 else pixels, -3, -1)


def square_side(model: Any) -> int:
    """Return the side of the square images that a model config takes."""
    if model.height != model.width:
        raise InputError(f"--data needs a model of square images, but this one takes {model.height} x {model.width}")
    return int(model.height)


@dataclass(frozen=True)
class Scale:
    """(pixel / 255 - mean) / std per channel; by default from -1 to 1, as in training here."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __call__(
        self, pixels: Shaped[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (pixels.float() / MAX_PIXEL - mean) / std


def pixel_scale(model: str | os.PathLike[str] | nn.Module, channels: int) -> Scale:
    """Return the normalization of a model by name or folder, or the default if it has none."""
    return Scale() if isinstance(model, nn.Module) else read_scale(locate(model), channels)


def read_scale(folder: Path, channels: int) -> Scale:
    """Read the normalization from the folder of a model; the default if it has none."""
    path = folder / PREPROCESSOR
    if not os.path.lexists(path):
        return Scale()
    config = read_object(path)
    if config.get("do_rescale", True) is not True or not math.isclose(
        _number(config.get("rescale_factor", 1 / 255)), 1 / 255
    ):
        raise InputError(f"{path}: only a rescale_factor of 1/255 is supported")
    if config.get("do_normalize", True) is not True:
        return Scale((0.0,), (1.0,))
    stats = {}
    for key in ("image_mean", "image_std"):
        values = config.get(key, [0.5])
        numbers = tuple(map(_number, values)) if isinstance(values, list) else ()
        if len(numbers) not in (1, channels) or not all(map(math.isfinite, numbers)):
            raise InputError(f"{path}: {key} must be a list of one number, or one for each of {channels} channels")
        stats[key] = numbers
    if not all(stats["image_std"]):
        raise InputError(f"{path}: image_std must not be 0")
    return Scale(stats["image_mean"], stats["image_std"])


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
