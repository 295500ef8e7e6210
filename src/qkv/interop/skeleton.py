"""Networks that are about to be filled from a file: shapes alone, to compare with it, then memory to copy it into."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qkv.errors import CheckpointError

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


def without_memory(network: Any, config: Any, path: Path) -> Any:
    """A network of shapes; a config, read from `path`, that asks for more than there can be is refused."""
    try:
        with torch.device("meta"):
            skeleton = network(config)
    except (RuntimeError, OverflowError):  # PyTorch counts no further than 2^63
        raise CheckpointError(f"{path}: asks for a model larger than any memory") from None
    tables = sum(buffer.nbytes for buffer in skeleton.buffers())
    if tables > LARGEST_TABLES:
        raise CheckpointError(f"{path}: asks for tables of {tables:,} bytes besides the weights")
    return skeleton


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
