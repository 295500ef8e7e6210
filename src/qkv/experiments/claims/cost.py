"""Costs of a computation: multiply-adds, seconds, memory, sequential operations."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from qkv.runtime.native import silence_native_stderr
from qkv.types import Tensor

Calls = dict[tuple[str, int], Callable[[], object]]  # by name and length

WARM_UP = 2  # calls before the first timing


def multiply_adds(function: Callable[[], object]) -> int:
    """Return the number of multiply-adds of all matrix products and convolutions."""
    # Recurrent layers of cuDNN are not counted: without it, they consist of matrix products on GPUs, too.
    with torch.backends.cudnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops()) // 2


def seconds(functions: Mapping[Any, Callable[[], object]], device: torch.device, rounds: int = 5) -> dict[Any, float]:
    """Return the shortest time of each function over several rounds.

    The functions alternate in random order, so that other programs on the machine disturb all alike; the minimum is
    the time with the least disturbance.
    """
    order, times = list(functions), {name: float("inf") for name in functions}
    for name in order:
        for _ in range(WARM_UP):
            functions[name]()
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            _synchronize(device)
            began = time.perf_counter()
            functions[name]()
            _synchronize(device)
            times[name] = min(times[name], time.perf_counter() - began)
    return times


def peak_memory(function: Callable[[], object], device: torch.device) -> int:
    """Return the largest number of bytes that are allocated at the same time during a call, beyond those before it."""
    function()  # workspaces that are kept from then on
    if device.type == "cuda":
        _synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        _synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    cpu = torch.profiler.ProfilerActivity.CPU
    with silence_native_stderr(), torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(accumulate(change for _, change in changes), default=0)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use this number of threads on the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def longest_path(output: Tensor) -> int:
    """Return the length of the longest chain of operations in the autograd graph of a tensor.

    Operations of a chain depend on each other, so this is the number of steps with unlimited parallelism.
    """
    lengths: dict[Any, int] = {}
    stack = [output.grad_fn]
    while stack:
        node = stack[-1]
        parents = _parents(node)
        missing = [parent for parent in parents if parent not in lengths]
        if node in lengths or not missing:
            lengths.setdefault(node, 1 + max((lengths[parent] for parent in parents), default=0))
            stack.pop()
        else:
            stack.extend(missing)
    return lengths[output.grad_fn]


def shortest_path(output: Tensor, leaf: Tensor) -> int:
    """Return the smallest number of operations between a leaf and a tensor that depends on it."""
    level, visited, length = [output.grad_fn], {output.grad_fn}, 0
    while level:
        if any(getattr(node, "variable", None) is leaf for node in level):
            return length
        parents = {parent for node in level for parent in _parents(node)} - visited
        visited |= parents
        level, length = list(parents), length + 1
    raise ValueError("the tensor does not depend on the leaf")


def _parents(node: Any) -> list[Any]:
    return [parent for parent, _ in node.next_functions if parent is not None]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
