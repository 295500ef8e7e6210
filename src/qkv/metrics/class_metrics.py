"""Metrics of classifiers by class: precision, recall and F1, confusion matrix, calibration."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

BINS = 10  # of the confidence, from 0 to 1


@dataclass(frozen=True)
class ClassScore:
    """Scores of one class; a ratio without examples is 0.

    precision = correct / predicted,   recall = correct / support,   F1 = 2 correct / (predicted + support)
    """

    name: str
    correct: int
    predicted: int  # how often the class was predicted
    support: int  # how often it is the reference

    @property
    def precision(self) -> float:
        return _ratio(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        return _ratio(self.correct, self.support)

    @property
    def f1(self) -> float:
        return _ratio(2 * self.correct, self.predicted + self.support)


@dataclass(frozen=True)
class AverageScore:
    """Scores of a class, or the average of those of several classes."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassTable:
    """Scores of all classes: of labels, of tags, or of the types of entities."""

    title: str
    rows: tuple[ClassScore, ...]

    @property
    def averages(self) -> tuple[AverageScore, ...]:
        """Micro average over all examples, macro average over classes, and that weighted by the support."""
        if not self.rows:
            return ()
        total = ClassScore(
            "micro average",
            sum(row.correct for row in self.rows),
            sum(row.predicted for row in self.rows),
            sum(row.support for row in self.rows),
        )
        micro = AverageScore(total.name, total.precision, total.recall, total.f1, total.support)
        return micro, self._mean("macro average", [1.0] * len(self.rows)), self._mean("weighted average", [
            float(row.support) for row in self.rows
        ])  # fmt: skip

    @property
    def summary(self) -> tuple[AverageScore, ...]:
        """The scores of all classes, followed by their averages."""
        rows = (AverageScore(row.name, row.precision, row.recall, row.f1, row.support) for row in self.rows)
        return (*rows, *self.averages)

    def _mean(self, name: str, weights: Sequence[float]) -> AverageScore:
        total = sum(weights) or 1.0
        scores = [(row.precision, row.recall, row.f1) for row in self.rows]
        precision, recall, f1 = (
            sum(weight * score[column] for weight, score in zip(weights, scores, strict=True)) / total
            for column in range(3)
        )
        return AverageScore(name, precision, recall, f1, sum(row.support for row in self.rows))


@dataclass(frozen=True)
class ConfusionMatrix:
    """How often each label was predicted for each reference."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]  # a row for each reference label, a column for each predicted one

    def largest(self, count: int) -> list[tuple[str, str, int]]:
        """Return the most frequent confusions: (reference, predicted, count)."""
        pairs = [
            (reference, predicted, self.counts[row][column])
            for row, reference in enumerate(self.labels)
            for column, predicted in enumerate(self.labels)
            if row != column and self.counts[row][column]
        ]
        return sorted(pairs, key=lambda pair: -pair[2])[:count]


@dataclass(frozen=True)
class CalibrationBin:
    """Predictions with a confidence in (low, high]."""

    low: float
    high: float
    count: int
    confidence: float  # mean probability of the predicted label
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """How well the probability of the predicted label matches the accuracy; bins without predictions are left out."""

    bins: tuple[CalibrationBin, ...]

    @property
    def error(self) -> float:
        """Expected calibration error: sum_b n_b / n |accuracy_b - confidence_b| (Naeini et al. 2015)."""
        total = sum(part.count for part in self.bins)
        return sum(part.count * abs(part.accuracy - part.confidence) for part in self.bins) / total if total else 0.0


def class_table(title: str, predictions: Sequence[str], references: Sequence[str]) -> ClassTable:
    """Return the scores of each label that occurs, in the order of their names."""
    correct = Counter(label for label, reference in zip(predictions, references, strict=True) if label == reference)
    predicted, support = Counter(predictions), Counter(references)
    names = sorted({*predicted, *support})
    return ClassTable(title, tuple(ClassScore(name, correct[name], predicted[name], support[name]) for name in names))


def confusion_matrix(predictions: Sequence[str], references: Sequence[str]) -> ConfusionMatrix:
    """Count the predictions for each reference, over the labels that occur."""
    counts = Counter(zip(references, predictions, strict=True))
    labels = tuple(sorted({*predictions, *references}))
    return ConfusionMatrix(labels, tuple(tuple(counts[row, column] for column in labels) for row in labels))


def calibration(confidences: Iterable[float], correct: Iterable[bool], bins: int = BINS) -> Calibration:
    """Return the accuracy by confidence, in bins of equal width; the lowest bin includes 0."""
    members: dict[int, list[tuple[float, bool]]] = {}
    for confidence, right in zip(confidences, correct, strict=True):
        number = next((number for number in range(bins - 1) if confidence <= (number + 1) / bins), bins - 1)
        members.setdefault(number, []).append((confidence, right))
    return Calibration(
        tuple(
            CalibrationBin(
                number / bins,
                (number + 1) / bins,
                len(part),
                fmean(confidence for confidence, _ in part),
                fmean(right for _, right in part),
            )
            for number, part in sorted(members.items())
        )
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
