"""The figures on the page about the literature are those of the page of results."""

import re

import pytest

from qkv.training.recipe import recipe_names
from tests.docs.blocks import DOCS

FIGURE = re.compile(r"\d+\.\d\d(?: \([\d.]+ to [\d.]+\))?")


def rows() -> list[list[str]]:
    lines = (DOCS / "literature.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]


def results_of(recipe: str) -> list[list[str]]:
    lines = (DOCS / "results.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [cells for cells in table if re.match(rf"{re.escape(recipe)}($|[ ,])", cells[0])]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_is_a_row_of_the_results(row):
    _, recipe, _, _, _, figure, seeds, verdict = row
    name = recipe.strip("`").removesuffix(" ...")
    assert name.split()[0] in recipe_names()
    matching = [cells for cells in results_of(name) if figure in cells and cells[2] == seeds]
    assert matching, f"results.md has no row of {name} with {figure} and {seeds} seed(s)"
    assert any(("not finished" in cells[0]) == ("stopped" in verdict) for cells in matching)


def test_figures_of_the_text_are_in_the_results():
    _, _, text = (DOCS / "literature.md").read_text(encoding="utf-8").partition("\n## ")
    results = (DOCS / "results.md").read_text(encoding="utf-8")
    figures = FIGURE.findall(text)
    assert figures
    assert not [figure for figure in figures if f" {figure} " not in results]
