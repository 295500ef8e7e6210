"""Networks that are about to be filled from a file: shapes alone, to compare with it, then memory to copy it into."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qkv.errors import CheckpointError
from qkv.runtime.memory import require_memory

LARGEST_TABLES = 2**30  # bytes of what a network keeps besides its weights: tables of positions, masks
DRAWING = frozenset(
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
    """A network of shapes, without memory; `where` opens the error for sizes beyond any memory."""
    try:
        with torch.device("meta"):
            return network(config)
    except (RuntimeError, OverflowError):  # PyTorch counts no further than 2^63
        raise CheckpointError(f"{where}: asks for a model larger than any memory") from None


def without_memory(network: Any, config: Any, path: Path) -> Any:
    """A network of shapes; a config, read from `path`, that asks for more than there can be is refused."""
    skeleton = meta_model(network, config, path)
    tables = sum(buffer.nbytes for buffer in skeleton.buffers())
    if tables > LARGEST_TABLES:
        raise CheckpointError(f"{path}: asks for tables of {tables:,} bytes besides the weights")
    return skeleton


def require_model_memory(skeleton: nn.Module, path: Path) -> None:
    """Raise where the weights of a network of shapes, in float32, are larger than the memory that is free."""
    tensors = (*skeleton.parameters(), *skeleton.buffers())
    parts = {"float32 weights": sum(tensor.nbytes for tensor in tensors)}
    require_memory(f"{path}: the model", parts, torch.device("cpu"), lambda: "free some memory, or use a smaller model")


def unfilled(network: Any, config: Any, dtype: torch.dtype | None) -> Any:
    """A network whose weights are whatever was in memory: to draw random ones first would be for nothing."""
    with _NothingDrawn():
        return network(config).to(dtype=dtype).eval()


class _NothingDrawn(TorchFunctionMode):
    """Leaves tensors as they are where random numbers would be drawn into them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DRAWING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
