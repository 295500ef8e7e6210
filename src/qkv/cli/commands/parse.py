"""`qkv parse`: constituency trees of sentences."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import command_line, info, note, on_terminal, result_json, result_line, result_rich, results_to
from qkv.runtime.files import write_atomically

if TYPE_CHECKING:
    from qkv.datasets.examples.tagged import Tagged
    from qkv.pipelines.parser import Parse

SVG = ".svg"


def parse(
    run: options.Folder,
    text: options.Texts = None,
    file: options.Input = None,
    column: options.InputColumn = None,
    tokenized: Annotated[bool, typer.Option("--tokenized", help="Words are separated by spaces.")] = False,
    num_beams: options.NumBeams = 1,
    num_return_sequences: options.NumReturnSequences = 1,
    length_penalty: options.LengthPenalty = 1.0,
    batch_size: options.BatchSize = None,
    draw: Annotated[
        bool | None, typer.Option("--draw/--no-draw", help="Draw the trees instead of brackets [on a terminal].")
    ] = None,
    output: Annotated[
        Path | None, options.output_file("--output", "FILE", "Write the results to a file; *.svg draws the trees.")
    ] = None,
    page: options.Page = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Parse sentences into constituency trees.

    Sentences are arguments, or the lines of a file or of standard input; each is printed as a tree in brackets, or
    drawn. With --json, each tree is an object with its words, tags and constituents (label, first word, end) and, for
    models with attention, a row of weights over the words for each symbol of the linearized tree.
    """
    lines = texts.read_texts(text, file, strict=strict, columns=options.parse_columns(column))

    from qkv.pipelines.parser import Parser

    parser = Parser(run, device=device)
    search: dict[str, Any] = {
        "num_beams": num_beams, "num_return_sequences": num_return_sequences, "length_penalty": length_penalty,
        "batch_size": batch_size, "attention": json or page is not None,
    }  # fmt: skip
    parser.check([_sentence(line, tokenized) for line in lines])
    shown: list[Parse] = []
    draws = output is not None and output.suffix.lower() == SVG
    with results_to(None if draws else output):
        drawn = (on_terminal() if draw is None else draw) and not draws

        def predict(chunk: list[str]) -> list[Any]:
            return parser([_sentence(line, tokenized) for line in chunk], **search)

        for number, line, answer in texts.predictions("parsing", lines, predict):
            parses = [] if answer is None else answer if num_return_sequences > 1 else [answer]
            shown += parses if draws or page is not None else []
            if not draws:
                _print(number, line, parses, json=json, drawn=drawn, ranked=num_return_sequences > 1)
    if draws and output is not None:
        from qkv.visualize.tree_drawing import svg

        write_atomically(output, svg([parse.tree for parse in shown]).encode())
        info(f"trees: {output}")
    if page is not None:
        from qkv.visualize import save_page

        if not parser.model.alignment_layers:
            note("this model has no attention; the page shows trees only")
        info(f"attention: {save_page(shown, page, model=parser.name, command=command_line())}")


def _sentence(line: str, tokenized: bool) -> "str | Tagged":
    from qkv.datasets.examples.tagged import Tagged

    words = tuple(line.split())
    return Tagged(words, ("",) * len(words)) if tokenized else line


def _print(number: int, line: str, parses: "Sequence[Parse]", *, json: bool, drawn: bool, ranked: bool) -> None:
    """Print the trees of a sentence; an empty line has none."""
    if not parses:
        result_json({"input": number, "text": line, "tree": None}) if json else result_line("")
    for rank, parse in enumerate(parses, start=1):
        if json:
            result_json({"input": number, "rank": rank, "text": line, **parse.to_dict()})
        elif drawn:
            from qkv.visualize.tree_drawing import draw_tree

            size = shutil.get_terminal_size()
            result_rich(draw_tree(parse.tree, size.columns, max(8, size.lines - 2)))
        else:
            result_line(*([str(number), str(rank), f"{parse.score:.4f}"] if ranked else []), parse.text)
