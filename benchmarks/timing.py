"""Interleaved timing, correctness checks and table output."""

import json
import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

GPU = torch.cuda.is_available()
MOST_ERROR = 2e-2  # of the norm of the float64 result: bf16 operands land between 2e-3 and 1e-2
Contender = Callable[[], object]
Clock = Callable[[], float]  # seconds


def milliseconds(
    contenders: dict[str, Contender], rounds: int = 15, calls: int = 5, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Median time of each function, interleaved so that disturbances affect all equally.

    Each round has another order: a GPU runs faster after work that let it cool, so nobody may always follow the same.
    `time.process_time` is the clock of one thread on a CPU that other programs use too.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():
        for _ in range(3):
            contender()
    for number in range(rounds):
        for name in random.Random(number).sample(list(contenders), len(contenders)):
            times[name].append(_one_timing(contenders[name], calls, clock))
    return {name: statistics.median(taken) for name, taken in times.items()}


def _one_timing(contender: Contender, calls: int, clock: Clock) -> float:
    if not GPU:
        begin = clock()
        for _ in range(calls):
            contender()
        return (clock() - begin) / calls * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        contender()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls


def error(found: Tensor, truth: Tensor) -> float:
    """Relative error."""
    return ((found.double() - truth).norm() / truth.norm()).item()


def right(found: Tensor, truth: Tensor, most: float = MOST_ERROR) -> bool:
    return error(found, truth) <= most  # NaN is not


def tell(section: str, what: str, **figures: object) -> None:
    """Print one machine-readable table row."""
    print(json.dumps({"section": section, "what": what} | figures), flush=True)


def refuse(section: str, what: str, found: float) -> None:
    tell(section, what, wrong_result=f"off by {found:.1e} of its norm: no speed is reported")
