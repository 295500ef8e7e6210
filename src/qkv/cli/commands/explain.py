"""`qkv explain`: which parts of an input explain a prediction, and how faithful the explanation is."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.console import command_line, info, note, progress_bar, result, result_json, result_rich, results_to
from qkv.errors import InputError
from qkv.runtime.text import printable

if TYPE_CHECKING:
    from qkv.interpret.attribution import AttributionOptions
    from qkv.interpret.explainable import Explainable
    from qkv.interpret.explanation import ExplainedPipeline, Explanation
    from qkv.interpret.faithfulness_report import ReportExample

LIMIT = 200  # examples of a report
TOP = 24  # units shown


class Unit(StrEnum):
    """Units of a hierarchical attention network."""

    word = "word"
    sentence = "sentence"


class Layers(StrEnum):
    """Layers of attention scores."""

    last = "last"
    all = "all"


Source = Annotated[str | None, typer.Argument(metavar="INPUT", help="Text, prompt, or path of an image.")]
Method = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="NAME",
        autocompletion=options.complete_methods,
        help="attention, rollout, value_weighted, gradient, integrated_gradients, leave_one_out, random or all; "
        "repeatable [attention; all in a report].",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="LABEL",
        help="Label or next token to explain [predicted], or output token or its index [all].",
    ),
]
Document = Annotated[
    Path | None, typer.Option("--document", metavar="FILE", help="File to read as a single text (- for stdin).")
]
UnitOption = Annotated[Unit | None, typer.Option("--unit", help="Units of a hierarchical attention network [word].")]
LayersOption = Annotated[Layers, typer.Option("--layers", help="Attention layers to average.")]
Steps = Annotated[int, typer.Option("--steps", min=1, max=10_000, help="Steps of integrated gradients.")]
Top = Annotated[int, options.count_option("--top", 0, "Units to show; 0: all.")]
Faithful = Annotated[bool, typer.Option("--faithfulness", help="Measure comprehensiveness and sufficiency.")]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="SPLIT",
        autocompletion=options.complete_splits,
        help="Report on the examples of a split, e.g. test.",
    ),
]
Input = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="Report on the lines of a file or table (- for stdin).")
]
Limit = Annotated[int, options.count_option("--limit", 1, "Examples of a report.")]
Other = Annotated[
    Path | None,
    typer.Option("--against", metavar="RUN", help="Report: rank agreement with another run, e.g. of another seed."),
]
Page = Annotated[Path | None, options.page_file("Write an HTML page with the scores.")]


def explain(
    run: options.Folder,
    source: Source = None,
    document: Document = None,
    method: Method = None,
    target: Target = None,
    unit: UnitOption = None,
    layers: LayersOption = Layers.last,
    steps: Steps = 32,
    top: Top = TOP,
    faithfulness: Faithful = False,
    split: Split = None,
    file: Input = None,
    column: options.InputColumn = None,
    limit: Limit = LIMIT,
    against: Other = None,
    seed: options.Seed = 0,
    output: options.Output = None,
    page: Page = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Attribute a prediction to the parts of its input.

    Scores each token, word, sentence or region of the input.

    For a classifier of texts or images, the scores are those of the predicted label or of --target; for a language
    model, those of the next token after a prompt. For a translator or a captioner, each output token is explained, or
    --target only. A positive score supports the output. With --faithfulness, units with the greatest scores are
    removed: comprehensiveness is the drop of the output's probability without them, sufficiency the drop with them
    alone. With --split or --input, the methods are compared on examples of the run's dataset or on the lines of a file,
    and the attention weights are permuted and replaced by adversarial ones (Jain and Wallace 2019).
    """
    from qkv.interpret.attribution import AttributionOptions, check_methods

    is_report = split is not None or file is not None
    names = check_methods(method or ["all" if is_report else "attention"])
    attribution = AttributionOptions("all" if layers is Layers.all else "last", steps, seed)
    if is_report:
        if (source, document, target, page) != (None, None, None, None) or (split is not None and file is not None):
            raise InputError("--split and --input exclude each other, an input, --document, --target and --page")
        with results_to(output):
            _report(
                run,
                names,
                attribution,
                split,
                file,
                options.parse_columns(column),
                limit,
                against,
                unit,
                device,
                json=json,
            )
        return
    if against is not None:
        raise InputError("--against requires --split or --input")
    _explain_input(run, _read(source, document), names, attribution, target, unit, top, page, output, device,
                   faithfulness=faithfulness, skip="all" in (method or ()), json=json)  # fmt: skip


def _read(source: str | None, document: Path | None) -> str:
    """Return the input of the command."""
    from qkv.cli.texts import read_documents

    if (source is None) == (document is None):
        raise InputError("pass one input: a text, the path of an image or --document FILE; or --split for a report")
    text = source if document is None else read_documents([document])[0]
    assert text is not None
    if not text.strip():
        raise InputError("the input is empty")
    return text


