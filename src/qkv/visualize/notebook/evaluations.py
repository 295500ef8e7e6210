"""Evaluations and runs in notebooks; the parts of an evaluation are also those of its page."""

import math
import os
from collections.abc import Sequence
from html import escape

import numpy as np

from qkv.metrics.class_metrics import Calibration, ClassTable, ConfusionMatrix
from qkv.runtime.text import aligned_numbers
from qkv.tasks.base.evaluation import Evaluation, Mistake
from qkv.training.run import Run
from qkv.visualize.image_overlay import data_url, resized
from qkv.visualize.notebook.html import (
    Markup,
    fragment,
    paragraph,
    picture,
    rgba,
    shade,
    strong,
    table,
    text,
    to_html,
    wide,
)

MAX_LABELS = 30  # of a drawn confusion matrix; of more labels, the most frequent confusions are listed
MAX_CONFUSIONS, MAX_MISTAKES = 20, 5
THUMBNAIL = 64  # pixels of the longer side
DIAGRAM, MARGIN = 220, 34  # pixels
CURVE_WIDTH, CURVE_HEIGHT, MAX_POINTS = 360, 90, 200


@to_html.register
def _(result: Evaluation) -> str:
    return fragment(evaluation_html(result, MAX_MISTAKES))


def evaluation_html(evaluation: Evaluation, max_mistakes: int) -> str:
    """Return all parts of an evaluation."""
    where = f" of {evaluation.split}" if evaluation.split else ""
    rows = [
        (evaluation.metric(name).name, evaluation.shown(name), evaluation.signatures.get(name, ""))
        for name in evaluation.reported_scores
    ]
    parts = [
        paragraph(text(evaluation.amount + where)),
        table(["metric", "value", ""], rows, (0, 2)),
    ]
    if methods := evaluation.interval_methods:
        note = f"In brackets: 95 % confidence interval ({', '.join(methods)})"
        parts.append(paragraph(note, quiet=True))
    parts += [class_html(classes) for classes in evaluation.classes if classes.rows]
    if evaluation.confusion is not None and len(evaluation.confusion.labels) > 1:
        parts.append(confusion_html(evaluation.confusion))
    if evaluation.calibration is not None and evaluation.calibration.bins:
        parts.append(calibration_html(evaluation.calibration))
    if evaluation.mistakes:
        parts.append(mistakes_html(evaluation, evaluation.mistakes[:max_mistakes]))
    return "".join(parts)


def heading(title: str) -> str:
    return f"<h3>{text(title)}</h3>"


