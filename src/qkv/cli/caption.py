"""`qkv caption`: pictures in, sentences about them out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.talk import counting, note, result_json, result_line, say

if TYPE_CHECKING:
    from qkv.tasks.captioner import Captioned

CHUNK = 64  # pictures that are read before any of them is answered


def caption(
    run: options.Folder,
    pictures: Annotated[
        list[Path], typer.Argument(metavar="PICTURE", help="A picture, or a .safetensors file of features.")
    ],
    beam: options.Beam = 1,
    page: Annotated[
        Path | None,
        typer.Option(
            "--out",
            callback=options.output_file,
            metavar="PAGE.html",
            help="Also write a page: where in the picture each word was read.",
        ),
    ] = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Say what is in pictures, one line for each.

    With --json each answer is an object with its score and, where the model attends, a row of weights for each token:
    over the places of a grid on the picture, row by row.
    """
    from qkv.tasks.captioner import Captioner

    captioner = Captioner(run, device=device)
    answers: list[Captioned] = []
    with counting("captioning", len(pictures), streaming=True) as progress:
        for begin in range(0, len(pictures), CHUNK):
            found = captioner.caption(pictures[begin : begin + CHUNK], beam=beam)
            for number, answer in enumerate(found, start=len(answers) + 1):
                if json:
                    result_json({"input": number, **as_dict(answer)})
                else:
                    result_line(answer.text)
            answers += found
            progress(begin + CHUNK)
    if page is not None:
        from qkv.view.captions import save_captions

        if not captioner.model.alignment_layers:
            note("this model hears the picture once and attends to nothing: the page shows captions alone")
        say(str(save_captions(answers, page)))


def as_dict(answer: "Captioned") -> dict[str, Any]:
    """A caption for machines."""
    found: dict[str, Any] = {"picture": answer.source, "text": answer.text, "score": round(answer.score, 6)}
    if answer.maps:
        first = answer.maps[0]
        found["tokens"] = list(first.rows)
        found["grid"] = list(answer.grid)
        found["attention"] = [[round(float(weight), 6) for weight in row] for row in first.average]
    return found
