"""Models to be loaded from a file: on the meta device to check shapes, then with uninitialized weights."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qkv.errors import CheckpointError
from qkv.runtime.memory import require_memory

MAX_BUFFER_BYTES = 2**30  # bytes of buffers (position tables, masks)
INIT_FUNCTIONS = frozenset(
    {
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        nn.init.normal_,
        nn.init.trunc_normal_,
        nn.init.uniform_,
        nn.init.kaiming_uniform_,
        nn.init.xavier_uniform_,
    }
)


def meta_model(network: Any, config: Any, where: str | Path) -> Any:
    """Build a model on the meta device; `where` opens the error message if its sizes overflow."""
    try:
        with torch.device("meta"):
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
    """Raise if the float32 weights of a meta model exceed the free memory."""
    tensors = (*meta.parameters(), *meta.buffers())
    parts = {"float32 weights": sum(tensor.nbytes for tensor in tensors)}
    require_memory(f"{path}: the model", parts, torch.device("cpu"), lambda: "free some memory or use a smaller model")


def empty_model(network: Any, config: Any, dtype: torch.dtype | None) -> Any:
    """Build a model with uninitialized weights, to be overwritten by a checkpoint."""
    with _SkipInit():
        return network(config).to(dtype=dtype).eval()


class _SkipInit(TorchFunctionMode):
    """Turns random initialization into a no-op."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in INIT_FUNCTIONS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
