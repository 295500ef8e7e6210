"""Softmax attention with a C kernel for training on the CPU (see cpu_kernels.c)."""

import ctypes
from ctypes import POINTER, Structure, byref, c_float, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from qkv.attention.score_shape import Allowed, Outputs, Queries
from qkv.errors import Unsupported
from qkv.runtime.c_library import load_library
from qkv.runtime.fast_paths import enabled
from qkv.types import Float, Tensor

SOURCE = Path(__file__).with_name("cpu_kernels.c")
MIN_PRODUCTS = 2**18  # batch x heads x queries x keys x features, below which PyTorch's kernels are faster
MAX_HEAD_SIZE = 2**16  # keys times features: the kernel converts all keys and values of a head at once


class ViewC(Structure):
    """`View` of cpu_kernels.c."""

    _fields_ = (("data", c_void_p), ("batch", c_int64), ("head", c_int64), ("row", c_int64))


class AttentionC(Structure):
    """`Attention` of cpu_kernels.c."""

    _fields_ = (
        ("bfloat16", c_int64),
        *((name, c_int64) for name in ("batch", "heads", "kv_heads", "queries", "keys", "dim", "value_dim")),
        ("causal", c_int64),
        ("mask", c_void_p),
        *((name, c_int64) for name in ("mask_batch", "mask_head", "mask_row", "mask_key")),
        ("bias", ViewC),
        ("grad_bias", ViewC),
        ("sum_per_example", c_int64),
        ("scale", c_float),
        ("dropout", c_float),
        ("seed", c_uint64),
        ("threads", c_int64),
        ("log_sum", c_void_p),
        *((name, ViewC) for name in ("query", "key", "value", "output")),
        *((name, ViewC) for name in ("grad_output", "grad_query", "grad_key", "grad_value")),
    )


@cache
def kernels() -> ctypes.CDLL | None:
    """Return the compiled kernels; None if they cannot be compiled here."""
    try:
        library = load_library(SOURCE)
    except Unsupported:
        return None
    for function in (library.qkv_attention_forward, library.qkv_attention_backward):
        function.argtypes, function.restype = (POINTER(AttentionC),), c_int64
    return library


def suits_kernel(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> bool:
    """Return whether a call is one of training on the CPU that the kernel supports, and is faster at."""
    return (
        query.device.type == "cpu"
        and enabled()
        and torch.is_grad_enabled()
        and any(x is not None and x.requires_grad for x in (query, key, value, bias))
        and query.dtype in (torch.float32, torch.bfloat16)
        and query.dtype == key.dtype == value.dtype
        and key.shape[2] * max(key.shape[3], value.shape[3]) <= MAX_HEAD_SIZE
        and query.numel() * key.shape[2] >= MIN_PRODUCTS
        and value.shape[3] > 0
        and not torch.compiler.is_compiling()
        and kernels() is not None
    )


def kernel_attention(
    query: Queries,
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    scale: float,
    mask: Allowed | None = None,
    bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Outputs:
    """`F.scaled_dot_product_attention` with a mask and a bias, which broadcasts; a row without visible keys is 0."""
    seed = int(torch.empty((), dtype=torch.int64).random_()) if dropout else 0
    options = scale, is_causal, dropout, seed
    if bias is not None:
        bias = bias[(None,) * (4 - bias.ndim)].float().expand(-1, -1, -1, key.shape[2])
        bias = _with_contiguous_features(bias)
    return _Attention.apply(query, key, value, bias, mask, options)  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """Attention whose backward recomputes the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        options: tuple[float, bool, float, int],
    ) -> Tensor:
        query, key, value = (_with_contiguous_features(x) for x in (query, key, value))
        output, log_sum = _empty_heads(query, value.shape[3]), query.new_empty(query.shape[:3], dtype=torch.float32)
        ctx.options = options
        ctx.save_for_backward(query, key, value, bias, mask, log_sum)
        call = _arguments(query, key, value, bias, mask, log_sum, *options)
        call.output = _view(output)
        _run("qkv_attention_forward", call)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, mask, log_sum = ctx.saved_tensors
        grad = _with_contiguous_features(grad)
        gradients = tuple(_empty_heads(x, x.shape[3]) for x in (query, key, value))
        call = _arguments(query, key, value, bias, mask, log_sum, *ctx.options)
        call.grad_output = _view(grad)
        call.grad_query, call.grad_key, call.grad_value = (_view(gradient) for gradient in gradients)
        grad_bias = None
        if ctx.needs_input_grad[3]:
            call.sum_per_example = bias.shape[0] > 1 or call.batch <= call.threads
            sums = call.batch if call.sum_per_example else call.threads
            grad_bias = bias.new_zeros(sums, call.heads, call.queries, call.keys)
            call.grad_bias = _view(grad_bias)
        _run("qkv_attention_backward", call)
        return *gradients, None if grad_bias is None else grad_bias.sum_to_size(bias.shape), None, None


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    log_sum: Tensor,
    scale: float,
    is_causal: bool,
    dropout: float,
    seed: int,
) -> AttentionC:
    batch, heads, queries, dim = query.shape
    _, kv_heads, keys, value_dim = value.shape
    call = AttentionC(
        bfloat16=query.dtype == torch.bfloat16, batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys,
        dim=dim, value_dim=value_dim, causal=is_causal, scale=scale, dropout=dropout, seed=seed,
        threads=torch.get_num_threads(), log_sum=log_sum.data_ptr(), query=_view(query), key=_view(key),
        value=_view(value),
    )  # fmt: skip
    if mask is not None:
        mask = mask.expand(batch, heads, queries, keys)
        call.mask = mask.data_ptr()
        call.mask_batch, call.mask_head, call.mask_row, call.mask_key = mask.stride()
    if bias is not None:
        call.bias = _view(bias.expand(batch, heads, queries, keys))
    return call


def _run(function: str, call: AttentionC) -> None:
    if getattr(kernels(), function)(byref(call)):
        raise MemoryError("attention on the CPU: not enough memory")


def _view(x: Tensor) -> ViewC:
    return ViewC(x.data_ptr(), *x.stride()[:3])


def _with_contiguous_features(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _empty_heads(x: Tensor, features: int) -> Tensor:
    """Return an empty tensor [batch, heads, length, features] that is contiguous once its heads are merged."""
    batch, heads, length, _ = x.shape
    return x.new_empty(batch, length, heads, features).transpose(1, 2)
