"""`qkv evaluate`: score a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.console import command_line, info, note, progress_bar, result, result_json
from qkv.errors import InputError
from qkv.runtime.files import write_atomically

if TYPE_CHECKING:
    from qkv.experiments.evaluation import EvaluationSession
    from qkv.tasks.base.evaluation import Evaluation

Split = Annotated[
    list[str] | None,
    typer.Option(
        "--split",
        metavar="SPLIT",
        autocompletion=options.complete_values("train", "valid", "test", "all-tests"),
        help="Split to evaluate, or all-tests; repeatable [test].",
    ),
]
Limit = Annotated[int | None, options.count_option("--limit", 1, "Evaluate only the first N examples.")]
Output = Annotated[Path | None, options.output_file("--output", "FILE", "Write the outputs, one per line.")]
Page = Annotated[Path | None, options.page_file("Write an HTML page with all results.")]
NoRecord = Annotated[bool, typer.Option("--no-record", help="Do not append the result to RUN/results.jsonl.")]


def evaluate(
    run: options.Folder,
    split: Split = None,
    data: options.Data = None,
    column: options.Columns = None,
    limit: Limit = None,
    num_beams: options.NumBeams = 1,
    length_penalty: options.LengthPenalty = 1.0,
    output: Output = None,
    page: Page = None,
    no_record: NoRecord = False,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Evaluate a model on its test set or on your files.

    Reports the metrics of the task, with confidence intervals of BLEU, chrF (sacrebleu), error rates and accuracies;
    precision, recall and F1 of each class, the confusion matrix and the calibration for classifiers and taggers; and
    the worst examples. Results on a whole split are appended to RUN/results.jsonl for `qkv compare`.
    """
    from qkv.experiments.evaluation import open_evaluation
    from qkv.generation import GenerationConfig
    from qkv.visualize.pages.evaluation_page import save_evaluations

    search = GenerationConfig(num_beams=num_beams, length_penalty=length_penalty)
    if data and split is not None:
        raise InputError("--split cannot be combined with --data")
    columns = options.parse_columns(column)
    session = open_evaluation(run, split, data, columns, search=search, limit=limit, strict=strict, device=device)
    if output is not None and not session.task.searches:
        raise InputError(f"{run}: --output requires a model that generates text, not one of {session.task.title}")
    if output is not None and len(session.names) > 1:
        raise InputError(f"--output requires a single split, not {len(session.names)}: {', '.join(session.names)}")
    for message in session.notes:
        note(message)
    results = []
    for name in session.names:
        for message in session.task.notes_on(session.data, name):
            note(message)
        evaluation = _evaluate(session, name)
        _print_evaluation(run, evaluation, json=json)
        results.append(evaluation)
        if output is not None:
            lines = (" ".join(text.splitlines()) for text in evaluation.outputs)
            write_atomically(output, "".join(f"{line}\n" for line in lines).encode())
        if session.recordable and not no_record:
            record = session.record(evaluation)
            suffix = "" if record.finished else f" (training is not finished: step {record.steps:,})"
            info(f"recorded in {run / 'results.jsonl'}{suffix}")
    if page is not None:
        result(str(save_evaluations(results, page, str(run), command_line())))


def _evaluate(session: "EvaluationSession", split: str) -> "Evaluation":
    """Evaluate a model on a split, with a progress bar."""
    count = len(session.data.splits[split]) if session.task.searches else 0
    with progress_bar("evaluating", count) as progress:
        return session.evaluate(split, progress)


def _print_evaluation(run: Path, evaluation: "Evaluation", *, json: bool) -> None:
    from qkv.visualize.evaluation_table import evaluation_text

    if evaluation.skipped:
        note(f"skipped {evaluation.skipped} pair(s) longer than the model allows")
    if json:
        result_json({"run": str(run), **evaluation.to_dict()})
        return
    info(f"{run}: {evaluation.amount} of {evaluation.split}")
    result(evaluation_text(evaluation))
