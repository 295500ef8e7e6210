"""A backbone with random weights, in the format of the released file."""

import re
from pathlib import Path

import pytest
import torch

from qkv.hub import backbones
from qkv.nn.encoders.efficientnet_lite import EfficientNetLite
from qkv.runtime.files import sha256

NAME = "efficientnet_lite0"


def write_weights(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: torch.Tensor) -> EfficientNetLite:
    """Write random weights where the release is searched, and expect their SHA-256; return the model."""
    torch.manual_seed(0)
    model = EfficientNetLite().eval()
    release = backbones.BACKBONES[NAME]
    path = folder / release.file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {re.sub(r"(^|\.)(?=[a-z])", r"\1_", name): value for name, value in model.state_dict().items()}
    weights = {re.sub(r"\._(\w+)$", r".\1", name): value for name, value in weights.items()}
    torch.save({**weights, **changes}, path)
    file = release.file.__class__(release.file.path, path.stat().st_size, sha256(path))
    monkeypatch.setitem(backbones.BACKBONES, NAME, release._replace(file=file))
    return model
