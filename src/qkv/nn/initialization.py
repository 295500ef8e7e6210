"""Models without initial values, to be loaded from a file or to check shapes."""

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

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


class SkipInit(TorchFunctionMode):
    """Turns random initialization into a no-op.

    On the meta device it would do nothing, but import torch._dynamo (seconds, and 100 MB).
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in INIT_FUNCTIONS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
