"""Device selection, autocast, and the state of the random number generators."""

from contextlib import AbstractContextManager, nullcontext

import torch

from qkv.errors import InputError
from qkv.types import Tensor

DEVICES = "auto, cpu, cuda, cuda:N or mps"


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """Return an available device for "auto", "cpu", "cuda", "cuda:N" or "mps"; "auto" is a CUDA device or the CPU."""
    name = str(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}: use {DEVICES}") from None
    if device.type not in ("cpu", "cuda", "mps") or name.startswith(("cpu:", "mps:")):
        raise InputError(f"unsupported device {name!r}: use {DEVICES}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"device {name!r} is not available: it needs macOS on Apple silicon")
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


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the RNG states of the CPU and, if used, of the CUDA or MPS device."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Restore the RNG states returned by `random_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
