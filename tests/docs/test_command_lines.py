"""Every qkv command in the documentation is valid: its command, options, recipes, keys and claims exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from qkv.cli.main import UsageError, app
from qkv.cli.search_group import SearchGroup
from qkv.errors import InputError
from qkv.experiments.claims.note_figures import FIGURES
from qkv.registry import registered
from qkv.training.recipe import read_recipe, recipe_names
from tests.docs.blocks import blocks, inline_commands, notebooks, pages, qkv_arguments, shell_cells

COMMAND = typer.main.get_command(app)
PLACEHOLDER = re.compile(r"\.\.\.|…|\b(RUN|RECIPE|MODEL|FOLDER|FILE|NAME|ID|SEED|KEY=VALUE|NAMES?)\b|\$|<|\[")
COMPLETION = ("--install-completion", "--show-completion")  # parsing would install it
RUN = re.compile(r"(?<!docs/)runs/([a-z][\w-]*)-\d+")


def parse(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters of a command; raise a usage error for unknown commands and options."""
    command, context, name = COMMAND, None, "qkv"
    while isinstance(command, TyperGroup) and arguments and not arguments[0].startswith("-"):
        context = typer.Context(command, info_name=name, parent=context)
        if isinstance(command, SearchGroup) and arguments[0] not in command.commands:
            break  # words to search for
        found, command, arguments = command.resolve_command(context, arguments)
        name = f"{name} {found}"
    parsed = command.make_context(name, list(arguments), parent=context)
    return name, parsed.params


def problem(arguments: list[str], *, prose: bool = False) -> str | None:
    """Return what is wrong with a command line, None if nothing is; prose may name a command without its arguments."""
    if not arguments or PLACEHOLDER.search(arguments[0]) or arguments[0] in COMPLETION:
        return None
    plugin = "--plugin" in arguments
    if plugin:  # parsing would load the file
        at = arguments.index("--plugin")
        arguments = arguments[:at] + arguments[at + 2 :]
    try:
        name, parameters = parse(arguments)
    except typer.Exit:  # --help and --version
        return None
    except UsageError as error:
        message = error.format_message()
        return None if prose and re.search("^Missing|requires an argument", message) else message
    if plugin:  # the file registers recipes' terms, claims or datasets of its own
        return None
    runs = [match for word in arguments for match in RUN.findall(word)]
    unknown = [run for run in runs if run not in recipe_names()]
    if unknown:
        return f"no recipe has a run {unknown[0]}-N"
    return _problem_of_recipe(name, parameters) or _problem_of_claim(name, parameters)


def _problem_of_recipe(name: str, parameters: dict[str, Any]) -> str | None:
    """Check the recipe and the settings of `qkv train`, or those of each run of `qkv compare RECIPE --vary`."""
    if name not in ("qkv train", "qkv compare"):
        return None
    known = str(parameters["recipe"] or "") if name == "qkv train" else str((parameters["runs"] or [""])[0])
    if not known or PLACEHOLDER.search(known) or known.endswith(".toml") or "/" in known:
        return None
    if known not in recipe_names():
        return f"no recipe {known}"
    settings = [change for change in parameters["assignments"] or () if not PLACEHOLDER.search(change)]
    if parameters.get("data"):  # the keys of your own data are those of another dataset
        settings = [change for change in settings if not change.startswith("data.")]
    try:
        for change in _varied(parameters) or [()]:
            read_recipe(known, [*settings, *change])
    except InputError as error:
        return str(error)
    return None


def _varied(parameters: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one setting for each value of each key of `--vary`."""
    factors = [factor.partition("=") for factor in parameters.get("vary") or () if not PLACEHOLDER.search(factor)]
    return [(f"{key}={value}",) for key, _, values in factors if key != "recipe" for value in values.split(",")]


def _problem_of_claim(name: str, parameters: dict[str, Any]) -> str | None:
    if not name.startswith("qkv claims "):
        return None
    named = [value for key in ("name", "names") for value in _texts(parameters.get(key))]
    if name == "qkv claims figure":
        unknown = [value for value in named if value not in FIGURES and not PLACEHOLDER.search(value)]
        return f"no figure {unknown[0]}" if unknown else None
    numbers = {str(claim.number) for claim in registered("claim").values()}
    unknown = [
        value for value in named
        if value not in registered("claim") and value not in numbers and not PLACEHOLDER.search(value)
    ]  # fmt: skip
    return f"no claim {unknown[0]}" if unknown else None


def _texts(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value or ()]  # type: ignore[union-attr]


def problems(lines: list[str], *, prose: bool = False) -> dict[str, str]:
    """Return what is wrong with each line that is not a valid command."""
    return {line: found for line in lines for call in qkv_arguments(line) if (found := problem(call, prose=prose))}


@pytest.mark.parametrize("page", pages())
def test_commands_of_a_page_are_valid(page: str) -> None:
    assert problems([line for block in blocks(page) for line in block.lines()]) == {}
    assert problems(inline_commands(page), prose=True) == {}


@pytest.mark.parametrize("notebook", notebooks(), ids=lambda path: path.stem)
def test_commands_of_a_notebook_are_valid(notebook: Path) -> None:
    assert problems([line for cell in shell_cells(notebook) for line in cell.lines()]) == {}


def test_commands_of_the_page_of_results_are_valid() -> None:
    lines = inline_commands("docs/results.md")
    assert len(lines) > 100
    assert problems(lines, prose=True) == {}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("qkv trian dates-gru", "trian"),
        ("qkv train dates-gru --sets a=b", "--sets"),
        ("qkv train no-such-recipe", "no-such-recipe"),
        ("qkv train dates-gru --set model.scroe=dot", "scroe"),
        ("qkv train dates-gru --set model.score=dott", "dott"),
        ("cut -f 1 pairs.tsv | qkv translate runs/demo --jsn", "--jsn"),
        ("qkv evaluate runs/multi30k-bahdanua-0", "bahdanua"),
        ("qkv compare dates-gru --vary model.score.name=additive,addditive", "addditive"),
        ("qkv train multi30k-bahdanau --set model.score=cosine", "cosine"),
        ("qkv claims run no-such-claim", "no-such-claim"),
    ],
)
def test_mistakes_are_found(line: str, word: str) -> None:
    assert [word in (problem(call) or "") for call in qkv_arguments(line)] == [True]
