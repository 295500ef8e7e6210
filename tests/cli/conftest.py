"""Fixtures: a small trained model and the in-process command line."""

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from qkv.cli.main import main

from .command import TINY, Ended, process


@pytest.fixture(scope="session")
def run(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained for two short epochs; its outputs are meaningless but deterministic.

    The first worker trains it, and each worker has a copy of its own.
    """
    folder = shared_folder / "trained"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            done = process("train", "dates-gru", "--set", "data.size=300", *TINY, "--output", folder)
            assert done.code == 0, done.err
            assert done.out == f"{folder}\n"
    return shutil.copytree(folder, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def qkv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run the command in this process, which has already imported torch."""

    def call(*arguments: object, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code, *capsys.readouterr())

    return call
