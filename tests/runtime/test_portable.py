"""qkv without the modules and flags that Windows and macOS lack, simulated in a process of its own."""

import subprocess
import sys

import pytest
import torch

from qkv.errors import InputError
from qkv.runtime import device, portable

PREPARE = """
import multiprocessing.connection, os, subprocess, sys, tempfile, types

import torch, typer, rich.progress, sacrebleu, pydantic, tokenizers, safetensors.torch, PIL.Image

sys.modules["fcntl"] = sys.modules["resource"] = None
for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "sched_getaffinity", "setsid", "SIGKILL"):
    if hasattr(os, name):
        delattr(os, name)
os.supports_effective_ids = set()
locked = set()

def locking(descriptor, mode, count):
    inode = os.fstat(descriptor).st_ino
    if inode in locked:
        raise OSError("locked")
    locked.add(inode)

sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_LOCK=1, LK_NBLCK=2)
"""
USE = """
import importlib, pkgutil
from pathlib import Path

import qkv
from qkv.errors import InputError
from qkv.runtime.files import atomic_folder, check_output_file, exclusive_lock, open_for_append, read_regular
from qkv.runtime.files import write_atomically
from qkv.runtime.memory import free_memory, trim_heap
from qkv.runtime.portable import cpu_count

for module in pkgutil.walk_packages(qkv.__path__, "qkv."):
    if not any(part in module.name for part in ("__main__", "qkv.serve", "triton", ".gpu")):  # optional libraries
        importlib.import_module(module.name)
folder = Path(sys.argv[1])
write_atomically(folder / "file", b"a\\r\\nb")
assert read_regular(folder / "file") == b"a\\r\\nb"
with open_for_append(folder / "file") as file:
    file.write(b"c")
assert read_regular(folder / "file") == b"a\\r\\nbc"
with atomic_folder(folder / "new") as scratch:
    (scratch / "x").write_text("x")
with exclusive_lock(folder):
    try:
        with exclusive_lock(folder):
            raise SystemExit("locked twice")
    except InputError as error:
        assert "in use" in str(error)
import torch
free_memory(torch.device("cpu"))
assert cpu_count() >= 1
print("done")
"""


def test_every_module_is_imported_and_files_are_written_and_locked_without_posix(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + USE, tmp_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "done\n", done.stderr
    assert (tmp_path / "new" / "x").read_text() == "x"


def test_a_lock_is_held_until_the_file_is_closed(tmp_path):
    path = tmp_path / "lock"
    with path.open("ab") as first:
        portable.lock(first, wait=False)
        with path.open("ab") as second, pytest.raises(BlockingIOError):
            portable.lock(second, wait=False)
    with path.open("ab") as third:
        portable.lock(third, wait=True)


@pytest.mark.parametrize("available", [False, True])
def test_mps_is_a_device_where_it_is_available(monkeypatch, available):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: available)
    if available:
        assert device.pick_device("mps") == torch.device("mps")
        with pytest.raises(InputError, match="mps"):
            device.pick_device("mps:1")
    else:
        with pytest.raises(InputError, match="not available"):
            device.pick_device("mps")
    assert device.pick_device("auto").type in ("cpu", "cuda")
