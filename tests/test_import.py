"""Import time and imported modules of qkv."""

import statistics
import subprocess
import sys

import pytest

CLOCK = "import time; import torch; t = time.perf_counter(); import qkv; print(time.perf_counter() - t)"
BROUGHT = "import sys; {}; print(' '.join(name for name in sys.modules if '.' not in name))"


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_importing_qkv_adds_less_than_a_third_of_a_second_to_torch() -> None:
    assert statistics.median(float(printed(CLOCK)) for _ in range(3)) < 0.3


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
            "torch numpy matplotlib tokenizers sacrebleu tensorboard",
        ),
    ],
)
def test_heavy_modules_are_imported_lazily(program: str, heavy: str) -> None:
    brought = printed(BROUGHT.format(program)).splitlines()[-1].split()
    assert "qkv" in brought
    assert not set(heavy.split()) & set(brought)


def test_public_names() -> None:
    import qkv

    assert all(getattr(qkv, name) is not None for name in qkv.__all__)
    assert dir(qkv) == sorted(qkv.__all__)
    with pytest.raises(AttributeError, match="module 'qkv' has no attribute 'atend'"):
        _ = qkv.atend
