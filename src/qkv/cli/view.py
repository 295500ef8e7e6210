"""`qkv view`: what attends to what."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.evaluate import pairs_of
from qkv.cli.talk import note, result, result_drawn, result_json, say
from qkv.cli.translate import never_seen


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
    count: Annotated[
        int, typer.Option("--count", min=1, help="Without texts: how many of the run's test (or validation) set.")
    ] = 20,
    beam: options.Beam = 1,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """See what attends to what: a heat map and a page.

    The heat map is of the first text; the page holds all of them, with every layer and head to explore.
    """
    from qkv.tasks.translator import Search, Translator
    from qkv.view import heat_map, pick_map, save_page, save_png
    from qkv.view.selection import pick_head

    translator = Translator(run, device=device)
    chosen = texts or [pair.source for pair in pairs_of(run, None, None)[1][:count]]
    answers = [found[0] for found in translator.translate(chosen, Search(beam), attention=True)]
    first = answers[0]
    for number, answer in enumerate(answers, start=1):
        if answer.unknown:
            note(f"input {number}: {never_seen(answer.unknown)}")
    shown = pick_map(first, layer)
    pick_head(shown, head)  # a wrong one should be told before anything is written
    written = {"page": str(save_page(answers, page or run / "attention.html"))}
    if png is not None:
        written["png"] = str(save_png(first, png, layer=layer, head=head))
    if json:
        result_json(written)
        return
    say(f"{first.source}  ->  {first.text}")
    result_drawn(heat_map(shown, head=head))
    for path in written.values():
        result(path)
