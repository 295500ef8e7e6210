"""The commands and the Python code of the README print what it says, and its links exist."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qkv.cli.main import app

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_python_gives_what_its_comments_say():
    names: dict[str, object] = {}
    compared = 0
    for code in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(code, "README.md", "exec"), names)
        for expression, value in re.findall(
            r"^(\S.*?)  # ('.*?'|\(.*?\)|torch\.Size\(.*?\))(?:$|:)", code, flags=re.MULTILINE
        ):
            assert repr(eval(expression, names)) == value
            compared += 1
    assert compared == 4


def test_commands_print_what_their_comments_say():
    shown = re.findall(r"^    qkv (translate|classify) (\S+) \"(.*?)\" +# (.*)$", TEXT, flags=re.MULTILINE)
    assert len(shown) == 3
    for command, *arguments, output in shown:
        result = CliRunner().invoke(app, [command, *arguments])
        assert result.stdout == f"{output}\n"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(((?:src|docs|[A-Z])[^)]*)\)", TEXT))))
def test_files_named_in_the_readme_exist(path):
    assert (README.parent / path).exists()


def test_the_attention_page_lists_exactly_the_registered_terms():
    import qkv.attention as attention

    page = (README.parent / "docs" / "attention.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z]\w+)\(", page)) - {"Attend"}
    kinds = (attention.Score, attention.Align, attention.Mask, attention.Position, attention.PositionalEncoding)
    offered = [getattr(attention, name) for name in attention.__all__]
    terms = {one.__name__ for one in offered if isinstance(one, type) and issubclass(one, kinds) and one not in kinds}
    assert named == terms
