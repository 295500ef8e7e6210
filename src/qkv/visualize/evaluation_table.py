"""An evaluation as text for the terminal: metrics, scores of each class, confusions, calibration, worst examples."""

from collections.abc import Iterator, Sequence

from qkv.metrics.class_metrics import Calibration, ClassTable, ConfusionMatrix
from qkv.runtime.text import aligned_numbers, printable, shorten_middle
from qkv.tasks.base.evaluation import Evaluation

MAX_CLASSES = 20  # more classes are listed by F1, the worst only
MAX_MATRIX = 10  # labels of a confusion matrix; of more labels, the most frequent confusions are listed
MAX_CONFUSIONS, MAX_MISTAKES = 10, 5
LABEL_WIDTH, TEXT_WIDTH = 24, 120  # characters
BAR = 20


def evaluation_text(evaluation: Evaluation) -> str:
    """Return an evaluation as lines of text."""
    parts = [_metrics(evaluation)]
    parts += [_classes(table) for table in evaluation.classes if table.rows]
    if evaluation.confusion is not None and len(evaluation.confusion.labels) > 1:
        parts.append(_confusion(evaluation.confusion))
    if evaluation.calibration is not None and evaluation.calibration.bins:
        parts.append(_calibration(evaluation.calibration))
    if evaluation.mistakes:
        parts.append(_mistakes(evaluation))
    return "\n\n".join("\n".join(part) for part in parts)


def _metrics(evaluation: Evaluation) -> list[str]:
    names = {name: evaluation.metric(name).name for name in evaluation.reported_scores}
    width = max(28, *map(len, names.values()))
    rows = []
    for name, title in names.items():
        value, _, interval = evaluation.shown(name).partition(" ")
        notes = "  ".join(filter(None, [interval, evaluation.signatures.get(name, "")]))
        rows.append(f"{title:{width}}  {value:>10}   {notes}".rstrip())
    if evaluation.seconds:
        rows.append(f"{'speed':{width}}  {evaluation.size / evaluation.seconds:10.0f}   {evaluation.unit}/s")
    return rows


def _classes(table: ClassTable) -> list[str]:
    rows = sorted(table.rows, key=lambda row: row.f1)[:MAX_CLASSES] if len(table.rows) > MAX_CLASSES else table.rows
    shown = f" (worst {MAX_CLASSES} of {len(table.rows)})" if len(table.rows) > MAX_CLASSES else ""
    names = [_label(row.name) for row in (*rows, *table.averages)]
    width = max(16, *map(len, names))
    lines = [f"{table.title + shown:{width}}  precision     recall         F1    support"]
    for name, row in zip(names, (*rows, *table.averages), strict=True):
        lines.append(f"{name:{width}}  {row.precision:>9.2%}  {row.recall:>9.2%}  {row.f1:>9.2%}  {row.support:>9,}")
    lines.insert(1 + len(rows), "")
    return lines


def _confusion(matrix: ConfusionMatrix) -> list[str]:
    if len(matrix.labels) > MAX_MATRIX:
        pairs = matrix.largest(MAX_CONFUSIONS)
        return [
            "most frequent confusions (reference, predicted, count)",
            *_columns([(_label(reference), _label(label), f"{count:,}") for reference, label, count in pairs]),
        ]
    header = ["reference \\ predicted", *map(_label, matrix.labels)]
    rows = [
        [_label(label), *(f"{count:,}" for count in counts)]
        for label, counts in zip(matrix.labels, matrix.counts, strict=True)
    ]
    return ["confusion matrix", *_columns([header, *rows])]


def _calibration(calibration: Calibration) -> list[str]:
    lines = [f"expected calibration error {calibration.error:.2%}", "confidence   accuracy      count"]
    for part in calibration.bins:
        bar = "█" * round(BAR * part.accuracy)
        lines.append(f"{part.confidence:>9.1%}  {part.accuracy:>9.1%}  {part.count:>9,}  {bar}".rstrip())
    return lines


def _mistakes(evaluation: Evaluation) -> list[str]:
    shown = evaluation.mistakes[:MAX_MISTAKES]
    by = f" by {evaluation.mistake_score}" if evaluation.mistake_score else ""
    lines = [f"worst {len(shown)} mistake(s){by}:"]
    for mistake, score in zip(shown, aligned_numbers([each.score for each in shown]), strict=True):
        source, output, reference = (
            printable(repr(shorten_middle(text, TEXT_WIDTH)), 2 * TEXT_WIDTH)
            for text in (mistake.source, mistake.output, mistake.reference)
        )
        lines.append(f"  {source}: {output} should be {reference} ({score})")
    return lines


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose first column is aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [f"{first:{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def _label(name: str) -> str:
    return printable(shorten_middle(name, LABEL_WIDTH))
