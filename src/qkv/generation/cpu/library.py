"""The CPU kernels, compiled on first use, and their arguments."""

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

from qkv.runtime.c_library import load_library

SOURCE = Path(__file__).with_name("kernels.c")
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
    kernels = load_library(SOURCE)
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
