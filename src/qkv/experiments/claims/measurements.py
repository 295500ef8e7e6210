"""Numbers that a claim measures: one value per seed and condition, and curves of one value per seed and point.

Names have the form "quantity: condition", for example "exact match: with attention".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qkv.errors import InputError
from qkv.registry import nearest

Curve = Mapping[int, float] | Mapping[float, float]  # y by x


@dataclass(frozen=True)
class Series:
    """A curve: the x of each point, and the values at all points for each seed."""

    x: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]  # by seed, then by point

    def at(self, x: float) -> tuple[float, ...]:
        """Return the values of all seeds at one x."""
        number = self.x.index(x)
        return tuple(points[number] for points in self.values)


@dataclass(frozen=True)
class Sample:
    """What is measured with one seed: values by name, and curves by name as y by x."""

    values: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Curve] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurements:
    """The numbers of all seeds."""

    seeds: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # one per seed
    series: Mapping[str, Series] = field(default_factory=dict)

    def value(self, name: str) -> tuple[float, ...]:
        """Return the values of all seeds; raise InputError if the name was not measured."""
        if name not in self.values:
            raise InputError(f"{name!r} was not measured{nearest(name, self.values)}")
        return self.values[name]

    def curve(self, name: str) -> Series:
        """Return a series; raise InputError if the name was not measured."""
        if name not in self.series:
            raise InputError(f"the series {name!r} was not measured{nearest(name, self.series)}")
        return self.series[name]

    def check(self) -> None:
        """Raise InputError unless every value is finite and there is one per seed."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError("a claim needs at least one seed, and each seed once")
        if not self.values and not self.series:
            raise InputError("nothing was measured")
        for name, values in self.values.items():
            _check_values(name, values, len(self.seeds))
        for name, series in self.series.items():
            if len(series.values) != len(self.seeds):
                raise InputError(f"{name}: has {len(series.values)} curves for {len(self.seeds)} seeds")
            if len(set(series.x)) < len(series.x) or not all(map(math.isfinite, series.x)):
                raise InputError(f"{name}: has an x twice, or one that is not finite")
            for points in series.values:
                _check_values(name, points, len(series.x))


@dataclass(frozen=True)
class Table:
    """A table of text that is computed from the numbers."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def merge(samples: Mapping[int, Sample]) -> Measurements:
    """Combine the samples of all seeds; raise InputError if they do not have the same names and points."""
    first = next(iter(samples.values()))
    for seed, sample in samples.items():
        points = {name: list(curve) for name, curve in sample.series.items()}
        if list(sample.values) != list(first.values) or points != {n: list(c) for n, c in first.series.items()}:
            raise InputError(f"seed {seed} did not measure the same quantities as the first seed")
    return Measurements(
        tuple(samples),
        {name: tuple(float(sample.values[name]) for sample in samples.values()) for name in first.values},
        {
            name: Series(
                tuple(float(x) for x in curve),
                tuple(tuple(float(y) for y in sample.series[name].values()) for sample in samples.values()),
            )
            for name, curve in first.series.items()
        },
    )


def _check_values(name: str, values: Sequence[float], count: int) -> None:
    if len(values) != count:
        raise InputError(f"{name}: has {len(values)} values, not {count}")
    if not all(map(math.isfinite, values)):
        raise InputError(f"{name}: has a value that is not finite")
