"""Shapes and types are checked at run time in tests, where beartype is installed."""

import importlib.util

import jaxtyping
import pytest

SHAPED = ["attention", "data.batching", "generation", "metrics", "models", "nn", "objectives", "tasks", "training"]

if importlib.util.find_spec("beartype") is not None:
    jaxtyping.install_import_hook([f"qkv.{part}" for part in SHAPED], "beartype.beartype")


@pytest.fixture
def unchecked() -> object:
    """Switch the run-time checks off, to see what qkv itself says to a user who has none."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
