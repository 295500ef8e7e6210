"""`qkv recipes`: list recipes and show their keys."""

from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.console import result, result_json
from qkv.cli.keys import format_rows, print_tables, recipe_keys, tables_json

if TYPE_CHECKING:
    from qkv.training.recipe import Minutes

HEADERS = ("recipe", "task", "data", "model", "training time", "purpose")

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback(help="List recipes and show their keys.")
def list_recipes(context: typer.Context, json: options.Json = False) -> None:
    """List all recipes, with the measured training time, if known: on one core of a CPU, on one H200 GPU."""
    from qkv.training.recipe import recipe_info, recipe_names

    if context.invoked_subcommand is not None:
        return
    recipes = [recipe_info(name) for name in recipe_names()]
    if json:
        for recipe in recipes:
            result_json({**recipe._asdict(), "minutes": recipe.minutes.to_dict()})
        return
    rows = [(*recipe[:4], _time(recipe.minutes), recipe.purpose) for recipe in recipes]
    result("\n".join(format_rows(HEADERS, rows, below=2)))


def _time(minutes: "Minutes") -> str:
    times = {"CPU": minutes.cpu, "GPU": minutes.gpu}
    return ", ".join(f"{value:g} min {device}" for device, value in times.items() if value is not None)


@app.command()
def show(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="NAME", autocompletion=options.complete_recipes, help="Recipe name, or path to a .toml file."
        ),
    ],
    assignments: options.Assignments = None,
    json: options.Json = False,
) -> None:
    """Show every key of a recipe: value, type and meaning.

    All keys can be changed with --set, here and in `qkv train`.
    """
    from qkv.training.recipe import read_recipe

    tables = recipe_keys(read_recipe(recipe, assignments or []))
    if json:
        result_json(tables_json(tables))
    else:
        print_tables(tables)
