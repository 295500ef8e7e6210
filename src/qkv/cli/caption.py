"""`qkv caption`: image captioning."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.console import info, note, progress_bar, result_json, result_line

if TYPE_CHECKING:
    from qkv.pipelines.captioner import Caption

CHUNK = 64  # images processed at a time


def caption(
    run: options.Folder,
    pictures: Annotated[
        list[Path], typer.Argument(metavar="PICTURE", help="Image, or .safetensors file of image features.")
    ],
    beam: options.Beam = 1,
    page: Annotated[
        Path | None,
        typer.Option(
            "--out",
            callback=options.check_output,
            metavar="PAGE.html",
            help="Write an HTML page showing where each word attends.",
        ),
    ] = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Caption images.

    Prints one line per image. With --json, each caption is an object with its score and, for models with attention, a
    row of weights per token over the image grid in row-major order.
    """
    from qkv.pipelines.captioner import Captioner

    captioner = Captioner(run, device=device)
    answers: list[Caption] = []
    with progress_bar("captioning", len(pictures), streaming=True) as progress:
        for begin in range(0, len(pictures), CHUNK):
            captions = captioner(pictures[begin : begin + CHUNK], num_beams=beam)
            for number, answer in enumerate(captions, start=len(answers) + 1):
                if json:
                    result_json({"input": number, **as_dict(answer)})
                else:
                    result_line(answer.text)
            answers += captions
            progress(begin + CHUNK)
    if page is not None:
        from qkv.visualize.caption_page import save_captions

        if not captioner.model.alignment_layers:
            note("this model has no attention; the page shows captions only")
        info(str(save_captions(answers, page)))


def as_dict(answer: "Caption") -> dict[str, Any]:
    """Return a caption as a JSON object."""
    fields: dict[str, Any] = {"picture": answer.source, "text": answer.text, "score": round(answer.score, 6)}
    if answer.attention:
        attention = answer.attention[0]
        fields["tokens"] = list(attention.rows)
        fields["grid"] = list(answer.grid)
        fields["attention"] = [[round(float(weight), 6) for weight in row] for row in attention.average]
    return fields
