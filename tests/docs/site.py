"""The hooks of the documentation site, which are not part of the package."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

SITE = Path(__file__).parents[2] / "docs" / "site"


@cache
def hook(name: str) -> ModuleType:
    """Import a hook of mkdocs.yml."""
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location(f"qkv_docs_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def definitions(path: str) -> dict[str, tuple[int, int]]:
    """Return the lines of each class and function of a Python file."""
    return hook("links").definitions(path)
