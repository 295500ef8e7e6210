"""Random number generator state, as tensors that can be saved."""

import torch

from qkv.types import Tensor


def seed_everything(seed: int) -> None:
    """Seed PyTorch's generators (CPU and CUDA)."""
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the RNG states of the CPU and, if used, of the CUDA device."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Restore the RNG states returned by `random_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
