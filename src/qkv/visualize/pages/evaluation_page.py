"""HTML page of evaluations: metrics, scores of each class, confusions, calibration and worst examples, in one file."""

import html
import os
from collections.abc import Sequence
from pathlib import Path

from qkv.tasks.base.evaluation import MAX_MISTAKES, Evaluation
from qkv.visualize.notebook.evaluations import evaluation_html
from qkv.visualize.notebook.html import rules
from qkv.visualize.pages.template import write_page


def save_evaluations(
    evaluations: Sequence[Evaluation], path: str | os.PathLike[str], model: str, command: str = ""
) -> Path:
    """Write the evaluations of a model as one self-contained HTML file without scripts, with the command at the top."""
    sections = "".join(
        f'<section class="qkv"><h2>{html.escape(evaluation.split)}</h2>{evaluation_html(evaluation, MAX_MISTAKES)}'
        f"</section>\n"
        for evaluation in evaluations
    )
    parts = {"sections": sections, "meta": html.escape(command)}
    return write_page(path, "evaluation_page.html", f"Evaluation of {model}", parts, style={"rules": rules()})
