"""The hooks of the documentation site, one by one: test_site.py builds the whole site."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import DOCS, notebooks
from tests.docs.site import hook

mkdocs_config = pytest.importorskip("mkdocs.config.defaults")
mkdocs_files = pytest.importorskip("mkdocs.structure.files")


@pytest.mark.parametrize(
    ("latex", "parts"),
    [
        (r"c = h_n,\qquad s_t = 0", ["c = h_n,", "s_t = 0"]),
        (r"a \text{ if } b,\quad\text{else } c", [r"a \text{ if } b,", r"\text{else } c"]),
        (r"\left(a \quad b\right) x", [r"\left(a \quad b\right) x"]),
        (r"\begin{pmatrix} a \quad b \end{pmatrix}", [r"\begin{pmatrix} a \quad b \end{pmatrix}"]),
        (r"\{a\} \quad b", [r"\{a\}", "b"]),
        (r"\frac{a \quad b}{2}", [r"\frac{a \quad b}{2}"]),
    ],
)
def test_a_display_is_split_at_quads_outside_groups(latex: str, parts: list[str]) -> None:
    assert hook("equations").split_at_quads(latex) == parts


def test_each_part_of_a_display_is_an_equation_that_the_browser_can_move_to_the_next_line() -> None:
    content = r'<p><div class="arithmatex">\[a \lt b, \quad c\]</div> and <span class="arithmatex">\(d\)</span></p>'
    page = hook("equations").on_page_content(content, None, None, None)
    assert page.count('display="block"') == 2
    assert page.count("<math") == 3
    assert "arithmatex" not in page


def test_lines_of_stdout_and_stderr_are_joined_in_the_order_of_the_cell() -> None:
    cell: dict[str, Any] = {
        "outputs": [
            {"output_type": "stream", "name": "stderr", "text": "train\n"},
            {"output_type": "stream", "name": "stdout", "text": "1967"},
            {"output_type": "stream", "name": "stdout", "text": "-04-02\n"},
            {"output_type": "display_data", "data": {"text/plain": "figure"}},
            {"output_type": "stream", "name": "stdout", "text": "done\n"},
        ]
    }
    joined, _ = hook("notebooks").JoinStreams().preprocess_cell(cell, {}, 0)
    texts = [output.get("text") for output in joined["outputs"]]
    assert texts == ["train\n1967-04-02\n", None, "done\n"]


def test_claims_in_the_lecture_map_have_a_command_with_the_time_of_its_record() -> None:
    line = "- Claim 18: [Additive, dot and bilinear scores](../claims/scores/score-functions.md)"
    page = type("Page", (), {"file": type("File", (), {"src_uri": "lectures/000.md"})})
    shown = hook("verdicts").on_page_markdown(line, page, None, None)
    text = (DOCS / "claims" / "scores" / "score-functions.md").read_text(encoding="utf-8")
    seconds = re.search(r"^Measured in ([\d.]+) s", text, re.MULTILINE)
    assert seconds is not None
    assert shown.startswith(f"{line} (")
    assert shown.endswith(f"{round(float(seconds[1]))} s: `qkv claims run score-functions --scale small`")


def test_a_line_does_not_break_within_an_option_in_code() -> None:
    content = "<p>--a <code>qkv translate x-- --num-beams 5</code></p>"
    shown = hook("options").on_page_content(content, None, None, None)
    assert shown == '<p>--a <code>qkv translate x-- <span class="option">--num-beams</span> 5</code></p>'


def test_names_of_recipes_link_to_a_page_with_their_command() -> None:
    text = "`dates-gru`, `no-such-recipe`, [`multi30k-plain`](../README.md), `qkv train dates-gru`\n"
    page = type("Page", (), {"file": type("File", (), {"src_uri": "lectures/000.md"})})
    links = hook("links")
    shown = links.on_page_markdown(text, page, None, None)
    recipe = "src/qkv/recipes/text_to_text/dates-gru.toml"
    assert shown.startswith(f"[`dates-gru`](../source/{recipe}.md), `no-such-recipe`, [`multi30k-plain`](")
    assert shown.endswith(", `qkv train dates-gru`\n")
    assert "    qkv train dates-gru\n" in links.source_text(recipe)


@pytest.fixture
def pages(tmp_path: Path) -> Any:
    """Return a site of pages with the given texts."""

    def make(**texts: str) -> tuple[Any, Any]:
        config = mkdocs_config.MkDocsConfig()
        config.load_dict({"site_name": "test", "docs_dir": str(tmp_path)})
        config.validate()
        config.plugins._current_plugin = "test"
        generated = mkdocs_files.File.generated
        files = [generated(config, path.replace("__", "/") + ".md", content=text) for path, text in texts.items()]
        return mkdocs_files.Files(files), config

    return make


def test_pages_of_a_pattern_are_in_the_order_of_their_index(pages: Any) -> None:
    files, config = pages(t__index="[b](b.ipynb) [a](a.md)", t__a="# A", t__b="# B")
    config.nav = [{"T": ["t/index.md", "t/*.md"]}]
    hook("navigation").on_files(files, config)
    assert config.nav == [{"T": ["t/index.md", "t/b.md", "t/a.md"]}]


def test_a_page_is_listed_once_by_the_longest_pattern_that_fits(pages: Any) -> None:
    files, config = pages(t__a="# A", **{"t__add-b": "# B"})
    config.nav = ["t/*.md", {"Extend": ["t/add-*.md"]}]
    hook("navigation").on_files(files, config)
    assert config.nav == ["t/a.md", {"Extend": ["t/add-b.md"]}]


def test_numbered_pages_are_grouped_by_folder_in_the_order_of_their_numbers(pages: Any) -> None:
    files, config = pages(c__one_two__x="# 10. X", c__three__y="# 9. Y", c__one_two__z="# 2. Z")
    config.nav = [{"C": ["c/*/*.md"]}]
    hook("navigation").on_files(files, config)
    assert config.nav == [{"C": [{"One two": ["c/one_two/z.md", "c/one_two/x.md"]}, {"Three": ["c/three/y.md"]}]}]


def test_the_reference_of_commands_lists_every_option_of_every_command(pages: Any) -> None:
    import typer

    from qkv.cli.main import app

    files, config = pages()
    hook("commands").on_files(files, config)
    text = files.get_file_from_path("api/commands.md").content_string
    group = typer.main.get_command(app)
    assert {"train", "evaluate"} <= set(group.commands)  # type: ignore[attr-defined]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for path, nested in getattr(command, "commands", {"": command}).items():
            section = text.partition(f"## qkv {name} {path}".strip() + "\n")[2].partition("\n## ")[0]
            options = [parameter for parameter in nested.params if not getattr(parameter, "hidden", False)]
            missing = [one.opts[0] for one in options if one.opts[0].startswith("-") and one.opts[0] not in section]
            assert (path, missing) == (path, [])


def test_notebooks_are_stored_with_joined_streams() -> None:
    cells = [cell for path in notebooks() for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    streams = [[output.get("name") for output in cell.get("outputs", [])] for cell in cells]
    assert any("stdout" in names for names in streams)
    assert [pair for names in streams for pair in pairwise(names) if pair[0] and pair[0] == pair[1]] == []
