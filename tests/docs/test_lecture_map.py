"""The lecture map: each section has code, a recipe or test, and the claims of that section, and every link is right."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from qkv.experiments.claims.note_figures import FIGURES
from qkv.registry import registered
from qkv.training.recipe import recipe_names
from tests.docs.blocks import DOCS, ROOT
from tests.docs.site import definitions

NOTES = ("000", "001", "002", "003", "004")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#]+)(?:#([\w.]+))?\)")


class Section(NamedTuple):
    """A section of a note."""

    note: str
    title: str
    text: str

    def links(self, folder: str) -> list[tuple[str, Path, str]]:
        """Return text, path and anchor of the links into a folder of the repository."""
        links = [(text, (DOCS / "lectures" / path).resolve(), anchor) for text, path, anchor in LINK.findall(self.text)]
        return [link for link in links if link[1].is_relative_to(ROOT / folder)]


def sections() -> list[Section]:
    sections = []
    for note in NOTES:
        page = (DOCS / "lectures" / f"{note}.md").read_text(encoding="utf-8")
        for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
            title, _, text = part.partition("\n")
            sections.append(Section(note, title, text))
    return sections


def plain(title: str) -> str:
    """Return what identifies a title: its letters and digits, before an arrow."""
    return re.sub(r"[^a-z0-9]", "", title.partition("→")[0].lower())


SECTIONS = sections()
EACH = pytest.mark.parametrize("section", SECTIONS, ids=[f"{one.note} {one.title}" for one in SECTIONS])


def test_all_notes_have_sections_with_different_titles() -> None:
    assert {section.note for section in SECTIONS} == set(NOTES)
    assert len({(section.note, section.title) for section in SECTIONS}) == len(SECTIONS) >= 100


@EACH
def test_code_links_open_a_definition_of_that_name(section: Section) -> None:
    links = section.links("src/qkv") + section.links("tests")
    code = [link for link in links if link[1].suffix == ".py"]
    assert code
    for text, path, symbol in code:
        first, last = definitions(path.relative_to(ROOT).as_posix())[symbol]
        assert text == f"`{symbol}`"
        lines = path.read_text(encoding="utf-8").splitlines()[first - 1 : last]
        assert re.match(rf"\s*(class|def|async def) {symbol.rpartition('.')[2]}\b", lines[0])


@EACH
def test_sections_name_recipes_or_commands(section: Section) -> None:
    recipes = [(text, path) for text, path, _ in section.links("src/qkv/recipes")]
    for text, path in recipes:
        assert path.stem in recipe_names()
        assert text == f"`{path.stem}`"
    assert recipes or "`qkv train " in section.text or section.links("tests")


@EACH
def test_claims_of_a_section_are_linked_with_their_figures(section: Section) -> None:
    claims = {
        name for name, claim in registered("claim").items() for note in claim.notes
        if note.number == section.note and plain(note.section) == plain(section.title)
        and (DOCS / "claims" / claim.group() / f"{name}.md").exists()  # it has been measured
    }  # fmt: skip
    linked = {path.stem for _, path, _ in section.links("docs/claims") if path.suffix == ".md"}
    assert claims <= linked
    page = (DOCS / "lectures" / f"{section.note}.md").read_text(encoding="utf-8")
    assert [name for name in linked if f"../claims/figures/{name}.png" not in page] == []
    assert [path for _, path, _ in section.links("docs") if not path.exists()] == []


def test_every_claim_is_in_a_section_of_each_note_that_makes_it() -> None:
    titles = {(section.note, plain(section.title)) for section in SECTIONS}
    mentions = [(note, name) for name, claim in registered("claim").items() for note in claim.notes]
    assert mentions
    missing = [
        (note.number, note.section, name) for note, name in mentions if (note.number, plain(note.section)) not in titles
    ]
    assert missing == []


def test_every_figure_of_the_notes_is_linked_from_a_section_of_each_of_its_notes() -> None:
    page = (DOCS / "claims" / "figures.md").read_text(encoding="utf-8")
    figures = re.findall(r"^## (.*)\n\n    qkv claims figure ([\w-]+)", page, re.MULTILINE)
    assert {name for _, name in figures} == set(FIGURES)
    for heading, name in figures:
        numbers = re.findall(r"\d{3}", heading)
        assert numbers, heading
        if " to " in heading:
            numbers = [note for note in NOTES if numbers[0] <= note <= numbers[-1]]
        linked = {section.note for section in SECTIONS if f"[`qkv claims figure {name}`](" in section.text}
        assert set(numbers) <= linked, name
