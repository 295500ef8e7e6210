"""GELU and its derivative with a C kernel for the CPU (see gelu_cpu.c)."""

import ctypes
from ctypes import c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch

from qkv.errors import Unsupported
from qkv.runtime.c_library import load_library
from qkv.types import Float, Tensor

SOURCE = Path(__file__).with_name("gelu_cpu.c")


@cache
def kernels() -> ctypes.CDLL | None:
    """Return the compiled kernels; None if they cannot be compiled here."""
    try:
        library = load_library(SOURCE)
    except Unsupported:
        return None
    library.qkv_gelu.argtypes = (*(c_void_p,) * 3, *(c_int64,) * 4)
    library.qkv_gelu.restype = None
    return library


def gelu_and_derivative(
    x: Float[Tensor, "*shape"], approximate: str
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Return `F.gelu(x)` of a contiguous float32 or bfloat16 tensor, and its derivative."""
    library = kernels()
    assert library is not None
    y, derivative = torch.empty_like(x), torch.empty_like(x)
    bfloat16, threads = x.dtype == torch.bfloat16, torch.get_num_threads()
    pointers = (tensor.data_ptr() for tensor in (x, y, derivative))
    library.qkv_gelu(*pointers, x.numel(), bfloat16, approximate == "tanh", threads)
    return y, derivative
