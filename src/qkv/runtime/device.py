"""Which device the work runs on, and in which precision."""

from contextlib import AbstractContextManager, nullcontext

import torch

from qkv.errors import InputError


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """Turn "auto", "cpu", "cuda" or "cuda:1" into a device that is there."""
    name = str(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device {name!r} is not known: use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda") or name.startswith("cpu:"):
        raise InputError(f"device {name!r} is not supported: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        available = torch.cuda.device_count()
        if (device.index or 0) >= available:
            raise InputError(f"device {name!r} is not there: this machine has {available} CUDA device(s)")
    return device


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context in which a forward pass runs in `precision` ("float32" or "bfloat16")."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
