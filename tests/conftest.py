"""Run-time checks of shapes and types if beartype is installed."""

import importlib.util
import os
from pathlib import Path

import jaxtyping
import pytest
import torch

from tests import shape_checks
from tests.requirements import pytest_configure, pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401

SHAPED = ["attention", "datasets.batching", "generation", "metrics", "models", "nn", "tasks", "training"]

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the machine, so each keeps to one core, and so does every process that a test starts.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

if not torch.cuda.is_available():
    # Without a GPU, Triton's kernels run in its interpreter. It asks for this once, when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

if importlib.util.find_spec("beartype") is not None and os.environ.get("QKV_CHECK_SHAPES") != "0":
    shape_checks.install([f"qkv.{part}" for part in SHAPED])


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test session, shared by all workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture
def unchecked() -> object:
    """Disable the run-time checks, to test qkv's own error messages."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _interpreter_with_new_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's interpreter use a tensor as a loop bound; newer NumPy does not convert one-element arrays to int."""
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: type, scope: object) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_and_mend)
