"""Layers whose costs are compared, as functions of a sequence [batch, length, dim]."""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

from qkv.attention import Dense, attend
from qkv.models.linformer import LengthProjection, LinformerConfig
from qkv.nn.conv import GatedConvolution
from qkv.nn.rnn import Recurrent
from qkv.types import Float, Tensor

KERNEL = 3  # of a convolution
RADIUS = 32  # of local attention: keys on each side
RANK = 64  # of a Linformer: projected keys

Layer = Callable[[Float[Tensor, "batch length dim"]], Float[Tensor, "batch length dim"]]
LAYERS = ("recurrent", "convolution", "self-attention", "local attention", "Linformer")
LENGTH_EXPONENTS = {"recurrent": 1, "convolution": 1, "self-attention": 2, "local attention": 1, "Linformer": 1}
MEMORY_EXPONENTS = {"recurrent": 1, "convolution": 1, "self-attention": 2, "local attention": 1, "Linformer": 1}
WIDTH_EXPONENTS = {"recurrent": 2, "convolution": 2, "self-attention": 1, "local attention": 1, "Linformer": 1}


def build_layer(name: str, length: int, dim: int, device: torch.device, backend: str = "auto") -> Layer:
    """Return a layer without the projections of queries, keys and values, as in the cost table of the notes.

    The matrix products of the backend "reference" can be counted, which those inside other kernels cannot.
    """
    if name == "recurrent":
        rnn = Recurrent("rnn", dim, dim).to(device)
        return lambda x: rnn(x)[0]
    if name == "convolution":
        convolution = GatedConvolution(dim, KERNEL).to(device)
        return lambda x: convolution(F.pad(x, (0, 0, (KERNEL - 1) // 2, KERNEL // 2)))
    if name == "Linformer":
        return linformer_attention(length, dim, device, backend)
    if name == "local attention":
        return partial(local_attention, backend=backend)
    return partial(self_attention, backend=backend)


def self_attention(x: Float[Tensor, "batch length dim"], backend: str = "auto") -> Float[Tensor, "batch length dim"]:
    """softmax(x x^T / sqrt(d)) x."""
    return attend(x[:, None], x[:, None], x[:, None], backend=backend).output[:, 0]


def linformer_attention(length: int, dim: int, device: torch.device, backend: str = "auto") -> Layer:
    """Return softmax(x (E x)^T / sqrt(d)) F x, with E and F of shape [rank, length]."""
    config = LinformerConfig(dim=dim, heads=1, max_length=length, rank=RANK)
    keys, values = (LengthProjection(config).to(device) for _ in range(2))
    return lambda x: attend(x[:, None], keys(x[:, None]), values(x[:, None]), start=0, backend=backend).output[:, 0]


def local_attention(x: Float[Tensor, "batch length dim"], backend: str = "auto") -> Float[Tensor, "batch length dim"]:
    """Self-attention of each position to at most RADIUS positions on each side, with cost O(length).

    The queries of each block of RADIUS positions are compared with the keys of three blocks: theirs and both
    neighbors. The length is a multiple of RADIUS.
    """
    batch, length, _ = x.shape
    blocks = x.unflatten(1, (-1, RADIUS))  # batch block position dim
    padded = F.pad(blocks, (0, 0, 0, 0, 1, 1))
    near = torch.cat((padded[:, :-2], padded[:, 1:-1], padded[:, 2:]), dim=2)
    query, key = (torch.arange(size, device=x.device) for size in (RADIUS, 3 * RADIUS))
    distance = (key - RADIUS - query[:, None]).abs()
    first = (
        torch.arange(0, length, RADIUS, device=x.device)[:, None, None] - RADIUS
    )  # position of each block's first key
    exists = (first + key >= 0) & (first + key < length)
    allowed = ((distance <= RADIUS) & exists)[:, None].repeat(batch, 1, 1, 1)
    keys = near.flatten(0, 1)[:, None]
    output = attend(blocks.flatten(0, 1)[:, None], keys, keys, mask=Dense(allowed), backend=backend).output
    return output[:, 0].reshape(x.shape)
