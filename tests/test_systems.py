"""The table of systems names existing recipes, commands, results and tests, and every shipped recipe."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from qkv.cli.main import app
from qkv.training.recipe import read_recipe, recipe_names

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
NOTES = {"000", "001", "002", "003", "004"}
COMMANDS = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


class System(NamedTuple):
    """A row of the table."""

    name: str
    notes: str
    commands: tuple[str, ...]
    result: str
    tests: tuple[str, ...]


def systems() -> list[System]:
    rows = []
    for line in (DOCS / "systems.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] != "system" and not set(line) <= set("|- "):
            name, notes, commands, result, tests = cells
            rows.append(System(name, notes, _code(commands), result, _code(tests)))
    return rows


def _code(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def anchors(page: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def results_of(command: str) -> set[str]:
    """The anchors of the sections of results.md that have a row of a recipe, or of `qkv train RECIPE --set ...`."""
    words = [word for word in command.split() if word not in ("qkv", "train", "--set")]
    recipe = " ".join(words)
    sections = re.split(r"^(?=## )", (DOCS / "results.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    row = re.compile(rf"^\| {re.escape(recipe)}[ ,]", re.MULTILINE)
    return {anchor for section in sections if row.search(section) for anchor in anchors(section)}


SYSTEMS = systems()
EACH = pytest.mark.parametrize("system", SYSTEMS, ids=[system.name for system in SYSTEMS])


def test_systems_are_listed_once_and_cover_all_notes():
    names = [system.name for system in SYSTEMS]
    assert len(names) == len(set(names)) >= 46
    assert {note for system in SYSTEMS for note in system.notes.split(", ") if note} == NOTES


@EACH
def test_recipes_and_commands_exist(system):
    assert system.commands
    for command in system.commands:
        words = shlex.split(command)
        if words[0] != "qkv":
            assert command in recipe_names()
            continue
        assert words[1] in COMMANDS
        if words[1] == "train":
            changes = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
            assert read_recipe(words[2], changes).overrides == tuple(changes)


@EACH
def test_tests_exist(system):
    assert system.tests
    assert [path for path in system.tests if not (TESTS / path).is_file()] == []


@EACH
def test_results_are_those_of_the_recipes(system):
    links = re.findall(r"\[[^]]+\]\(([^)#]+)(?:#([^)]+))?\)", system.result)
    assert links
    recorded = {anchor for command in system.commands for anchor in results_of(command)}
    for page, anchor in links:
        assert (DOCS / page).is_file()
        if page == "results.md":
            assert anchor in recorded
        else:
            assert not anchor or anchor in anchors((DOCS / page).read_text(encoding="utf-8"))


def test_every_shipped_recipe_is_in_the_table():
    named = {command for system in SYSTEMS for command in system.commands}
    assert sorted(set(recipe_names()) - named) == []
