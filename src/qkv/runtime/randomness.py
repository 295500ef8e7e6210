"""The state of every random generator that training draws from, as tensors that can be saved."""

import torch

from qkv.types import Tensor


def seed_everything(seed: int) -> None:
    """Start PyTorch's generators (CPU and CUDA) from one seed."""
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The generators' states: the CPU's, and the CUDA device's where one is used."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Put the generators back to where `random_state` found them."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
