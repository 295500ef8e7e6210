"""Where one way of computing attention overtakes another: measured, not guessed.

The figures were taken by `benchmarks/attention.py --crossovers`, which prints them for the device it runs on; a device
that is not in the table is served as the one that is.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Crossovers:
    """The sizes of a call from which on something pays."""

    plan_operations: int
    """cuDNN's kernel: PyTorch prefers it in half precision, and nothing is faster on large calls, but it plans every
    shape it has not met, and text comes in ever new shapes. Below so many floating-point operations, flash and the
    memory-efficient kernel are as fast, and need no plan."""
    flex_cells: int
    """FlexAttention, for a mask with whole blocks to leave out or a bias that it need not store: below so many cells of
    the scores (batch x heads x queries x keys), the host's work for it costs more than it saves."""


MEASURED = {
    (9, 0): Crossovers(plan_operations=2**34, flex_cells=2**28),  # H200, torch 2.11: plans take 70 to 280 ms a shape
}


@lru_cache
def crossovers(device: torch.device) -> Crossovers:
    """What was measured on a CUDA device of this kind."""
    return MEASURED.get(torch.cuda.get_device_capability(device), MEASURED[(9, 0)])
