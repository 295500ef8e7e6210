"""`qkv demo`: train a small model, evaluate it and show its attention; about a minute on two cores."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.console import command_line, info, progress_bar, result, result_json, result_rich
from qkv.errors import InputError

RECIPE = "dates-gru"
EXAMPLES = (
    "Donnerstag, 5. März 2026",
    "the fifth of March 2026",
    "Thu, 3/5/26",
    "5 марта 2026 г.",
    "jeudi 5 mars 2026",
)


def demo(
    output: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="Output directory; a finished demo there is reused.")
    ] = Path("runs/demo"),
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Train, evaluate and inspect a small model.

    A GRU with additive attention learns to normalize dates in ten languages and is tested on 2,000 held-out dates.
    """
    from qkv.experiments.evaluation import evaluate_split
    from qkv.pipelines.translator import GREEDY, Translator
    from qkv.training import job
    from qkv.training.recipe import read_recipe
    from qkv.training.run import Run
    from qkv.training.run_manifest import MANIFEST
    from qkv.visualize import heat_map, save_page, save_png
    from qkv.visualize.evaluation_table import evaluation_text

    recipe = read_recipe(RECIPE)
    info("1. Train a GRU with additive attention to normalize dates in ten languages")
    if (output / MANIFEST).exists():
        if Run.open(output).recipe != recipe:
            raise InputError(f"{output}: contains a different run; choose another --output")
        info(f"   {output} already contains a demo: resuming it (delete the directory to start over)")
        done = job.resume(output, device)
    else:
        done = job.begin(recipe, output, device)
    if not done.state.finished:
        info(f"stopped: saved {done.run.checkpoints[-1]}   resume with: qkv demo --output {output}")
        raise typer.Exit(options.INTERRUPTED)
    info(f"   {done.state.step:,} steps in {done.state.seconds:.0f} s")

    data = done.run.data()
    pairs = data.splits["test"]
    info(f"2. Evaluate on {len(pairs):,} held-out dates")
    translator = Translator(output, device=device)
    task = recipe.task_class.for_evaluation(data, translator.model, recipe.task, recipe.train, recipe.seed)
    with progress_bar("testing", len(pairs)) as progress:
        evaluation = evaluate_split(task, translator.model, data, "test", GREEDY, progress)

    info("3. Translate and show the attention weights")
    answers = translator(EXAMPLES, attention=True)
    extra = translator([pair.source for pair in pairs[:45]], attention=True)
    page = save_page([*answers, *extra], output / "attention.html", model=str(output), command=command_line())
    picture = save_png(answers[0], output / "attention.png")
    if json:
        summary = {"seconds": done.state.seconds, "size": evaluation.size, **evaluation.scores}
        result_json({**summary, "page": str(page), "png": str(picture)})
        return
    result(evaluation_text(evaluation))
    result("")
    for answer in answers:
        result(f"{answer.source:28} {answer.text}")
    result("")
    result_rich(heat_map(answers[0].attention[0]))
    result(f"figure: {picture}")
    result(f"page:   {page}   (open it in a browser and hover over a character)")
