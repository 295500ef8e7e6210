"""`qkv train --profile`: where the time of a training step goes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from qkv.runtime.device import autocast
from qkv.runtime.files import write_atomically
from qkv.runtime.native import silence_native_stderr

FOLDER = "profile"  # in a run's folder
TRACE, TABLE = "trace.json.gz", "table.txt"
FIRST, COUNT = 10, 5  # steps: the first ones compile and capture kernels
ROWS = 30  # of the table
RANGES = ("forward and backward", "update", "next batch")  # host time, recorded by the trainer
MATRIX = {"cuda": 8192, "cpu": 1024}  # size of the products that the peak is measured with


class StepProfile:
    """Profiles a few steps, then writes a trace for chrome://tracing or Perfetto, and a table of the operations.

    The model FLOPs utilization (MFU) is relative to the speed of a large matrix product, measured here.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        precision: str,
        operations: Callable[[], int] | None,
        show: Callable[[str], None],
    ) -> None:
        """`operations` returns the floating-point operations of a step, if they can be counted; `show` prints."""
        self._folder, self._device, self._precision = folder / FOLDER, device, precision
        self._operations, self._show = operations, show
        self._steps, self._tokens, self._began = 0, 0, 0.0
        self._profile: Any = None

    def step(self, tokens: int) -> None:
        """Count a step; called after each."""
        self._steps += 1
        if self._steps == FIRST:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
            self._profile = profile(activities=activities)
            self._synchronize()
            with silence_native_stderr():  # Kineto announces itself
                self._profile.start()
            self._began = time.monotonic()
        elif self._profile is not None:
            self._tokens += tokens
            if self._steps == FIRST + COUNT:
                self._finish()

    def close(self) -> None:
        """Report a run that was too short; called at its end."""
        if self._profile is not None:
            self._profile.stop()
        if self._steps < FIRST + COUNT:
            self._show(f"note: --profile needs at least {FIRST + COUNT} steps; this run had {self._steps}")

    def _finish(self) -> None:
        self._synchronize()
        seconds = (time.monotonic() - self._began) / COUNT
        recorded, self._profile = self._profile, None
        with silence_native_stderr():
            recorded.stop()
        self._folder.mkdir(exist_ok=True)
        recorded.export_chrome_trace(str(self._folder / TRACE))
        summary = self._summary(recorded.key_averages(), seconds)
        column = "self_device_time_total" if self._device.type == "cuda" else "self_cpu_time_total"
        operations = recorded.key_averages().table(sort_by=column, row_limit=ROWS, max_name_column_width=80)
        write_atomically(self._folder / TABLE, f"{summary}\n\n{operations}\n".encode())
        for line in (*summary.splitlines(), f"wrote {self._folder / TRACE} and {self._folder / TABLE}"):
            self._show(line)

    def _summary(self, averages: Any, seconds: float) -> str:
        lines = [f"step                 {1e3 * seconds:9.2f} ms   {self._tokens / COUNT / seconds:,.0f} tokens/s"]
        if self._operations is not None:
            rate, peak = self._operations() / seconds, matrix_speed(self._device, self._precision)
            utilization = f"MFU {rate / peak:.1%} of {peak / 1e9:,.0f} GFLOP/s"
            lines.append(f"operations           {rate / 1e9:9,.0f} GFLOP/s   {utilization}")
        if self._device.type == "cuda":
            kernels = (event.self_device_time_total for event in averages if event.key not in RANGES)
            busy = sum(kernels) / COUNT / 1e6
            lines.append(f"GPU busy             {1e3 * busy:9.2f} ms   {busy / seconds:.1%} of the step")
        for name in RANGES:
            taken = sum(event.cpu_time_total for event in averages if event.key == name) / COUNT / 1e6
            lines.append(f"{name:21}{1e3 * taken:9.2f} ms   {taken / seconds:.1%} of the step, on the host")
        return "\n".join(lines)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def matrix_speed(device: torch.device, precision: str, calls: int = 5) -> float:
    """Return the floating-point operations per second of a large matrix product."""
    size = MATRIX[device.type]
    a = torch.randn(size, size, device=device, generator=torch.Generator(device).manual_seed(0))
    with torch.no_grad(), autocast(device, precision):
        a @ a
        begin = _now(device)
        for _ in range(calls):
            a @ a
        return 2 * size**3 * calls / (_now(device) - begin)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()
