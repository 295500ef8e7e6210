"""Compile C kernels on first use, with the machine's C compiler."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from qkv.errors import Unsupported
from qkv.runtime.files import cache_root

HEADER = Path(__file__).with_name("vectors.h")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-ftree-vectorize", "-march=native", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC")
TIMEOUT = 120  # seconds


@cache
def load_library(source: Path) -> ctypes.CDLL:
    """Return the compiled kernels of a C file; raise `Unsupported` if they cannot be compiled here."""
    if os.environ.get("QKV_FAST", "1") == "0":
        raise Unsupported("cpu kernels", "QKV_FAST=0")
    if platform.system() != "Linux":
        raise Unsupported("cpu kernels", "they are built on Linux only")
    path = _compiled(source)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unsupported("cpu kernels", str(error)) from None


def _compiled(source: Path) -> Path:
    """Compile the kernels into the user's cache folder, unless a library of the same source and CPU is there."""
    compiler = next((command for name in COMPILERS if (command := shutil.which(name))), None)
    if compiler is None:
        raise Unsupported("cpu kernels", f"no C compiler was found ({', '.join(COMPILERS)})")
    parts = (source.read_bytes(), HEADER.read_bytes(), " ".join(FLAGS).encode(), _cpu().encode())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = cache_root()
    path = folder / f"{source.stem}-{key}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / path.name
            arguments = [compiler, *FLAGS, f"-I{HEADER.parent}", "-o", str(built), str(source), "-lm"]
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT, check=False)
            if done.returncode:
                raise Unsupported("cpu kernels", f"{compiler} failed: {(done.stderr.splitlines() or ['no output'])[0]}")
            built.replace(path)  # atomic: another process may be building the same file
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported("cpu kernels", f"they could not be compiled: {error}") from None
    return path


def _cpu() -> str:
    """Return the model and instruction sets of the CPU: code for one need not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU")))
