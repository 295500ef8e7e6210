"""Models of llama2.c (Karpathy 2023): a file of float32 numbers, and a tokenizer behind it or in tokenizer.bin.

    header   dim, ffn_dim, layers, heads, kv_heads, vocab_size (negative: the output layer is not tied), max_length
    weights  E;  attention norms;  W_Q;  W_K;  W_V;  W_O;  FFN norms;  W1;  W2;  W3;  final norm;  cosines and sines;  W

Each kind of weight is stored for all layers. Positions rotate neighboring features there, features i and i + d/2 here:
the rows of W_Q and W_K are permuted.
"""

import os
import struct
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch

from qkv.errors import CheckpointError, InputError
from qkv.hub.meta_model import check_vocab_size, empty_model, meta_model, require_model_memory
from qkv.hub.weight_map import OriginalRelease
from qkv.models.llama import Llama, LlamaConfig
from qkv.runtime.documents import open_bytes, read_bytes
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.sentencepiece import MAX_LLAMA2C_BYTES, llama2c_tokenizer
from qkv.types import Float, Tensor

SUFFIXES = (".bin", ".data")
TOKENIZER = "tokenizer.bin"
HEADER = struct.Struct("<7i")


def find_llama2c(path: Path) -> OriginalRelease | None:
    """Return the model of a llama2.c file; None if the file does not begin with the header of one."""
    if path.suffix not in SUFFIXES or not path.is_file():
        return None
    with open_bytes(path) as file:
        config = _read_header(file)
    return None if config is None else OriginalRelease(Llama, partial(load_llama2c, path, config))


def load_llama2c(path: Path, config: LlamaConfig, device: torch.device, dtype: torch.dtype | None = None) -> Llama:
    """Load a model of llama2.c in eval mode, with its tokenizer if there is one."""
    expected = HEADER.size + 4 * _numbers(config)
    with open_bytes(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < expected:
            raise CheckpointError(f"{path}: truncated: {size:,} bytes, but its header describes {expected:,}")
        require_model_memory(meta_model(Llama, config, path), path)
        model: Llama = empty_model(Llama, config, dtype)
        file.seek(HEADER.size)
        with torch.no_grad():
            for name, view, heads in _entries(model):
                view.copy_(_read_weight(file, view.shape, heads, f"{path}: {name}"))
        file.seek(expected)
        rest = file.read(min(size - expected, MAX_LLAMA2C_BYTES + 1))
    model.tokenizer = _tokenizer(path, rest, config.vocab_size)
    if model.tokenizer is not None:
        check_vocab_size(path, model.tokenizer, config)
    return model.to(device=device)


def _read_header(file: BufferedReader) -> LlamaConfig | None:
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    dim, ffn_dim, layers, heads, kv_heads, vocab_size, max_length = HEADER.unpack(header)
    try:
        return LlamaConfig(
            vocab_size=abs(vocab_size), dim=dim, heads=heads, kv_heads=kv_heads, layers=layers, ffn_dim=ffn_dim,
            max_length=max_length, tie_embeddings=vocab_size > 0, has_end_token=True,
        )  # fmt: skip
    except InputError:
        return None


def _numbers(config: LlamaConfig) -> int:
    """Return the number of float32 numbers behind the header."""
    dim, head_dim = config.dim, config.sizes.key
    kv_dim = head_dim * (config.kv_heads or config.heads)
    layer = 2 * dim + 2 * dim * dim + 2 * dim * kv_dim + 3 * dim * config.ffn_width
    tables = config.vocab_size * dim * (1 if config.tie_embeddings else 2) + config.max_length * head_dim
    return tables + config.layers * layer + dim


def _entries(model: Llama) -> Iterator[tuple[str, Tensor, int]]:
    """Yield name, view and number of rotated heads of each weight, in the order of the file."""
    blocks: Any = model.blocks
    yield "E", model.embed.weight, 0
    yield from (("an attention norm", block.attention_norm.weight, 0) for block in blocks)
    for part, name in enumerate(("W_Q", "W_K", "W_V")):
        for attention in (block.attention for block in blocks):
            heads = (attention.heads, attention.kv_heads, 0)[part]
            yield name, attention.qkv_proj.weight.split(attention.qkv_dims)[part], heads
    yield from (("W_O", block.attention.out_proj.weight, 0) for block in blocks)
    yield from (("an FFN norm", block.ffn_norm.weight, 0) for block in blocks)
    yield from (("W1", block.ffn.up_proj.weight.chunk(2)[0], 0) for block in blocks)
    yield from (("W2", block.ffn.down_proj.weight, 0) for block in blocks)
    yield from (("W3", block.ffn.up_proj.weight.chunk(2)[1], 0) for block in blocks)
    yield "the final norm", model.norm.weight, 0
    if not model.config.tie_embeddings:
        # The tables of cosines and sines, which the model computes, are in between.
        yield "the table of rotations", torch.empty(model.config.max_length, model.config.sizes.key), 0
        yield "W", model.readout.weight, 0


def _read_weight(file: BufferedReader, shape: torch.Size, heads: int, where: str) -> Float[Tensor, "..."]:
    values = torch.frombuffer(bytearray(file.read(4 * shape.numel())), dtype=torch.float32).view(shape)
    if not values.isfinite().all():
        raise CheckpointError(f"{where} contains non-finite values")
    if not heads:
        return values
    return values.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(shape)


def _tokenizer(path: Path, rest: bytes, vocab_size: int) -> Tokenizer | None:
    """Return the tokenizer in the bytes behind the weights or else in tokenizer.bin next to the file."""
    other = path.with_name(TOKENIZER)
    if rest:
        return llama2c_tokenizer(rest, vocab_size, str(path))
    if os.path.lexists(other):
        return llama2c_tokenizer(read_bytes(other, MAX_LLAMA2C_BYTES), vocab_size, str(other))
    return None
