"""`qkv models`: list models and show the keys of their configs."""

from typing import Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.console import result, result_json
from qkv.cli.keys import KeyTable, config_keys, format_rows, format_value, print_tables, tables_json
from qkv.errors import InputError

HEADERS = ("model", "class", "tasks", "presets", "description")

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback(help="List models and show their keys.")
def list_models(context: typer.Context, plugin: options.Plugin = None, json: options.Json = False) -> None:
    """List all models, with the tasks that can train them."""
    from qkv.registry import describe, registered

    if context.invoked_subcommand is not None:
        return
    rows = []
    for name, model in sorted(registered("model").items()):
        tasks, presets = _tasks(model), list(getattr(model, "presets", {}))
        if json:
            result_json(
                {"name": name, "class": model.__name__, "tasks": tasks, "presets": presets,
                 "description": describe(model)}
            )  # fmt: skip
        shown = presets if len(presets) < 6 else [*presets[:2], "...", presets[-1]]
        rows.append((name, model.__name__, ", ".join(tasks), ", ".join(shown), describe(model)))
    if not json:
        result("\n".join(format_rows(HEADERS, rows, below=2)))


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=options.complete_models, help="Model name.")],
    json: options.Json = False,
) -> None:
    """Show every key of a model: default, type and meaning.

    In a recipe these are the keys of the model table.
    """
    from qkv.registry import describe, lookup

    model = lookup("model", name)
    presets = getattr(model, "presets", {})
    table = KeyTable(f"[model] {name}: {describe(model)}", tuple(config_keys(model.config_class(), "model.")))
    if json:
        result_json({"name": name, "class": model.__name__, "tasks": _tasks(model), "presets": presets,
                     "keys": tables_json([table])})  # fmt: skip
        return
    print_tables([table], ("key", "default", "type", "meaning"))
    if presets:
        result("\npresets")
    for preset, sizes in presets.items():
        result(f"{preset}: {', '.join(f'{key} = {format_value(value)}' for key, value in sizes.items())}")
    result(f"\ntasks\n{', '.join(_tasks(model))}")


def _tasks(model: type[Any]) -> list[str]:
    """Return the tasks that can train a model: it has their interface and accepts their options."""
    from qkv.registry import registered

    return [name for name, task in sorted(registered("task").items()) if _fits(model, task)]


def _fits(model: type[Any], task: type[Any]) -> bool:
    if not issubclass(model, task.model):
        return False
    fields = model.config_class.model_fields
    try:
        model.config_class(**{key: value for key, value in task.model_options.items() if key in fields})
    except InputError:
        return False
    return True
