"""Device selection and autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch

from qkv.errors import InputError


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """Return an available device for "auto", "cpu", "cuda" or "cuda:N"."""
    name = str(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda") or name.startswith("cpu:"):
        raise InputError(f"unsupported device {name!r}: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        available = torch.cuda.device_count()
        if (device.index or 0) >= available:
            raise InputError(f"device {name!r} is not available: this machine has {available} CUDA device(s)")
    return device


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the autocast context for `precision` ("float32" or "bfloat16")."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
