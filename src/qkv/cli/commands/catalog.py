"""`qkv recipes`: list recipes, and show the keys of a config with value, type, default and meaning."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from qkv.cli import options
from qkv.cli.console import result_json, result_page
from qkv.cli.search_group import METAVAR, SearchGroup, search, search_words
from qkv.config import Config, Term, describe_fields, describe_options, describe_type
from qkv.registry import describe, lookup, registered

if TYPE_CHECKING:
    from qkv.training.recipe import Minutes, Recipe

HEADERS = ("key", "value", "default", "type", "meaning")
FROM_DATA = "from the data"

recipes = typer.Typer(cls=SearchGroup, subcommand_metavar=METAVAR, invoke_without_command=True, rich_markup_mode=None)


@recipes.callback(
    help="""List recipes and show their keys.

    With words, e.g. `qkv recipes translate gru`, only those that contain all of them in any column,
    in the task's full name or in the description of your own data that they are for.
    """
)
def list_recipes(context: typer.Context, json: options.Json = False) -> None:
    """List all recipes, with the measured training time, if known: on one core of a CPU, on one H200 GPU."""
    from qkv.datasets.user_files import user_datasets
    from qkv.training.recipe import recipe_info, recipe_names

    if context.invoked_subcommand is not None:
        return
    infos = [recipe_info(name) for name in recipe_names()]
    if words := search_words(context):
        own = {cls.recipe: f"your own data: {cls.description}" for cls in user_datasets().values()}
        cells = [(*info[:4], info.purpose, lookup("task", info.task).title, own.get(info.name, "")) for info in infos]
        names = {row[0] for row in search(cells, words, "recipe")}
        infos = [info for info in infos if info.name in names]
    if json:
        for info in infos:
            result_json({**info._asdict(), "minutes": info.minutes.to_dict()})
        return
    rows = [(*info[:4], _time(info.minutes), info.purpose) for info in infos]
    headers = ("recipe", "task", "data", "model", "training time", "purpose")
    result_page("\n".join(format_rows(headers, rows, below=2)))


def _time(minutes: "Minutes") -> str:
    times = {"CPU": minutes.cpu, "GPU": minutes.gpu}
    return ", ".join(f"{value:g} min {device}" for device, value in times.items() if value is not None)


@recipes.command(name="show")
def show_recipe(
    recipe: options.RecipeName, assignments: options.Assignments = None, json: options.Json = False
) -> None:
    """Show every key of a recipe: value, type and meaning.

    All keys can be changed with --set, here and in `qkv train`.
    """
    from qkv.training.recipe import read_recipe

    tables = recipe_keys(read_recipe(recipe, assignments or []))
    if json:
        result_json(tables_json(tables))
    else:
        result_page(format_tables(tables))


@dataclass(frozen=True)
class Key:
    """One key of a config."""

    name: str  # dotted, as in --set
    value: Any
    default: Any
    type: str
    meaning: str
    kind: str = ""  # of the registered classes that it chooses from

    @property
    def cells(self) -> dict[str, str]:
        cells = (self.name, format_value(self.value), format_value(self.default), self.type, self.meaning)
        return dict(zip(HEADERS, cells, strict=True))


Tables = Mapping[str, Sequence[Key]]  # the keys of each table of a recipe, by its title


def recipe_keys(recipe: "Recipe") -> Tables:
    """Return the keys of a recipe, grouped by table."""
    from qkv.training.recipe import SETTABLE_KEYS

    tables = {"recipe": [key for key in config_keys(recipe) if key.name in SETTABLE_KEYS]}
    task = recipe.task_class
    for section, config, cls, from_data in (
        ("task", recipe.task, task, ()),
        ("data", recipe.data, type(recipe.data), ()),
        ("model", recipe.model, recipe.model_class, task.from_data),
    ):
        title = f"[{section}] {config.registered_name}: {describe(cls)}"
        tables[title] = [*config_keys(config, f"{section}.", from_data)]
    return {**tables, "[train]": [*config_keys(recipe.train, "train.")]}


def config_keys(config: Config, prefix: str = "", from_data: Sequence[str] = ()) -> Iterator[Key]:
    """Yield the keys of a config and of its terms; those in `from_data` have no value before training."""
    meanings = describe_fields(type(config))
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        data = FROM_DATA if name in from_data else _to_data(value)
        type_name = describe_type(field.annotation, field.metadata)
        kind = value.kind if isinstance(value, Term) else ""
        default = field.get_default(call_default_factory=True)
        yield Key(f"{prefix}{name}", data, _to_data(default), type_name, meanings[name], kind)
        if isinstance(value, Term):
            yield from _term_keys(value, f"{prefix}{name}.")


def _term_keys(term: Term, prefix: str) -> Iterator[Key]:
    meanings = describe_options(term)
    for name, field in term.options_class.model_fields.items():
        default = field.get_default(call_default_factory=True)
        value = term.options.get(name, default)
        type_name = describe_type(field.annotation, field.metadata)
        yield Key(f"{prefix}{name}", _to_data(value), _to_data(default), type_name, meanings[name])


def _to_data(value: Any) -> Any:
    """Return a value of a config as plain data; a term is its name, since its options have keys of their own."""
    if isinstance(value, Term):
        return value.name
    if isinstance(value, Config):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


def format_value(value: Any) -> str:
    """Return a value as it is written after --set KEY=."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)


def tables_json(tables: Tables) -> list[Mapping[str, Any]]:
    """Return the keys of all tables for JSON."""
    return [
        {"key": key.name, "value": key.value, "default": key.default, "type": key.type, "meaning": key.meaning}
        | ({"values": sorted(registered(key.kind))} if key.kind else {})
        for keys in tables.values()
        for key in keys
    ]


def format_tables(tables: Tables, headers: Sequence[str] = HEADERS) -> str:
    """Return some columns of the keys of all tables, each with one width."""
    rows = [[key.cells[header] for header in headers] for keys in tables.values() for key in keys]
    cells = iter(format_rows(headers, rows, below=2))
    lines = [next(cells)]
    for title, keys in tables.items():
        lines += ["", title, *(next(cells) for _ in keys)]
    kinds = sorted({key.kind for keys in tables.values() for key in keys if key.kind})
    if kinds:
        lines += ["", "values"]
    return "\n".join([*lines, *(f"{kind}: {', '.join(sorted(registered(kind)))}" for kind in kinds)])


def format_rows(headers: Sequence[str], rows: Sequence[Sequence[str]], below: int = 1) -> list[str]:
    """Align rows in columns, headers first; in a narrow terminal at least the last `below` cells go on a line below."""
    table = [headers, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(headers))]
    columns = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else sys.maxsize
    if sum(widths) + 2 * len(widths) - 2 <= columns:
        return [_join(row, widths) for row in table]
    fixed = len(headers) - below
    while fixed > 1 and sum(widths[:fixed]) + 2 * (fixed - 1) > columns:
        fixed -= 1
    lines = []
    for row in table:
        rest = "; ".join(reversed([cell for cell in row[fixed:] if cell]))
        wrapped = textwrap.wrap(rest, columns, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        lines.append("\n".join([_join(row[:fixed], widths), *wrapped]))
    return lines


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip()
