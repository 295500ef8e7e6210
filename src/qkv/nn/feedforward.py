"""The position-wise network between attention layers."""

from collections.abc import Callable
from functools import partial

from torch import nn
from torch.nn import functional as F

from qkv.nn.dropout import Dropout
from qkv.types import Float, Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x Phi(x) (Hendrycks and Gimpel 2016)
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # as GPT-2 has it: Phi by a tanh
    "silu": F.silu,  # x sigmoid(x), also "swish" (Elfwing et al. 2018)
    "tanh": F.tanh,
}


class FeedForward(nn.Module):
    """W2 f(W1 x), at every position alike (Vaswani et al. 2017, section 3.3, where f is relu)."""

    def __init__(self, dim: int, hidden: int, dropout: float, activation: str = "relu") -> None:
        super().__init__()
        self.activation = activation
        self.widen = nn.Linear(dim, hidden)
        self.narrow = nn.Linear(hidden, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        return self.narrow(self.dropout(ACTIVATIONS[self.activation](self.widen(x))))
