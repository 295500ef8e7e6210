"""HTML page of evaluations: metrics, scores of each class, confusions, calibration and worst examples, in one file."""

import os
from collections.abc import Sequence
from pathlib import Path

from qkv.hub.model_folder import short_name
from qkv.tasks.base.evaluation import MAX_MISTAKES, Evaluation
from qkv.visualize.notebook.evaluations import evaluation_html
from qkv.visualize.notebook.html import rules
from qkv.visualize.pages.report import escaped, save_report


def save_evaluations(
    evaluations: Sequence[Evaluation], path: str | os.PathLike[str], model: str, command: str = ""
) -> Path:
    """Write the evaluations of a model as one self-contained HTML file without scripts."""
    sections = "".join(
        f'<section class="qkv"><h2>{escaped(evaluation.split)}</h2>{evaluation_html(evaluation, MAX_MISTAKES)}'
        f"</section>\n"
        for evaluation in evaluations
    )
    splits = ", ".join(evaluation.split for evaluation in evaluations)
    facts = {"Model": model, "Data": splits, "Command": command}
    pictures = any(evaluation.pictures for evaluation in evaluations)
    return save_report(path, f"Evaluation of {short_name(model)}", sections, facts, style=rules(), pictures=pictures)
