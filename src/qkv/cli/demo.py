"""`qkv demo`: train a model with attention, use it, see its attention; about a minute on two cores."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import evaluate as evaluation
from qkv.cli import options
from qkv.cli.talk import counting, result, result_drawn, result_json, say
from qkv.errors import InputError

RECIPE = "dates-gru"
SHOWN = ("Donnerstag, 5. März 2026", "the fifth of March 2026", "Thu, 3/5/26", "5 марта 2026 г.", "jeudi 5 mars 2026")


def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="The demo's folder; a finished demo there is used again.")
    ] = Path("runs/demo"),
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Train a small model, test it, see its attention.

    A GRU with additive attention learns to read dates in ten languages; it is tested on 2,000 dates it never saw.
    """
    from dataclasses import asdict

    from qkv.evaluation.translation import evaluate
    from qkv.tasks.translator import Translator
    from qkv.training import job
    from qkv.training.manifest import MANIFEST
    from qkv.training.recipe import read_recipe
    from qkv.training.run import Run
    from qkv.view import heat_map, save_page, save_png

    recipe = read_recipe(RECIPE)
    say("1. Train: a GRU with additive attention learns to read dates in ten languages")
    if (out / MANIFEST).exists():
        if Run.open(out).recipe != recipe:
            raise InputError(f"{out}: holds another run; choose another --out")
        say(f"   {out} holds a demo already: resuming it (remove the folder to start over)")
        done = job.resume(out, device)
    else:
        done = job.begin(recipe, out, device)
    if not done.state.finished:
        say(f"stopped: saved {done.run.checkpoints[-1]}   go on with: qkv demo --out {out}")
        raise typer.Exit(options.INTERRUPTED)
    say(f"   {done.state.step:,} steps in {done.state.seconds:.0f} s")

    pairs = done.run.data().splits["test"]
    say(f"2. Test: {len(pairs):,} dates it never saw")
    translator = Translator(out, device=device)
    with counting("testing", len(pairs)) as progress:
        report = evaluate(translator, pairs, progress=progress)

    say("3. Use, and see")
    answers = [found[0] for found in translator.translate(SHOWN, attention=True)]
    extra = [found[0] for found in translator.translate([pair.source for pair in pairs[:45]], attention=True)]
    page = save_page([*answers, *extra], out / "attention.html", title="qkv demo: what the model reads")
    picture = save_png(answers[0], out / "attention.png")
    if json:
        result_json({"seconds": done.state.seconds, **asdict(report), "page": str(page), "picture": str(picture)})
        return
    result(evaluation.table(report))
    result("")
    for answer in answers:
        result(f"{answer.source:28} {answer.text}")
    result("")
    result_drawn(heat_map(answers[0].maps[0]))
    result(f"the picture: {picture}")
    result(f"the page:    {page}   (open it in a browser; hover a character)")
