"""Skipped tests fail if QKV_REQUIRE names what they lack."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

@pytest.fixture
def driver():
    pytest.skip("chromium and chromedriver are missing")

@pytest.mark.browser
def test_browser(driver): ...

@pytest.mark.skipif(True, reason="needs Multi30k under QKV_DATA")
def test_data(): ...

@pytest.mark.skipif(True, reason="needs fashion_mnist under QKV_DATA")
def test_separate_dataset(): ...

def test_packages():
    pytest.importorskip("no_such_package", reason="writes the files")

@pytest.mark.skipif(True, reason="needs a CUDA device")
def test_gpu(): ...
"""


def run(folder: Path, require: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_skipped.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "tests.requirements", "-c", os.devnull, str(folder)]
    environment = os.environ | {"QKV_REQUIRE": require, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("require", "failed"),
    [("", ""), ("browser", "browser"), ("data", "data"), ("browser,data,packages", "browser data packages")],
)
def test_required_skips_are_failures(tmp_path: Path, require: str, failed: str) -> None:
    process = run(tmp_path, require)
    results = [line for line in process.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert process.returncode == bool(failed)
    assert len(results) == len(failed.split())
    assert all(any(f"::test_{name}" in line for line in results) for name in failed.split())


def test_unknown_requirements_are_errors(tmp_path: Path) -> None:
    process = run(tmp_path, "browsers")
    assert process.returncode == pytest.ExitCode.USAGE_ERROR
    assert "browsers" in process.stderr
