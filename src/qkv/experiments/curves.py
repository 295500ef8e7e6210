"""Learning curves of runs, from their logs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.metrics import Metric
from qkv.training.run import read_log
from qkv.training.run_manifest import Manifest
from qkv.visualize.curves import Curve


def curve_of(log: list[dict[str, Any]], kind: str, key: str, label: str = "") -> Curve:
    """Return the finite values of a metric, by step."""
    points = [
        (record["step"], record[key])
        for record in log
        if record.get("kind") == kind and isinstance(record.get(key), int | float) and math.isfinite(record[key])
    ]
    return Curve(label, tuple(step for step, _ in points), tuple(value for _, value in points))


def selecting_metric(run: Path) -> tuple[str, Metric]:
    """Return the metric that selects a run's checkpoints; the loss if the run has no readable manifest."""
    try:
        recipe = Manifest.read(run).recipe
    except QkvError:
        return "loss", Metric("loss", higher_is_better=False)
    return recipe.train.best_by, recipe.task_class.metrics[recipe.train.best_by]


def run_curves(runs: Sequence[tuple[str, Path]]) -> list[tuple[str, float, list[Curve]]]:
    """Return the title, scale and lines of the charts of runs and their labels: training loss, validation metrics."""
    logs = [(label, read_log(run)) for label, run in runs]
    metrics = dict(selecting_metric(run) for _, run in runs)
    wanted = [("train", "loss", Metric("training loss"))]
    wanted += [
        ("valid", key, Metric(f"validation {metric.name}", percent=metric.percent)) for key, metric in metrics.items()
    ]
    charts = []
    for kind, key, metric in wanted:
        lines = [line for label, log in logs if (line := curve_of(log, kind, key, label)).steps]
        if lines:
            charts.append(
                (f"{metric.name}, %" if metric.percent else metric.name, 100.0 if metric.percent else 1.0, lines)
            )
    return charts
