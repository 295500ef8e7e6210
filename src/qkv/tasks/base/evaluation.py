"""The result of an evaluation: metrics, and what a task knows beyond them, such as scores of each class."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.metrics.class_metrics import (
    Calibration,
    ClassTable,
    ConfusionMatrix,
    calibration,
    class_table,
    confusion_matrix,
)
from qkv.metrics.intervals import Interval, proportion_interval
from qkv.metrics.text_metrics import Bucket
from qkv.runtime.notebook import Drawable
from qkv.runtime.text import printable
from qkv.types import Float, Shaped, Tensor

MAX_MISTAKES = 20  # kept
MAX_SHOWN = 4  # metrics in the repr
MAX_LABELS, MAX_LABEL = 5, 40  # labels in a message, and characters of each


class Mistake(NamedTuple):
    """An example that the model got wrong."""

    source: str
    output: str
    reference: str
    score: float  # of the example, as `Evaluation.mistake_score` names it; lower is worse


@dataclass(frozen=True, repr=False)
class Evaluation(Drawable):
    """Scores of a model on one split."""

    size: int  # number of examples
    unit: str  # e.g. "sentences"
    scores: Mapping[str, float]  # the task's metrics
    signatures: Mapping[str, str] = field(default_factory=dict)  # settings of the metrics that have any
    seconds: float = 0.0  # duration
    skipped: int = 0  # examples that are too long for the model
    by_length: tuple[Bucket, ...] = ()
    outputs: tuple[str, ...] = ()  # predicted texts
    mistakes: tuple[Mistake, ...] = ()  # worst first
    mistake_score: str = ""  # name of the score of a mistake
    intervals: Mapping[str, Interval] = field(default_factory=dict)  # 95 % confidence intervals of some metrics
    classes: tuple[ClassTable, ...] = ()  # precision, recall and F1 of each class
    confusion: ConfusionMatrix | None = None
    calibration: Calibration | None = None
    split: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # names and formats of the scores
    reported: tuple[str, ...] = ()  # scores that reports show; empty: all
    split_size: int | None = None  # number of examples of the split, if only a part was evaluated
    pictures: Mapping[str, Shaped[np.ndarray, "height width colors"]] = field(default_factory=dict)  # of mistakes

    def metric(self, name: str) -> Metric:
        """Return the name and the format of a score."""
        return self.metrics.get(name, Metric(name))

    @property
    def interval_methods(self) -> list[str]:
        """Names of the methods of the intervals of the reported scores."""
        return sorted({interval.method for name, interval in self.intervals.items() if name in self.reported_scores})

    @property
    def amount(self) -> str:
        """Number of examples with their unit: "872 texts", or "300 of 872 texts" of a part of a split."""
        whole = "" if self.split_size is None else f" of {self.split_size:,}"
        return f"{self.size:,}{whole} {self.unit}"

    @property
    def reported_scores(self) -> list[str]:
        """Names of the scores that reports show, in the order of `scores`."""
        return [name for name in self.scores if name in self.reported] or list(self.scores)

    def shown(self, name: str) -> str:
        """Return a score as text, with its confidence interval if it has one."""
        metric = self.metric(name)
        if name not in self.intervals:
            return metric.shown(self.scores[name])
        low, high = (metric.shown(bound) for bound in self.intervals[name])
        return f"{metric.shown(self.scores[name])} [{low}, {high}]"

    def __repr__(self) -> str:
        names = self.reported_scores
        shown = [f"{self.metric(name).name} {self.metric(name).shown(self.scores[name])}" for name in names[:MAX_SHOWN]]
        more = [f"and {len(names) - MAX_SHOWN} more metrics"] if len(names) > MAX_SHOWN else []
        where = f"{self.split}: " if self.split else ""
        return f"Evaluation({where}{self.amount}, {', '.join([*shown, *more])})"

    def __str__(self) -> str:
        """Return the report that `qkv evaluate` prints."""
        text: str = import_module("qkv.visualize.evaluation_table").evaluation_text(self)
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the outputs as plain data: the scores by name, and the details that there are."""
        details: dict[str, Any] = {
            "split_size": self.split_size,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "classes": {table.title: _class_rows(table) for table in self.classes},
            "confusion": None if self.confusion is None else asdict(self.confusion),
            "calibration": None
            if self.calibration is None
            else {"error": self.calibration.error, **asdict(self.calibration)},
            "mistakes": [mistake._asdict() for mistake in self.mistakes],
        }
        return {
            "split": self.split,
            "size": self.size,
            **self.scores,
            "signatures": self.signatures,
            "seconds": self.seconds,
            **{name: value for name, value in details.items() if value},
        }


def _class_rows(table: ClassTable) -> list[dict[str, Any]]:
    return [
        {"name": row.name, "precision": row.precision, "recall": row.recall, "f1": row.f1, "support": row.support}
        for row in table.summary
    ]


def require_known_label(labels: Collection[str], known: Collection[str], where: str, what: str = "labels") -> None:
    """Raise if a model knows none of the labels of the examples that it is evaluated on."""
    if labels and set(labels).isdisjoint(known):
        raise InputError(f"{what} {_quoted(labels)} of {where} are not {what} of the model ({_quoted(known)})")


def _quoted(labels: Iterable[str]) -> str:
    names = sorted(set(labels))
    shown = ", ".join(printable(repr(name), MAX_LABEL) for name in names[:MAX_LABELS])
    return f"{shown}, ..." if len(names) > MAX_LABELS else shown


def label_details(
    probabilities: Float[Tensor, "examples labels"],
    names: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str],
) -> dict[str, Any]:
    """Return what the probabilities of labels tell beyond the metrics, as fields of an `Evaluation`.

    The score of a mistake is the probability of the reference, 0 if the model does not have this label.
    """
    index = {name: number for number, name in enumerate(names)}
    confidences, best = probabilities.max(dim=-1)
    predictions = [names[number] for number in best.tolist()]
    of_reference = [
        row[index[reference]] if reference in index else 0.0
        for row, reference in zip(probabilities.tolist(), references, strict=True)
    ]
    rows = zip(sources, predictions, references, of_reference, strict=True)
    correct = [prediction == reference for prediction, reference in zip(predictions, references, strict=True)]
    return {
        "intervals": {"accuracy": proportion_interval(sum(correct), len(correct))} if correct else {},
        "classes": (class_table("classes", predictions, references),),
        "confusion": confusion_matrix(predictions, references),
        "calibration": calibration(confidences.tolist(), correct),
        "mistakes": worst(Mistake(*row) for row, right in zip(rows, correct, strict=True) if not right),
        "mistake_score": "probability of the reference",
    }


def worst(mistakes: Iterable[Mistake]) -> tuple[Mistake, ...]:
    """Return the mistakes with the lowest scores, worst first and copies once; those without a score come last."""
    ordered = sorted(mistakes, key=lambda mistake: math.inf if math.isnan(mistake.score) else mistake.score)
    return tuple(dict.fromkeys(ordered))[:MAX_MISTAKES]
