"""Training progress on stderr: a live line and a chart on a terminal, a line every few seconds elsewhere."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console, RenderableType
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from qkv.metrics import Metric
from qkv.runtime.bars import BAR_WIDTH, live_progress, print_message
from qkv.runtime.text import message_line, shorten_middle
from qkv.tasks.base.task import Sample, Task
from qkv.training.run import Best

SECONDS_BETWEEN_LINES = 10.0
SAMPLES = 3  # shown at each validation
SAMPLE_WIDTH = 60  # characters of each part of a sample
CHART_HEIGHT, CHART_WIDTH = 8, 60  # characters
MIN_BAR_WIDTH, ETA_WIDTH = 4, len("0:00:00")
TALL = 30  # lines of a terminal from which the chart is shown by default
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column


class Display:
    """Shows the progress of training on stderr.

    `samples` is the number of outputs shown at each validation. `chart` draws the training loss on a terminal; by
    default if it has at least `TALL` lines.
    """

    def __init__(self, console: Console | None = None, *, samples: int = SAMPLES, chart: bool | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._samples = samples
        self._chart = self.console.height >= TALL if chart is None else chart
        self._losses: list[tuple[float, float]] = []  # fraction of the run done, and loss
        self._drawn = 0, Text()  # number of losses in the chart, and the chart
        self._bar = BarColumn(bar_width=BAR_WIDTH)
        self._live = live_progress(
            self.console,
            TextColumn("{task.fields[epoch]}"),
            self._bar,
            TextColumn("{task.percentage:3.0f} %  {task.fields[status]}"),
            TextColumn("eta"),
            TimeRemainingColumn(),
            transient=False,
            above=self._loss_chart,
        )
        self._task = self._live.add_task("", total=1.0, epoch="", status="")
        self._epoch, self._loss, self._rate = "epoch", "loss ...", ""
        self._metric = self._best = ""
        self._first: tuple[float, float] | None = None  # time and fraction done at the first step shown
        self._last_line = 0.0

    def print(self, text: str) -> None:
        """Print a message above the live line."""
        print_message(self.console, message_line(text))

    def step(self, epoch: int, epochs: int, done: float, loss: float, speed: float, unit: str) -> None:
        """Show epoch, loss and speed; `done` is the fraction of the run that is over."""
        self._epoch, self._loss, self._rate = f"epoch {epoch}/{epochs}", f"loss {loss:.3f}", _rate(speed, unit)
        self._losses.append((done, loss))
        self._live.update(self._task, completed=done, epoch=self._epoch, status=self._fit())
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            line = f"{self._epoch}  {done:4.0%}  {self._loss}{self._metric}{self._best}{self._rate}"
            remaining = self._seconds_left(now, done)
            self.print(line if remaining is None else f"{line}  eta {remaining:.0f} s")

    def _fit(self) -> str:
        """Return the text of the live line; on a narrow terminal without the best value, then without the rate.

        The bar has the width that they leave.
        """
        spaces = len(" ") * 4  # between the columns
        room = self.console.width - len(self._epoch) - len("100 %  ") - len("eta") - ETA_WIDTH - spaces
        shown = f"{self._loss}{self._metric}"
        for more in (f"{self._best}{self._rate}", self._rate, ""):
            status = f"{shown}{more}"
            if BAR_WIDTH + len(status) <= room:
                break
        self._bar.bar_width = max(MIN_BAR_WIDTH, min(BAR_WIDTH, room - len(status)))
        return status

    def _seconds_left(self, now: float, done: float) -> float | None:
        """Estimate the remaining time from the speed since the first step shown; None at that step."""
        began, done_then = self._first = self._first or (now, done)
        return (now - began) * (1 - done) / (done - done_then) if done > done_then else None

    def validating(self) -> None:
        """Show that a validation is running."""
        self._live.update(self._task, status=f"validating{self._best}")

    def validated(self, metric: Metric, value: float, best: Best | None) -> None:
        """Show the validation metric, and the best value so far."""
        self._best = "" if best is None else f" (best {metric.shown(best.value)})"
        self._metric = f"  valid {metric.name} {metric.shown(value)}"
        self._live.update(self._task, status=self._fit())

    def draw_samples(self, task: Task, model: Any) -> list[Sample]:
        """Decode a few validation examples, show and return them."""
        if not self._samples:
            return []
        with torch.compiler.set_stance("force_eager"):
            samples = task.samples(model, self._samples)
        for source, output, reference in samples:
            parts = [shorten_middle(" ".join(text.split()), SAMPLE_WIDTH) for text in (source, output, reference)]
            same = output.split() == reference.split()
            self.print(f"  {parts[0]} -> {parts[1]}{' (correct)' if same else f' (reference: {parts[2]})'}")
        return samples

    def _loss_chart(self) -> Iterator[RenderableType]:
        if self._chart and len(self._losses) > 1:
            if self._drawn[0] < len(self._losses):
                lines = loss_chart(self._losses, min(CHART_WIDTH, self.console.width - 12), CHART_HEIGHT)
                self._drawn = len(self._losses), Text("\n".join(lines))
            yield self._drawn[1]

    def __enter__(self) -> "Display":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()


def _rate(speed: float, unit: str) -> str:
    """Return the speed as text, e.g. "  12.3k tokens/s"."""
    return f"  {speed:.0f} {unit}/s" if speed < 1000 else f"  {speed / 1000:.1f}k {unit}/s"


def loss_chart(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Draw (fraction of the run, loss) as lines of braille characters, with 2 x 4 dots each.

    A column of dots is the mean of the losses in it, or interpolated. The axis is logarithmic if the largest loss is
    ten times the smallest, as small changes at the end of training would not be visible.
    """
    columns: dict[int, list[float]] = {}
    for done, loss in points:
        if math.isfinite(loss):
            columns.setdefault(min(int(done * 2 * width), 2 * width - 1), []).append(loss)
    means = {column: sum(losses) / len(losses) for column, losses in columns.items()}
    if not means or width < 1:
        return []
    low, high = min(means.values()), max(means.values())
    scale = math.log if low > 0 and 10 * low < high else float
    span = scale(high) - scale(low) or 1.0
    cells = [[0x2800] * width for _ in range(height)]
    heights = {column: (scale(high) - scale(mean)) / span * (4 * height - 1) for column, mean in means.items()}
    columns_drawn = range(min(heights), max(heights) + 1)
    rows = np.interp(columns_drawn, sorted(heights), [heights[column] for column in sorted(heights)])
    for column, row in zip(columns_drawn, np.rint(rows).astype(int).tolist(), strict=True):
        cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    labels = {0: f"{high:.3g}", height - 1: f"{low:.3g}"}
    return [f"{labels.get(row, ''):>8} │{''.join(map(chr, line))}" for row, line in enumerate(cells)]
