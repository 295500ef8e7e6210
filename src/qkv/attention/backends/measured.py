"""Measured crossover points between attention kernels.

The values come from `benchmarks/attention.py --crossovers`, which prints them for the device it runs on; devices that
are not in the table use the values of the H200.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Crossovers:
    """Sizes from which a kernel is faster than the alternatives."""

    plan_operations: int
    """Minimum number of floating-point operations for cuDNN. PyTorch prefers it in half precision and it is the fastest
    on large calls, but it builds a plan for every new shape, and text has many shapes. Below this size, flash and the
    memory-efficient kernel are as fast without a plan."""
    flex_cells: int
    """Minimum number of score cells (batch x heads x queries x keys) for FlexAttention, which skips masked blocks and
    does not materialize biases. Below this size, its host overhead outweighs the savings."""


MEASURED = {
    (9, 0): Crossovers(
        plan_operations=2**34, flex_cells=2**28
    ),  # H200, torch 2.11: a plan takes 70 to 280 ms per shape
}


@lru_cache
def crossovers(device: torch.device) -> Crossovers:
    """Return the crossovers for this type of CUDA device."""
    return MEASURED.get(torch.cuda.get_device_capability(device), MEASURED[(9, 0)])
