"""Free memory: what the machine, the process and its cgroup leave, and which errors mean that none is left."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qkv.errors import InputError
from qkv.runtime import memory
from qkv.runtime.memory import free_memory, is_out_of_memory, require_memory

CPU = torch.device("cpu")


def test_free_memory_is_at_most_what_the_machine_has() -> None:
    free = free_memory(CPU)
    assert free is not None
    assert 0 < free <= memory._kilobytes(Path("/proc/meminfo"), "MemTotal")


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_of_the_process_lowers_free_memory(limit: str) -> None:
    code = (
        "import resource, torch; from qkv.runtime.memory import free_memory;"
        f"resource.setrlimit(resource.{limit}, (4 * 2**30, 4 * 2**30));"
        "print(free_memory(torch.device('cpu')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert 0 <= int(done.stdout) < 4 * 2**30


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 9\ninactive_file 300\n"}, 400),
        ({"memory.max": "max", "memory.current": "900"}, None),
        ({"memory.max": "1000", "memory.current": "1200"}, 0),
        (
            {"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "900", "memory.stat": "total_active_file 50\n"},
            150,
        ),
        ({}, None),
    ],
)
def test_the_limit_of_a_cgroup_counts_its_page_cache_as_free(
    tmp_path: Path, files: dict[str, str], left: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content + "\n")
    assert memory._left_by_cgroup(tmp_path) == left


def test_more_than_is_free_is_refused_with_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    require_memory("it", {"weights": 400, "gradients": 600}, CPU, lambda: "")
    with pytest.raises(InputError, match="gradients") as caught:
        require_memory("it", {"weights": 400, "gradients": 601, "EMA": 0}, CPU, lambda: "lower it")
    assert "lower it" in str(caught.value)
    assert "EMA" not in str(caught.value)


def test_nothing_is_refused_where_free_memory_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    require_memory("it", {"weights": 2**80}, CPU, lambda: "")


def test_errors_of_every_allocator_are_recognised() -> None:
    for allocate in (lambda: torch.empty(2**60), lambda: bytearray(2**62)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()
        assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))
