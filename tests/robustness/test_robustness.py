"""Damaged inputs and unusable output targets: the command line fails with one error line and changes nothing else."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = 1500

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="processes are watched by /proc")


def bench(*options: str) -> None:
    """Run cases in a separate, single-threaded process; print its report, and keep the sandboxes of failed cases."""
    memory = Path("/dev/shm")
    fast = memory if os.access(memory, os.W_OK) else None  # checkpoints are synced to disk, which is slow
    folder = Path(tempfile.mkdtemp(prefix="qkv-robustness-", dir=fast))
    report = folder / "outcomes.json"
    command = [sys.executable, "-m", "tests.robustness.bench", "--work", folder, "--report", report, *options]
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert report.exists(), done.stderr
    wrong = [outcome for outcome in json.loads(report.read_text()) if outcome["violations"]]
    assert not wrong, f"{len(wrong)} cases failed; see the report above and the sandboxes in {folder}"
    shutil.rmtree(folder)


def test_sample_of_damaged_inputs() -> None:
    bench("--sample")


@pytest.mark.slow
def test_damaged_inputs() -> None:
    pytest.importorskip("transformers", reason="writes the Hugging Face folders")
    pytest.importorskip("sentencepiece", reason="trains the tokenizers of Marian")
    numbers = os.environ.get("QKV_ROBUSTNESS_CASE")
    chosen = ["--case", numbers] if numbers else ["--cases", str(CASES)]
    bench(*chosen, "--jobs", str(min(2, os.cpu_count() or 1)))
