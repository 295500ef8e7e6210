"""Position-wise feed-forward networks."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn
from torch.nn import functional as F

from qkv.nn.fast import Dropout, gelu, linear_gelu
from qkv.types import Float, Tensor

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,  # x Phi(x) (Hendrycks and Gimpel 2016)
    "gelu_tanh": partial(gelu, approximate="tanh"),  # the tanh approximation, as in GPT-2
    "silu": F.silu,  # x sigmoid(x), also "swish" (Elfwing et al. 2018)
    "tanh": F.tanh,
}


def linear_activation(
    linear: nn.Module, x: Float[Tensor, "batch length inputs"], activation: Activation
) -> Float[Tensor, "batch length outputs"]:
    """f(W x + b)."""
    if activation in ("gelu", "gelu_tanh"):
        return linear_gelu(linear, x, "tanh" if activation == "gelu_tanh" else "none")
    return ACTIVATIONS[activation](linear(x))


class FeedForward(nn.Module):
    """FFN(x) = W2 f(W1 x), applied at every position (Vaswani et al. 2017, section 3.3, where f is relu)."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float = 0.0, activation: Activation = "relu") -> None:
        super().__init__()
        self.activation = activation
        self.up_proj = nn.Linear(dim, hidden_dim)
        self.down_proj = nn.Linear(hidden_dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        return self.down_proj(self.dropout(linear_activation(self.up_proj, x, self.activation)))


class GatedFeedForward(nn.Module):
    """FFN(x) = W2 (f(W1 x) * W3 x), without biases: a gated linear unit, with f = silu SwiGLU (Shazeer 2020)."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float = 0.0, activation: Activation = "silu") -> None:
        super().__init__()
        self.activation = activation
        self.up_proj = nn.Linear(dim, 2 * hidden_dim, bias=False)  # W1 and W3, stacked
        self.down_proj = nn.Linear(hidden_dim, dim, bias=False)  # W2
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        gate, value = self.up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.dropout(ACTIVATIONS[self.activation](gate) * value))
