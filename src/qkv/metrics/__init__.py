"""Evaluation metrics: functions of predictions and references."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """Name, direction and format of a metric."""

    name: str
    higher_is_better: bool = True
    percent: bool = False

    def at_least_as_good(self, value: float, other: float) -> bool:
        """Return whether `value` is as good as `other` or better."""
        return value >= other if self.higher_is_better else value <= other

    def shown(self, value: float) -> str:
        return f"{value:.2%}" if self.percent else f"{value:.3f}"
