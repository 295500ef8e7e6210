"""The figures on the page about the literature are those of the recorded results of the recipes that it names."""

import re

import pytest

from qkv.experiments.results import read_records
from qkv.experiments.table import ResultRow, ResultTable, spread, tables
from qkv.training.recipe import recipe_names
from tests.docs.blocks import DOCS

FIGURE = re.compile(r"\d+\.\d\d(?: \([\d.]+ to [\d.]+\))?")
NUMBERS = ("no", "one", "two", "three", "four", "five")
PAGE = (DOCS / "literature.md").read_text(encoding="utf-8")
TABLE, _, TEXT = PAGE.partition("\n## ")


def rows() -> list[list[str]]:
    lines = [line for line in TABLE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][1:]


@pytest.fixture(scope="module")
def results() -> list[tuple[ResultTable, ResultRow]]:
    records = [record for run in sorted((DOCS / "runs").iterdir()) for record in read_records(run)]
    return [(table, row) for table in tables(records) for row in table.rows]


def figures_of(table: ResultTable, row: ResultRow) -> set[str]:
    """The cells of a row of docs/results.md, and its numbers of parameters in millions."""
    cells = {spread(row.values(split, column), column.digits) for split in table.splits for column in table.columns}
    return cells | {f"{record.parameters / 1e6:.2f}" for record in row.records}


def describe_stopped(row: ResultRow) -> str:
    """ "" if training was finished with all seeds, "stopped" with none, else "one of two stopped"."""
    stopped = {record.seed for record in row.records if not record.finished}
    if not stopped:
        return ""
    of = f"{NUMBERS[len(stopped)]} of {NUMBERS[len(row.seeds)]} "
    return f"{'' if len(stopped) == len(row.seeds) else of}stopped"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1].strip("`"))
def test_a_row_has_the_results_of_its_recipe(row, results):
    _, recipe, _, _, _, figure, seeds, verdict = row
    name = recipe.strip("`").removesuffix(" ...")
    assert name.split()[0] in recipe_names()
    own = [(table, result) for table, result in results if re.match(rf"{re.escape(name)}($|[ ,])", result.label)]
    matching = [result for table, result in own if figure in figures_of(table, result)]
    assert matching, f"no record of {name} has {figure}"
    assert {str(len(result.seeds)) for result in matching} == {seeds}
    stopped = next((part for part in verdict.split("; ") if part.endswith("stopped")), "")
    assert {describe_stopped(result) for result in matching} == {stopped}


@pytest.mark.parametrize("item", TEXT.split("\n- ")[1:], ids=lambda item: item[2:12])
def test_the_figures_of_the_text_are_results_of_the_recipes_that_it_names(item, results):
    named = set(re.findall(r"`([^`]+)`", item)) & set(recipe_names())
    own = [(table, row) for table, row in results if {record.recipe for record in row.records} <= named]
    known = set[str]().union(*(figures_of(table, row) for table, row in own))
    figures = FIGURE.findall(item)
    assert figures
    missing = [figure for figure in figures if not any(cell.startswith(figure) for cell in known)]
    assert not missing, f"no record of {', '.join(sorted(named))} has {', '.join(missing)}"
