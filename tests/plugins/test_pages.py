"""Python code in the pages of docs/how-to that are not about plug-ins."""

import re
from pathlib import Path

import pytest

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize(("page", "printed"), [("play-a-tune.md", "A scale 16 8.0\n")])
def test_the_code_of_a_page_runs(page, printed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", (HOW_TO / page).read_text(encoding="utf-8"), re.DOTALL):
        exec(code, {})
    assert capsys.readouterr().out == printed
