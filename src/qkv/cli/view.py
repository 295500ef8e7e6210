"""`qkv view`: what attends to what."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.evaluate import pairs_of
from qkv.cli.talk import result, result_json, say, stdout


def view(
    run: options.Folder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="What to look at.")] = None,
    page: Annotated[
        Path | None, typer.Option("--out", metavar="PAGE.html", help="The page [RUN/attention.html].")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE.png", help="Also draw the first text as a picture.")
    ] = None,
    layer: Annotated[
        str | None, typer.Option("--layer", metavar="LAYER", help="The layer to draw [the last that reads the source].")
    ] = None,
    head: Annotated[int | None, typer.Option("--head", min=0, help="The head to draw [their average].")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Without texts: how many of the test set.")] = 20,
    beam: options.Beam = 1,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """See what attends to what: a heat map and a page.

    The heat map is of the first text; the page holds all of them, with every layer and head to explore.
    """
    from qkv.tasks.translate import Translator
    from qkv.view import heat_map, pick_map, save_page, save_png

    translator = Translator(run, device=device)
    chosen = texts or [pair.source for pair in pairs_of(run, None, None)[1][:count]]
    answers = [found[0] for found in translator.translate(chosen, beam=beam, attention=True)]
    first = answers[0]
    shown = pick_map(first, layer)
    written = {"page": str(save_page(answers, page or run / "attention.html"))}
    if png is not None:
        written["png"] = str(save_png(first, png, layer=layer, head=head))
    if json:
        result_json(written)
        return
    say(f"{first.source}  ->  {first.text}")
    stdout.print(heat_map(shown, head=head))
    for path in written.values():
        result(path)
