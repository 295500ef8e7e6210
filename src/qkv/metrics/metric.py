"""What a number that judges a model is called, which way is up, and how a person should see it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One measure of a model."""

    name: str
    higher_is_better: bool = True
    percent: bool = False

    def at_least_as_good(self, value: float, other: float) -> bool:
        """Whether `value` is as good as the other, or better."""
        return value >= other if self.higher_is_better else value <= other

    def shown(self, value: float) -> str:
        return f"{value:.2%}" if self.percent else f"{value:.3f}"
