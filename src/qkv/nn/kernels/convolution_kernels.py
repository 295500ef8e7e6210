"""Triton kernels of a convolution over positions followed by their maximum, which store neither; `fast` launches them.

    y[n, f] = b[f] + max_s sum_k W[k, f] x[n, s C + k]                     C channels, k = 0 .. width C - 1

A window of the input is a contiguous slice of its row. With the position s* of the maximum, and G_s = dy [s* = s]:

    dx[n, s C + k] += sum_f G_s[n, f] W[k, f]          dW[k, f] = sum_n sum_s G_s[n, f] x[n, s C + k]
"""

# ruff: noqa: N803 (upper-case arguments are compile-time constants, following the Triton convention)

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import UInt8

from qkv.types import Float, Tensor

MAX_WINDOW = 128  # inputs of a window
MAX_POSITIONS = 256  # positions are stored as bytes
PROGRAMS = 256  # of the gradient of the weights, each of which sums over some of the words
ROWS, FEATURES, WARPS = 64, 64, 4

INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
@no_type_check
def _product(a, b, total):
    """total + a b, accumulated in float32; the interpreter does not support bfloat16 operands."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc=total)
    else:
        return tl.dot(a, b, acc=total, input_precision="ieee")


@triton.jit
@no_type_check
def _forward(
    x, w, bias, out, argmax, words, row_size, channels, window, positions, features, stride,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    f = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    k = tl.arange(0, WINDOW)
    in_feature = f < features
    inside = (n < words)[:, None] & (k < window)[None, :]
    weight = tl.load(
        w + k[:, None] * features + f[None, :], mask=(k < window)[:, None] & in_feature[None, :], other=0.0
    )
    x += n[:, None].to(tl.int64) * row_size + k[None, :]
    best = tl.full([ROWS, FEATURES], float("-inf"), tl.float32)
    position = tl.zeros([ROWS, FEATURES], tl.int32)
    for s in range(positions):
        y = _product(tl.load(x, mask=inside, other=0.0), weight, tl.zeros([ROWS, FEATURES], tl.float32))
        better = (y > best) | (y != y)  # keep a NaN
        best = tl.where(better, y, best)
        position = tl.where(better, s, position)
        x += channels
    if bias is not None:
        best += tl.load(bias + f, mask=in_feature, other=0.0).to(tl.float32)[None, :]
    at = n[:, None].to(tl.int64) * stride + f[None, :]
    stored = (n < words)[:, None] & in_feature[None, :]
    tl.store(out + at, best.to(out.dtype.element_ty), mask=stored)
    tl.store(argmax + at, position.to(tl.uint8), mask=stored)


@triton.jit
@no_type_check
def _input_gradient(
    grad, argmax, w, grad_x, words, row_size, channels, window, positions, features, stride,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Add to the gradient of some words, which belong to this program alone, one position after the other."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, WINDOW)
    in_word, in_window = n < words, k < window
    inside = in_word[:, None] & in_window[None, :]
    grad_x += n[:, None].to(tl.int64) * row_size + k[None, :]
    for s in range(positions):
        total = tl.zeros([ROWS, WINDOW], tl.float32)
        for first in range(0, features, FEATURES):
            f = first + tl.arange(0, FEATURES)
            at = n[:, None].to(tl.int64) * stride + f[None, :]
            in_grad = in_word[:, None] & (f < features)[None, :]
            g = tl.load(grad + at, mask=in_grad, other=0.0)
            g = tl.where(tl.load(argmax + at, mask=in_grad, other=0) == s, g, 0.0).to(w.dtype.element_ty)
            weight_at = w + k[None, :] * features + f[:, None]
            weight = tl.load(weight_at, mask=(f < features)[:, None] & in_window[None, :], other=0.0)
            total = _product(g, weight, total)
        tl.store(grad_x, tl.load(grad_x, mask=inside, other=0.0) + total, mask=inside)
        tl.debug_barrier()  # the windows of the next position overlap these, in other threads
        grad_x += channels


@triton.jit
@no_type_check
def _weight_gradient(
    grad, argmax, x, parts, words, row_size, channels, window, positions, features, stride, chunk,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Sum over some of the words of dW."""
    f = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    k = tl.arange(0, WINDOW)
    in_feature, in_window = f < features, k < window
    total = tl.zeros([FEATURES, WINDOW], tl.float32)
    begin = tl.program_id(1) * chunk
    for first in range(begin, begin + chunk, ROWS):
        n = first + tl.arange(0, ROWS)
        in_word = (n < begin + chunk) & (n < words)
        at = n[None, :].to(tl.int64) * stride + f[:, None]
        in_grad = in_feature[:, None] & in_word[None, :]
        g = tl.load(grad + at, mask=in_grad, other=0.0)
        position = tl.load(argmax + at, mask=in_grad, other=0)
        x_at = x + n[:, None].to(tl.int64) * row_size + k[None, :]
        for s in range(positions):
            part = tl.where(position == s, g, 0.0).to(x.dtype.element_ty)
            rows = tl.load(x_at + s * channels, mask=in_word[:, None] & in_window[None, :], other=0.0)
            total = _product(part, rows, total)
    parts += (tl.program_id(1) * features + f[:, None]) * window + k[None, :]
    tl.store(parts, total, mask=in_feature[:, None] & in_window[None, :])