def mistakes_html(evaluation: Evaluation, mistakes: Sequence[Mistake]) -> str:
    """Return examples that the model got wrong; images as thumbnails with their paths in the common folder."""
    sources, note = [mistake.source for mistake in mistakes], ""
    if evaluation.pictures and (folder := _common_folder(sources)):
        sources = [os.path.relpath(source, folder) for source in sources]
        note = paragraph(f"in {text(folder)}", quiet=True)
    scores = aligned_numbers([mistake.score for mistake in mistakes])
    headers = ["input", "output", "reference", evaluation.mistake_score or "score"]
    cells: list[tuple[str, ...]] = [
        (source, mistake.output, mistake.reference, score)
        for source, mistake, score in zip(sources, mistakes, scores, strict=True)
    ]
    if evaluation.pictures:
        headers = ["", *headers]
        cells = [(_thumbnail(evaluation, mistake.source), *row) for mistake, row in zip(mistakes, cells, strict=True)]
    columns = (0, 1, 2, 3) if evaluation.pictures else (0, 1, 2)
    return heading(f"worst {len(mistakes)} mistakes") + note + table(headers, cells, columns)


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all paths are in; "" if there is none."""
    try:
        return os.path.commonpath([os.path.dirname(path) for path in paths])
    except ValueError:  # absolute and relative paths
        return ""


def _thumbnail(evaluation: Evaluation, source: str) -> str:
    """Return the image of a mistake as the model sees it; "" if there is none."""
    if (pixels := evaluation.pictures.get(source)) is None:
        return ""
    colors = np.broadcast_to(pixels, (*pixels.shape[:2], 3))  # also of gray images
    image = resized(colors, THUMBNAIL)
    return Markup(picture(data_url(image), image.width, image.height, source))


def class_html(classes: ClassTable) -> str:
    """Return the scores of all classes and their averages."""
    rows = [
        (row.name, f"{row.precision:.2%}", f"{row.recall:.2%}", f"{row.f1:.2%}", f"{row.support:,}")
        for row in classes.summary
    ]
    return heading(classes.title) + table(["", "precision", "recall", "F1", "support"], rows)


def confusion_html(matrix: ConfusionMatrix) -> str:
    """Return a confusion matrix shaded by the share of each row, or the most frequent confusions of many labels."""
    if len(matrix.labels) > MAX_LABELS:
        pairs = [(reference, label, f"{count:,}") for reference, label, count in matrix.largest(MAX_CONFUSIONS)]
        return heading("most frequent confusions") + table(["reference", "predicted", "count"], pairs, (0, 1))
    header = "".join(f'<th><span class="up">{text(label)}</span></th>' for label in matrix.labels)
    rows = []
    for label, counts in zip(matrix.labels, matrix.counts, strict=True):
        total = sum(counts) or 1
        cells = "".join(
            f'<td class="{shade(count / total)}" title="{text(label)} as {text(predicted)}: '
            f'{count / total:.1%}">{f"{count:,}" if count else ""}</td>'
            for predicted, count in zip(matrix.labels, counts, strict=True)
        )
        rows.append(f"<tr><th>{text(label)}</th>{cells}</tr>")
    note = paragraph("rows: references, columns: predictions; shaded by the share of the row", quiet=True)
    grid = f'<table class="map counts"><thead><tr><th></th>{header}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return heading("confusion matrix") + wide(grid) + note


def calibration_html(calibration: Calibration) -> str:
    """Return the reliability diagram: the accuracy by confidence, with the diagonal of perfect calibration."""
    side, bars = DIAGRAM, []
    for part in calibration.bins:
        x, width, height = MARGIN + part.low * side, (part.high - part.low) * side, part.accuracy * side
        label = f"confidence {part.confidence:.1%}, accuracy {part.accuracy:.1%}, {part.count:,} predictions"
        bars.append(
            f'<rect x="{x + 1:.1f}" y="{4 + side - height:.1f}" width="{width - 2:.1f}" height="{height:.1f}" '
            f'fill="{rgba(0.7)}"><title>{label}</title></rect>'
        )
    line = (
        f'<path d="M{MARGIN} {4 + side}L{MARGIN + side} 4" stroke="currentColor" stroke-dasharray="4" opacity="0.6"/>'
    )
    frame = f'<path d="M{MARGIN} 4V{4 + side}H{MARGIN + side}" stroke="currentColor" fill="none" opacity="0.4"/>'
    axes = "".join(
        f'<text x="{MARGIN + share * side:.0f}" y="{side + 19}" text-anchor="middle">{share:.0%}</text>'
        f'<text x="{MARGIN - 4}" y="{8 + side - share * side:.0f}" text-anchor="end">{share:.0%}</text>'
        for share in (0.0, 0.5, 1.0)
    )
    diagram = (
        f'<svg width="{side + MARGIN + 20}" height="{side + 26}" role="img" fill="currentColor" font-size="10" '
        f'aria-label="Reliability diagram">{"".join(bars)}{line}{frame}{axes}</svg>'
    )
    note = f"expected calibration error {calibration.error:.2%}; horizontal: confidence, vertical: accuracy"
    return heading("calibration") + diagram + paragraph(note, quiet=True)


@to_html.register
def _(result: Run) -> str:
    train, valid = ([entry for entry in result.log if entry.get("kind") == kind] for kind in ("train", "valid"))
    name = result.recipe.train.best_by
    metric = result.recipe.task_class.metrics[name]
    curves = [curve_html("training loss", [(entry["step"], entry.get("loss")) for entry in train])]
    curves.append(curve_html(f"validation {metric.name}", [(entry["step"], entry.get(name)) for entry in valid]))
    header = paragraph(strong(str(result.folder)), f" {text(result.title)}")
    return fragment(header, paragraph(text(result.progress), quiet=True), f'<div class="tiles">{"".join(curves)}</div>')


def curve_html(title: str, points: list[tuple[int, float | None]]) -> str:
    """Return a learning curve with its lowest and highest values; "" with fewer than two points."""
    finite = [(step, value) for step, value in points if isinstance(value, int | float) and math.isfinite(value)]
    finite = finite[:: max(1, len(finite) // MAX_POINTS)]
    if len(finite) < 2:
        return ""
    values = [value for _, value in finite]
    low, high, last = min(values), max(values), finite[-1][0] or 1
    width, height, span = CURVE_WIDTH - 4, CURVE_HEIGHT - 4, (high - low) or 1
    path = " ".join(f"{2 + step / last * width:.1f},{2 + height * (high - value) / span:.1f}" for step, value in finite)
    line = f'<polyline points="{path}" fill="none" stroke="{rgba(1.0)}" stroke-width="1.5"/>'
    label = f"{title}: {low:.3g} to {high:.3g}, {finite[-1][0]:,} steps"
    size = f'width="{CURVE_WIDTH}" height="{CURVE_HEIGHT}"'
    svg = f'<svg {size} role="img" aria-label="{escape(label)}">{line}</svg>'
    return f"<figure><figcaption>{text(label)}</figcaption>{svg}</figure>"
