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
        self._live = live_progress(
            self.console,
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.percentage:3.0f} %  loss {task.fields[loss]}{task.fields[valid]}  {task.fields[rate]}"),
            TextColumn("eta"),
            TimeRemainingColumn(),
            transient=False,
            above=self._loss_chart,
        )
        self._task = self._live.add_task("", total=1.0, epoch="", loss="...", valid="", rate="...")
        self._metric = ""
        self._first: tuple[float, float] | None = None  # time and fraction done at the first step shown
        self._last_line = 0.0

    def print(self, text: str) -> None:
        """Print a message above the live line."""
        print_message(self.console, message_line(text))

    def step(self, epoch: int, epochs: int, done: float, loss: float, speed: float, unit: str) -> None:
        """Show epoch, loss and speed; `done` is the fraction of the run that is over."""
        rate = f"{speed / 1000:.1f}k {unit}/s"
        self._losses.append((done, loss))
        self._live.update(self._task, completed=done, epoch=f"{epoch}/{epochs}", loss=f"{loss:.3f}", rate=rate)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            line = f"epoch {epoch}/{epochs}  {done:4.0%}  loss {loss:.3f}{self._metric}  {rate}"
            remaining = self._seconds_left(now, done)
            self.print(line if remaining is None else f"{line}  eta {remaining:.0f} s")

    def _seconds_left(self, now: float, done: float) -> float | None:
        """Estimate the remaining time from the speed since the first step shown; None at that step."""
        began, done_then = self._first = self._first or (now, done)
        return (now - began) * (1 - done) / (done - done_then) if done > done_then else None

    def validated(self, metric: Metric, value: float, best: Best | None) -> None:
        """Show the validation metric, and the best value so far."""
        best_value = "" if best is None else f" (best {metric.shown(best.value)})"
        self._metric = f"  valid {metric.name} {metric.shown(value)}{best_value}"
        self._live.update(self._task, valid=self._metric)

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