def _sizes(
    x: Float[Tensor, "words length channels"], window: int, features: int
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the size arguments and the tiles of all kernels."""
    words, length, channels = x.shape
    tiles = {
        "ROWS": ROWS,
        "FEATURES": min(FEATURES, max(16, triton.next_power_of_2(features))),
        "WINDOW": max(16, triton.next_power_of_2(window)),
    }
    return (words, length * channels, channels, window, length - window // channels + 1, features), tiles


def max_convolution(
    x: Float[Tensor, "words length channels"],
    w: Float[Tensor, "window features"],
    bias: Float[Tensor, "features"] | None,
    out: Float[Tensor, "words features"],
    argmax: UInt8[Tensor, "words features"],
) -> None:
    """Write the maximum over the positions and where it is; both may be columns of a larger tensor."""
    sizes, tiles = _sizes(x, *w.shape)
    grid = (triton.cdiv(len(x), ROWS), triton.cdiv(w.shape[1], tiles["FEATURES"]))
    with torch.cuda.device_of(x):
        _forward[grid](x, w, bias, out, argmax, *sizes, out.stride(0), **tiles, num_warps=WARPS)


def add_input_gradient(
    grad: Float[Tensor, "words features"],
    argmax: UInt8[Tensor, "words features"],
    w: Float[Tensor, "window features"],
    grad_x: Float[Tensor, "words length channels"],
) -> None:
    """Add to the gradient of x."""
    sizes, tiles = _sizes(grad_x, *w.shape)
    with torch.cuda.device_of(grad):
        _input_gradient[(triton.cdiv(len(grad_x), ROWS),)](
            grad, argmax, w, grad_x, *sizes, grad.stride(0), **tiles, num_warps=WARPS
        )


def weight_gradient(
    grad: Float[Tensor, "words features"],
    argmax: UInt8[Tensor, "words features"],
    x: Float[Tensor, "words length channels"],
    window: int,
) -> Float[Tensor, "features window"]:
    """Return the gradient of w, transposed."""
    features = grad.shape[1]
    sizes, tiles = _sizes(x, window, features)
    feature_tiles = triton.cdiv(features, tiles["FEATURES"])
    tiles_per_chunk = triton.cdiv(triton.cdiv(len(x), ROWS) * feature_tiles, PROGRAMS)
    chunk = tiles_per_chunk * ROWS
    chunks = triton.cdiv(len(x), chunk)
    parts = torch.empty(chunks, features, window, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _weight_gradient[(feature_tiles, chunks)](
            grad, argmax, x, parts, *sizes, grad.stride(0), chunk, **tiles, num_warps=WARPS
        )
    return parts.sum(dim=0)
