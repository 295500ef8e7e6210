"""Modules that qkv imports, and its import time."""

import statistics
import subprocess
import sys

import pytest

CLOCK = "import time; import torch; t = time.perf_counter(); import qkv; print(time.perf_counter() - t)"
IMPORTED = "import sys; {}; print(' '.join(name for name in sys.modules if '.' not in name))"


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def imported_modules(program: str) -> set[str]:
    return set(run(IMPORTED.format(program)).splitlines()[-1].split())


def test_importing_qkv_imports_only_the_standard_library():
    imported = imported_modules("import qkv") - imported_modules("pass")
    assert imported - sys.stdlib_module_names == {"qkv"}
    assert len(imported) < 50


@pytest.mark.slow
def test_importing_qkv_takes_at_most_0_3_seconds_beyond_torch():
    assert statistics.median(float(run(CLOCK)) for _ in range(5)) < 0.3


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        ("import qkv", "torch numpy typer rich matplotlib tokenizers sacrebleu tensorboard"),
        ("import qkv; qkv.attend; qkv.watch", "typer rich matplotlib tokenizers sacrebleu tensorboard"),
        ("import qkv; qkv.Translator; qkv.load", "typer rich matplotlib sacrebleu tensorboard"),
        ("import qkv.cli.main", "torch numpy matplotlib tokenizers sacrebleu tensorboard"),
        (
            "import sys; sys.argv = ['qkv', 'data', 'list', '--json']; from qkv.cli.main import app; "
            "app(standalone_mode=False)",
            "torch matplotlib tokenizers sacrebleu tensorboard",
        ),
    ],
)
def test_heavy_modules_are_imported_lazily(program: str, heavy: str) -> None:
    imported = imported_modules(program)
    assert "qkv" in imported
    assert not set(heavy.split()) & imported


def test_public_names() -> None:
    import qkv

    assert all(getattr(qkv, name) is not None for name in qkv.__all__)
    assert dir(qkv) == sorted(qkv.__all__)
    with pytest.raises(AttributeError, match="atend"):
        _ = qkv.atend
