"""Claims of the lecture notes: what is claimed, how it is measured, and what decides about it.

A claim is a class with everything known about it as attributes, registered under its id:

    @register("claim", "scaled-dot-variance")
    class ScaledDotVariance(SampledClaim): ...

`SampledClaim` measures in this process, once per seed. `SweepClaim` trains the combinations of a sweep,
`RecipeClaim` recipes that differ in more than some keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch

from qkv.errors import InputError
from qkv.experiments.claims.measurements import Measurements, Sample, Table, merge
from qkv.experiments.claims.verdict import MIN_SEEDS, Criterion
from qkv.experiments.sweep import RECIPE, Evaluate, MeasureFunction, Sweep, SweepResult
from qkv.runtime.bars import Bars
from qkv.runtime.device import pick_device

Scale = Literal["small", "full"]
SCALES: tuple[Scale, ...] = ("small", "full")
Label = str | Mapping[Scale, str]  # of an axis; a mapping if it depends on the scale
PLUGINS = "plugins"  # group of the claims of plug-ins


class Note(NamedTuple):
    """A lecture note that makes the claim, and the title of its section."""

    number: str  # "000" to "004"
    section: str


@dataclass(frozen=True)
class Panel:
    """One plot of the figure of a claim: series as lines, or values as points.

    Names have the form "quantity: condition"; the condition is the label.
    """

    title: str
    y_label: Label
    lines: tuple[str, ...] = ()  # names of series
    points: tuple[str, ...] = ()  # names of values
    x_label: Label = ""
    log_x: bool = False
    log_y: bool = False


class Claim(ABC):
    """A claim of the notes that can be measured."""

    registered_name: ClassVar[str]
    number: ClassVar[int]  # in the list of claims
    title: ClassVar[str]
    statement: ClassVar[str]  # the claim in our own words
    notes: ClassVar[tuple[Note, ...]]
    equation: ClassVar[str]
    source: ClassVar[tuple[str, ...]]  # code that computes it: "src/qkv/attention/score.py::ScaledDot"
    hypothesis: ClassVar[str]  # what is expected, and why the ranges of the criteria were chosen
    criteria: ClassVar[tuple[Criterion, ...]]  # stated before the claim is measured
    figure: ClassVar[tuple[Panel, ...]]
    limits: ClassVar[str]  # what would change the verdict
    amendments: ClassVar[str] = ""  # changes of the measurement after a first run, and the verdict of that run
    seeds: ClassVar[int] = 3  # default number of seeds
    deterministic: ClassVar[bool] = False  # whether the numbers do not depend on the seed
    exclusive: ClassVar[bool] = False  # whether `measure` needs the machine for itself: times, or long computations

    @classmethod
    def sweeps(cls, scale: Scale, seeds: Sequence[int]) -> dict[str, Sweep]:
        """Return the training runs that `measure` needs, by condition; those of several claims can be shared."""
        return {}

    @abstractmethod
    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        """Measure all conditions with all seeds; `folder` has the training runs, those that are missing are trained."""

    @classmethod
    def tables(cls, measurements: Measurements) -> tuple[Table, ...]:
        """Return tables of the numbers for the record and the page."""
        return ()

    @classmethod
    def min_seeds(cls, scale: Scale) -> int:
        """Return the minimum number of seeds of a verdict."""
        return 1 if cls.deterministic else MIN_SEEDS[scale]

    @classmethod
    def group(cls) -> str:
        """Return the sub-package of the claim."""
        package, _, _ = cls.__module__.rpartition(".")
        parent, _, group = package.rpartition(".")
        return group if parent == __package__ else PLUGINS


class SampledClaim(Claim):
    """A claim that is measured once per seed, without training runs of recipes."""

    exclusive: ClassVar[bool] = True
    seeds_in_processes: ClassVar[bool] = False  # whether each seed gets a process with one thread; not for times

    @abstractmethod
    def sample(self, scale: Scale, device: torch.device) -> Sample:
        """Measure once; the random number generators have been seeded."""

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        samples: dict[int, Sample] = {}
        bars = Bars()
        with bars.count_bar(self.registered_name, len(seeds)) as progress:
            for done, seed in enumerate(seeds, start=1):
                samples[seed] = self.sample_of(scale, seed, device)
                progress(done)
                if not bars.console.is_terminal:
                    bars.say(f"{self.registered_name}: seed {done} of {len(seeds)} done")
        return merge(samples)

    def sample_of(self, scale: Scale, seed: int, device: str) -> Sample:
        """Measure with one seed."""
        torch.manual_seed(seed)
        return self.sample(scale, pick_device(device))


class TrainedClaim(Claim):
    """A claim that is measured on training runs of recipes."""

    split: ClassVar[str] = "valid"

    @classmethod
    def measure_function(cls, scale: Scale) -> MeasureFunction:
        """Return what is measured of each run."""
        return Evaluate(cls.split)

    def run_sweeps(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> dict[str, SweepResult]:
        """Train and measure the runs that are missing; return the results of each condition."""
        return {condition: complete(sweep, folder, device) for condition, sweep in self.sweeps(scale, seeds).items()}


class SweepClaim(TrainedClaim):
    """A claim that compares training runs: one metric of each combination of a sweep, in percent if it is a share."""

    recipe: ClassVar[Mapping[Scale, str]]
    factors: ClassVar[Mapping[str, Sequence[str]]]  # values of each key, as in `qkv compare --vary`
    labels: ClassVar[Mapping[str, str]]  # condition of each combination, by the label of the sweep: "score=dot"
    metric: ClassVar[Mapping[Scale, str]]
    quantity: ClassVar[str]  # the metric in words: values are named "quantity: condition"
    overrides: ClassVar[Mapping[Scale, tuple[str, ...]]]  # settings of all runs at each scale

    @classmethod
    def sweeps(cls, scale: Scale, seeds: Sequence[int]) -> dict[str, Sweep]:
        overrides, measure = cls.overrides[scale], cls.measure_function(scale)
        return {cls.recipe[scale]: Sweep(cls.recipe[scale], cls.factors, seeds, overrides, measure, shared=True)}

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        (result,) = self.run_sweeps(scale, seeds, folder, device).values()
        rows = values_by_label(result, self.metric[scale], seeds)
        values = {f"{self.quantity}: {self.labels[label]}": row for label, row in rows.items()}
        return Measurements(tuple(seeds), values)


class RecipeClaim(TrainedClaim):
    """A claim that compares training runs of recipes, each with settings of its own, by one metric."""

    conditions: ClassVar[Mapping[Scale, Mapping[str, tuple[str, ...]]]]  # recipe and settings of each condition
    metric: ClassVar[Mapping[Scale, str]]
    quantity: ClassVar[str]  # the metric in words: values are named "quantity: condition"
    overrides: ClassVar[Mapping[Scale, tuple[str, ...]]]  # settings of all conditions at each scale

    @classmethod
    def sweeps(cls, scale: Scale, seeds: Sequence[int]) -> dict[str, Sweep]:
        """Return the runs of each condition."""
        measure = cls.measure_function(scale)
        return {
            condition: Sweep(
                recipe, {RECIPE: (recipe,)}, seeds, (*cls.overrides[scale], *settings), measure, shared=True
            )
            for condition, (recipe, *settings) in cls.conditions[scale].items()
        }

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        values: dict[str, tuple[float, ...]] = {}
        for condition, result in self.run_sweeps(scale, seeds, folder, device).items():
            (values[f"{self.quantity}: {condition}"],) = values_by_label(result, self.metric[scale], seeds).values()
        return Measurements(tuple(seeds), values)


def complete(sweep: Sweep, folder: Path, device: str) -> SweepResult:
    """Run what is missing of a sweep; raise InputError if one of its runs fails."""
    result = sweep.run(folder, device=device) if sweep.remaining(folder) else sweep.result(folder)
    if result.failures:
        failed = result.failures[0]
        raise InputError(f"{len(result.failures)} run(s) failed, first {failed.trial.name}: {failed.error}")
    return result


def values_by_label(result: SweepResult, metric: str, seeds: Sequence[int]) -> dict[str, tuple[float, ...]]:
    """Return one metric of each combination for all seeds, in percent if it is a share."""
    points = 100 if result.metrics[metric].percent else 1  # per unit, so that all metrics are points
    values = {}
    for row in result.rows(metric):
        if sorted(row.values) != sorted(seeds):
            raise InputError(f"{row.label}: {metric} was measured with {len(row.values)} of {len(seeds)} seeds")
        values[row.label] = tuple(points * row.values[seed] for seed in seeds)
    return values
