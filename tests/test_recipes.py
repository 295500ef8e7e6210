"""Shipped recipes reach their documented results (minutes each: run with -m slow)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def qkv(*arguments: str | Path) -> dict[str, Any]:
    """Return the JSON output of a command, run in a subprocess without run-time type checks."""
    command = [sys.executable, "-m", "qkv", *map(str, arguments), "--device", "cpu", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize(
    ("name", "exact", "alignment", "seconds"), [("dates-gru", 0.995, 0.90, 60), ("dates-transformer", 0.99, 0.90, 180)]
)
def test_dates_recipes_reach_their_accuracy_and_speed(name, exact, alignment, seconds, tmp_path):
    trained = qkv("train", name, "--output", tmp_path / "run")
    report = qkv("evaluate", tmp_path / "run")
    assert report["split"] == "test"
    assert report["size"] == 2000
    assert report["exact"] >= exact
    assert report["alignment"] >= alignment
    assert trained["seconds"] <= seconds
