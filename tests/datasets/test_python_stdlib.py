"""The Python standard library as a dataset: which files, and in which split."""

import ast
import sysconfig

import pytest

from qkv.datasets.corpora.text.python_stdlib import split_of
from qkv.errors import InputError
from tests.datasets.build import load


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small standard library."""
    files = {f"module{number}.py": f"x{number} = 0\n" for number in range(200)}
    others = {"test/x.py": "bad", "site-packages/a/b.py": "bad", "encodings/cp1.py": "bad", "json/tests/t.py": "bad"}
    for name, text in (files | others | {"unicode.py": "x = 'bäd'", "_sysconfigdata_x.py": "bad"}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return files


def test_files_are_split_by_name(library):
    dataset = load("python_stdlib")
    assert dataset.splits.keys() == {"train", "valid", "test"}
    for name, text in library.items():
        assert [split for split in dataset.splits if text in dataset.splits[split]] == [split_of(name)]
    assert sum(len(ast.parse(text).body) for text in dataset.splits.values()) == 200
    assert "200 files" in dataset.notes[0]
    assert load("python_stdlib").fingerprint == dataset.fingerprint


def test_the_split_of_a_file_is_fixed():
    held_out = [number for number in range(100) if split_of(f"module{number}.py") == "valid"]
    assert held_out == [74, 83]
    assert split_of("json/decoder.py") == "train"


def test_a_missing_library_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(InputError, match="too few source files"):
        load("python_stdlib")
