"""`qkv caption`: image captioning."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import command_line, info, note, progress_bar, result_json, result_line, results_to

if TYPE_CHECKING:
    from qkv.pipelines.captioner import Caption

CHUNK = 64  # images processed at a time


def caption(
    run: options.Folder,
    pictures: Annotated[
        list[str] | None,
        typer.Argument(metavar="IMAGE", help="Image, or .safetensors file of image features."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Input file, one path per line or a table (- for stdin)."),
    ] = None,
    column: options.InputColumn = None,
    num_beams: options.NumBeams = 1,
    num_return_sequences: options.NumReturnSequences = 1,
    length_penalty: options.LengthPenalty = 1.0,
    max_new_tokens: options.MaxNewTokens = None,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
    page: options.Page = None,
    png: Annotated[Path | None, options.png_file("Write a figure with the attention of each word.")] = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Caption images.

    Images are arguments, or paths in the lines of a file or of standard input, or in the column "image" of a table
    (*.csv, *.tsv, *.jsonl), relative to the folder of the table. Each caption is printed as one line. With --json, it
    is an object with its score and, for models with attention, a row of weights per token over the image grid in
    row-major order.
    """
    paths = texts.read_texts(pictures, file, strict=True, columns=options.parse_columns(column), role="image")

    from qkv.pipelines.captioner import Captioner

    captioner = Captioner(run, device=device)
    ranked, answers = num_return_sequences > 1, list[list["Caption"]]()
    with results_to(output), progress_bar("captioning", len(paths), streaming=True) as progress:
        for begin in range(0, len(paths), CHUNK):
            captions: list[Any] = captioner(
                paths[begin : begin + CHUNK],
                num_beams=num_beams,
                num_return_sequences=num_return_sequences,
                length_penalty=length_penalty,
                max_new_tokens=max_new_tokens,
                batch_size=batch_size,
            )
            for number, row in enumerate(captions, start=len(answers) + 1):
                answers.append(row if ranked else [row])
                _print(number, answers[-1], json=json, ranked=ranked)
            progress(begin + CHUNK)
    if not captioner.model.alignment_layers and (page or png):
        note("this model has no attention; the output shows captions only")
    _draw(str(run), [*chain.from_iterable(answers)], page, png)


def _draw(run: str, captions: "list[Caption]", page: Path | None, png: Path | None) -> None:
    if page is not None:
        from qkv.visualize import save_page

        info(f"attention: {save_page(captions, page, model=run, command=command_line())}")
    if png is not None:
        from qkv.visualize.caption_figure import save_captions_png

        info(f"attention: {save_captions_png(captions, png)}")


def _print(number: int, captions: "Sequence[Caption]", *, json: bool, ranked: bool) -> None:
    for rank, answer in enumerate(captions, start=1):
        if json:
            result_json({"input": number, "rank": rank, **answer.to_dict()})
        else:
            result_line(*([str(number), str(rank), f"{answer.score:.4f}"] if ranked else []), answer.text)
