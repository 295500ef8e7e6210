"""`qkv view`: attention visualization."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import command_line, info, note, result, result_json, result_rich, screen_lines

if TYPE_CHECKING:
    from qkv.datasets.examples.tagged import Tagged
    from qkv.visualize.model_view import ModelView
    from qkv.visualize.views import View

COUNT = 20  # test examples


Page = Annotated[
    Path | None,
    options.page_file("Output page [RUN/attention.html; NAME-attention.html for a pretrained model]."),
]
Png = Annotated[Path | None, options.png_file("Also plot the first input as a PNG.")]
Layer = Annotated[
    str | None,
    typer.Option("--layer", metavar="LAYER", help="Layer to plot [last cross-attention layer, else the first]."),
]
Head = Annotated[int | None, options.count_option("--head", 0, "Head to plot [average over heads].")]
NewTokens = Annotated[
    int,
    options.count_option("--max-new-tokens", 0, "Tokens that a language model generates before the view."),
]
Compare = Annotated[
    str | None,
    typer.Option(
        "--compare",
        metavar="MODEL",
        help="Another model to show side by side on the same inputs: a run, a folder or the name of a model.",
        autocompletion=options.complete_models,
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
Full = Annotated[bool, typer.Option("--full", help="Print the whole heat map, even if it exceeds the screen.")]
Count = Annotated[int, options.count_option("--count", 1, "Test examples to show if there are no inputs.")]


def view(
    run: options.Folder,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Input text, or path of an image or a WAV file.")
    ] = None,
    file: options.ParsedInput = None,
    column: options.InputColumn = None,
    document: options.Documents = None,
    page: Page = None,
    png: Png = None,
    layer: Layer = None,
    head: Head = None,
    count: Count = COUNT,
    num_beams: options.NumBeams = 1,
    max_new_tokens: NewTokens = 0,
    compare: Compare = None,
    open_page: Open = False,
    full: Full = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Visualize the attention weights of a model.

    Prints a heat map of the first input and writes an HTML page with all inputs, layers and heads. Translation models
    show decoding; text encoders (BERT), language models (GPT-2) and vision Transformers show self-attention. A
    hierarchical attention network shades sentences and words by weight; a memory network shows the weights of the
    sentences of a story, which ends with a question, in each hop; a neural Turing machine shows its read and write
    weights by step, on a sequence of a size such as 20; SNAIL shows the attended examples or bandit pulls; a speech
    recognizer shows the alignment of its transcript above the spectrogram. Models with tree positions take parsed
    sentences: --input parsed.conllu. With --compare, the page shows two models side by side.
    """
    from qkv.visualize.model_view import run_view

    values = {"document": document, "page": page, "png": png, "layer": layer, "head": head}
    values |= {"count": None if count == COUNT else count, "num_beams": None if num_beams == 1 else num_beams}
    values["max_new_tokens"] = max_new_tokens or None
    sources = _read_sources(run, text, file, document, options.parse_columns(column))
    lines = None if full else screen_lines() // (1 if compare is None else 2)
    shown = run_view(run, sources, values, device, compare=compare, max_lines=lines, command=command_line())
    models = [shown] if shown.compared is None else [shown, shown.compared]
    for model in models:
        _print_notes(model.shown, sources, model.answers)
    written = shown.write(page, png)
    if open_page:
        webbrowser.open(Path(written["page"]).absolute().as_uri())
    if json:
        result_json({**written, **shown.shown.report(shown.answers[0])})
        return
    for model in models:
        _print_first(model, named=len(models) > 1)
    for path in written.values():
        result(path)


def _print_first(model: "ModelView", *, named: bool) -> None:
    """Print the first answer of a model and its figure."""
    heading = model.shown.heading(model.answers[0])
    info(f"{model.name}: {heading}" if named else heading)
    if (figure := model.shown.figure(model.answers[0], model.options)) is not None:
        result_rich(figure)


def _read_sources(
    run: Path, text: list[str] | None, file: Path | None, documents: list[Path] | None, columns: dict[str, str]
) -> "list[str | Tagged]":
    """Return the inputs: arguments or lines, and the texts or parsed sentences (*.conllu) of whole files."""
    from qkv.datasets.formats.text_files import is_parsed, read_parsed

    sources: list[str | Tagged] = [*(text or [])]
    if file is not None:
        role = texts.input_role(run)
        sources += texts.read_conllu(text, file) or texts.read_texts(
            text, file, strict=True, columns=columns, role=role
        )
    for path in documents or []:
        sources += read_parsed(path) if is_parsed(path) else texts.read_documents([path])
    return sources


def _print_notes(shown: "View", sources: "Sequence[str | Tagged]", answers: Sequence[Any]) -> None:
    """Note truncated texts, unknown tokens, and layers that the page cannot hold."""
    from qkv.datasets.examples.tagged import text_of

    if shown.reader is not None:
        texts.note_too_long(shown.reader, [text_of(source) for source in sources])
    unknown = {number: getattr(answer, "unknown", ()) for number, answer in enumerate(answers, start=1)}
    texts.note_unknown_tokens({number: tokens for number, tokens in unknown.items() if tokens})
    if shown.layers and (fewest := min(len(answer.attention) for answer in answers)) < shown.layers:
        note(f"the page holds {fewest} of {shown.layers} layers to limit its size; use --layer to select one")
