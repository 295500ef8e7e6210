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
    packages = sorted({*dir(qkv)} - {*qkv.__all__})
    assert all(getattr(qkv, name).__name__ == f"qkv.{name}" and f"qkv.{name}" in qkv.__doc__ for name in packages)
    assert qkv.nn.MultiHeadAttention.__module__ == "qkv.nn.multi_head"
    with pytest.raises(AttributeError, match="atend"):
        _ = qkv.atend


def test_packages_are_attributes_without_an_import_of_their_own() -> None:
    program = "import qkv; qkv.attention.Causal(); qkv.models.GPT2Config(); qkv.nn.MultiHeadAttention(8, 2)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_registered_model_and_its_config_are_in_the_package_of_models() -> None:
    import qkv
    from qkv.registry import registered

    for model in registered("model").values():
        if model.__module__.startswith("qkv."):
            assert getattr(qkv.models, model.__name__) is model
            assert getattr(qkv.models, model.config_class.__name__) is model.config_class
