"""The Python code of the README runs, and its links exist."""

import re
from pathlib import Path

import pytest

from qkv.training import job
from qkv.training.recipe import read_recipe

README = Path(__file__).parents[1] / "README.md"


def test_readme_python_runs_after_the_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["data.size=200", "model.hidden_dim=8", "model.embedding_dim=8", "train.valid_size=5"]
    job.begin(read_recipe("dates-gru", small), Path("runs/demo"), "cpu")
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["answer"].alignment.shape[1] == len("Donnerstag, 5. März 2026")
    assert names["seen"]["decoder"].weights.shape == (1, 1, 2, 3)


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"\]\(((?:src|docs|[A-Z])[^)]*)\)", README.read_text(encoding="utf-8"))))
)
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
