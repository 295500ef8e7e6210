"""Compile the CPU kernels on first use, with the machine's C compiler, and call them."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_double, c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

from qkv.errors import Unsupported

SOURCE = Path(__file__).with_name("kernels.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-ftree-vectorize", "-march=native", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC")
TIMEOUT = 120  # seconds
FEATURES = {1: "AVX-512", 2: "int8 dot products", 4: "bfloat16 dot products"}


class LinearC(Structure):
    """`Linear` of kernels.c."""

    _fields_ = (
        ("dtype", c_int64),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
    )


class NormC(Structure):
    """`Norm` of kernels.c."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class LayerC(Structure):
    """`Layer` of kernels.c."""

    _fields_ = (
        ("attention_norm", NormC),
        ("cross_norm", NormC),
        ("ffn_norm", NormC),
        ("qkv", LinearC),
        ("out", LinearC),
        ("cross_query", LinearC),
        ("cross_out", LinearC),
        ("up", LinearC),
        ("down", LinearC),
        ("scale", c_float),
        ("cross_scale", c_float),
    )


class StackC(Structure):
    """`Stack` of kernels.c."""

    _fields_ = (
        *((name, c_int64) for name in ("dim", "heads", "head_dim", "ffn_dim", "layers", "positions", "vocab_size")),
        *((name, c_int64) for name in ("pre_norm", "activation", "cross", "half_cache", "kv_heads", "gated")),
        ("eps", c_float),
        ("embed_scale", c_float),
        ("embed", c_void_p),
        ("position", c_void_p),
        ("rotation", c_void_p),
        ("final_norm", NormC),
        ("readout", LinearC),
        ("layer", POINTER(LayerC)),
    )


class CacheC(Structure):
    """`Cache` of kernels.c."""

    _fields_ = (("keys", c_void_p), ("values", c_void_p), ("rows", c_int64), ("capacity", c_int64))


class BatchC(Structure):
    """`Batch` of kernels.c."""

    _fields_ = (
        ("tokens", c_int64),
        ("ids", c_void_p),
        ("rows", c_void_p),
        ("positions", c_void_p),
        ("lengths", c_void_p),
        ("table", c_void_p),
        ("table_stride", c_int64),
        ("cache", CacheC),
        ("memory", CacheC),
        ("memory_rows", c_void_p),
        ("memory_lengths", c_void_p),
        ("hidden", c_void_p),
        ("wanted", c_void_p),
        ("wanted_count", c_int64),
        ("logits", c_void_p),
        ("weights", c_void_p),
        ("self_weights", c_void_p),
    )


@cache
def library() -> ctypes.CDLL:
    """Return the compiled kernels; raise `Unsupported` if they cannot be compiled here."""
    if os.environ.get("QKV_FAST", "1") == "0":
        raise Unsupported("cpu kernels", "QKV_FAST=0")
    if platform.system() != "Linux":
        raise Unsupported("cpu kernels", "they are built on Linux only")
    path = _compiled()
    try:
        kernels = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unsupported("cpu kernels", str(error)) from None
    for name, result in (("qkv_packed_bytes", c_int64), ("qkv_features", c_int64)):
        getattr(kernels, name).restype = result
    kernels.qkv_packed_bytes.argtypes = (c_int64, c_int64, c_int64)
    kernels.qkv_pack.argtypes = (c_int64, c_void_p, c_int64, c_int64, c_void_p)
    kernels.qkv_run.argtypes = (POINTER(StackC), POINTER(BatchC))
    kernels.qkv_memory.argtypes = (
        POINTER(StackC), c_int64, POINTER(LinearC), c_void_p, c_int64, c_void_p, c_void_p, POINTER(CacheC),
    )  # fmt: skip
    kernels.qkv_linear.argtypes = (POINTER(LinearC), c_void_p, c_int64, c_void_p, c_void_p)
    kernels.qkv_log_sum_exp.argtypes = (c_void_p, c_int64, c_int64, c_void_p)
    kernels.qkv_top_k.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p)
    kernels.qkv_exp_sum.argtypes = (c_void_p, c_int64, c_int64, c_double, c_void_p)
    kernels.qkv_sample.argtypes = (c_void_p, c_int64, c_int64, c_double, c_void_p, c_void_p)
    for name in ("qkv_run", "qkv_memory", "qkv_linear"):
        getattr(kernels, name).restype = c_int64
    return kernels


def features() -> int:
    """Return the instruction sets of the kernels, as a sum of the keys of `FEATURES`."""
    return int(library().qkv_features())


def _compiled() -> Path:
    """Compile the kernels into the user's cache folder, unless a library of the same source and CPU is there."""
    compiler = next((command for name in COMPILERS if (command := shutil.which(name))), None)
    if compiler is None:
        raise Unsupported("cpu kernels", f"no C compiler was found ({', '.join(COMPILERS)})")
    key = hashlib.sha256(b"\0".join((SOURCE.read_bytes(), " ".join(FLAGS).encode(), _cpu().encode()))).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"
    path = folder / f"kernels-{key}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / path.name
            arguments = [compiler, *FLAGS, "-o", str(built), str(SOURCE), "-lm"]
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
