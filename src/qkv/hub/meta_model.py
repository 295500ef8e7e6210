"""Models to be loaded from a file: on the meta device to check sizes, then with uninitialized weights."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.errors import CheckpointError
from qkv.nn.initialization import SkipInit
from qkv.nn.quantized import is_quantized
from qkv.runtime.memory import require_memory
from qkv.tokenizers import Tokenizer

MAX_BUFFER_BYTES = 2**30  # bytes of buffers (position tables, masks)


def meta_model(network: Any, config: Any, where: str | Path) -> Any:
    """Build a model on the meta device; `where` opens the error message if its sizes overflow."""
    try:
        with torch.device("meta"), SkipInit():
            return network(config)
    except (RuntimeError, OverflowError):  # sizes overflow int64
        raise CheckpointError(f"{where}: model sizes overflow") from None


def checked_meta_model(network: Any, config: Any, path: Path) -> Any:
    """Build a model on the meta device; raise if its buffers exceed the limit. `path` is the config file."""
    meta = meta_model(network, config, path)
    buffer_bytes = sum(buffer.nbytes for buffer in meta.buffers())
    if buffer_bytes > MAX_BUFFER_BYTES:
        raise CheckpointError(f"{path}: the model's buffers need {buffer_bytes:,} bytes")
    return meta


def require_model_memory(meta: nn.Module, path: Path) -> None:
    """Raise if the weights of a meta model, float32 or quantized, exceed the free memory."""
    tensors = (*meta.parameters(), *meta.buffers())
    kind = "int8" if is_quantized(meta) else "float32"
    parts = {f"{kind} weights": sum(tensor.nbytes for tensor in tensors)}
    require_memory(f"{path}: the model", parts, torch.device("cpu"), lambda: "free some memory or use a smaller model")


def empty_model(network: Any, config: Any, dtype: torch.dtype | None) -> Any:
    """Build a model with uninitialized weights, to be overwritten by a checkpoint."""
    with SkipInit():
        return network(config).to(dtype=dtype).eval()


def check_vocab_size(folder: Path, tokenizer: Tokenizer, config: Any) -> None:
    """Raise if a tokenizer has more tokens than the model's embedding."""
    source, target = tokenizer.source, tokenizer.target
    for key, side in {"source_vocab_size": source, "target_vocab_size": target, "vocab_size": source}.items():
        vocab_size = getattr(config, key, None)
        if vocab_size is not None and len(side) > vocab_size:
            raise CheckpointError(f"{folder}: the tokenizer has {len(side):,} tokens, but {key} is {vocab_size:,}")