def _explain_input(
    run: Path, source: str, names: list[str], attribution: "AttributionOptions", target: str | None, unit: Unit | None,
    top: int, page: Path | None, output: Path | None, device: str, *, faithfulness: bool, skip: bool, json: bool,
) -> None:  # fmt: skip
    from qkv.cli.texts import note_too_long
    from qkv.interpret.attribution import unsupported
    from qkv.interpret.explanation import build_explainable, build_pipeline, explain_all
    from qkv.pipelines.classifier import Classifier

    pipeline = build_pipeline(run, device)
    if isinstance(pipeline, Classifier):
        note_too_long(pipeline, [source])
    prediction = build_explainable(pipeline, source, target, unit and unit.value)
    if skip:
        for reason in (f"{name}: {why}" for name in names if (why := unsupported(prediction, name))):
            note(reason)
        names = [name for name in names if unsupported(prediction, name) is None]
    explanations = explain_all(prediction, names, attribution)
    if faithfulness:
        for explanation in explanations:
            _ = explanation.faithfulness  # measured on first access, before any output is written
    if page is not None:  # before the results, whose reader may close the pipe
        from qkv.hub.model_folder import short_name
        from qkv.visualize.explorer import explanation_answer, save_page

        answer, title = explanation_answer(explanations, source), f"Explanation of {short_name(str(run))}"
        page = save_page([answer], page, title=title, model=str(run), command=command_line())
    with results_to(output):
        if json:
            for explanation in explanations:
                result_json(as_dict(explanation, faithfulness=faithfulness))
        else:
            _print(prediction, explanations, top, faithfulness=faithfulness)
    if page is not None:
        info(f"page: {page}")


def _print(prediction: "Explainable", explanations: "list[Explanation]", top: int, *, faithfulness: bool) -> None:
    """Print the prediction, the units with their scores, and the faithfulness of each method."""
    from qkv.visualize.explanation_lines import explanation_lines

    first = explanations[0]
    if len(first.outputs) == 1:
        info(f"{printable(prediction.text)}: {printable(first.outputs[0].strip())} {first.probabilities[0]:.1%}")
    else:
        info(printable(prediction.text))
    result_rich(explanation_lines(explanations, top))
    if faithfulness:
        result(f"\n{'':22}{'AOPC comprehensiveness':>24}{'AOPC sufficiency':>20}")
        for explanation in explanations:
            comprehensiveness, sufficiency = _aopc(explanation)
            result(f"{explanation.method:22}{comprehensiveness:24.3f}{sufficiency:20.3f}")


def _aopc(explanation: "Explanation") -> tuple[float, float]:
    """Return the AOPC of comprehensiveness and of sufficiency, averaged over the outputs."""
    measured = explanation.faithfulness
    return (
        sum(part.aopc_comprehensiveness for part in measured) / len(measured),
        sum(part.aopc_sufficiency for part in measured) / len(measured),
    )


def as_dict(explanation: "Explanation", *, faithfulness: bool) -> dict[str, Any]:
    """Return an explanation as a JSON object."""
    fields: dict[str, Any] = {
        "method": explanation.method,
        "prediction": explanation.prediction,
        "units": list(explanation.units),
        "outputs": [
            {"output": output, "probability": round(p, 6), "scores": [round(float(score), 6) for score in scores]}
            for output, p, scores in zip(
                explanation.outputs, explanation.probabilities, explanation.all_scores, strict=True
            )
        ],
    }
    if faithfulness:
        for values, measured in zip(fields["outputs"], explanation.faithfulness, strict=True):
            values |= {"comprehensiveness": measured.comprehensiveness, "sufficiency": measured.sufficiency}
            values |= {"bins": measured.bins}
    return fields


def _report(
    run: Path, names: list[str], attribution: "AttributionOptions", split: str | None, file: Path | None,
    columns: dict[str, str], limit: int, against: Path | None, unit: Unit | None, device: str, *, json: bool,
) -> None:  # fmt: skip
    """Print the report on the examples of a split, or on the lines of a file."""
    from qkv.interpret.explanation import build_pipeline
    from qkv.interpret.faithfulness_report import faithfulness_report, summary, to_markdown

    name, examples = _examples(run, split, file, columns, limit)
    pipeline: ExplainedPipeline = build_pipeline(run, device)
    other = None if against is None else build_pipeline(against, device)
    with progress_bar("explaining", len(examples)) as progress:
        report = faithfulness_report(
            pipeline, examples, names, unit=unit and unit.value, other=other, options=attribution, progress=progress
        )
    if json:
        result_json({"run": str(run), "split": name, **summary(report)})
    else:
        result(to_markdown(report, f"{run.name}, {name}").rstrip())


def _examples(
    run: Path, split: str | None, file: Path | None, columns: dict[str, str], limit: int
) -> "tuple[str, list[ReportExample]]":
    """Return the name and the examples of a split or a file."""
    from qkv.cli.texts import input_role, read_texts
    from qkv.experiments.evaluation import select_splits
    from qkv.interpret.faithfulness_report import ReportExample, report_examples
    from qkv.training.run import open_run

    if split is None:
        lines = read_texts(None, file, strict=False, columns=columns, role=input_role(run))
        return str(file), [ReportExample(line) for line in lines if line.strip()][:limit]
    data = open_run(run)[1]
    (name,) = select_splits(str(run), [split], list(data.splits))
    return name, report_examples(data, name, limit)
