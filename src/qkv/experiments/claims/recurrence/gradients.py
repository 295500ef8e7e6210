"""Norm of the gradient of the last output with respect to an input, by their distance."""

from collections.abc import Callable

import torch
from torch import nn

from qkv.attention import attend
from qkv.nn.rnn import Recurrent
from qkv.types import Float, Tensor

DIM, LENGTH = 64, 80
DISTANCES = (1, 2, 4, 8, 16, 32, 64)
BATCH = {"small": 16, "full": 256}

LastOutput = Callable[[Float[Tensor, "batch length dim"]], Float[Tensor, "batch features"]]


def gradient_norms(model: LastOutput, batch: int, device: torch.device) -> dict[int, float]:
    """Return |d (v . y_n) / d x_{n-k}| by distance k, for a random vector v of unit norm; the mean over a batch."""
    x = torch.randn(batch, LENGTH, DIM, device=device, dtype=torch.float64, requires_grad=True)
    output = model(x)
    vector = torch.randn_like(output)
    (grad,) = torch.autograd.grad(output, x, vector / vector.norm(dim=-1, keepdim=True))
    norms = grad.norm(dim=-1).mean(dim=0)
    return {distance: float(norms[LENGTH - 1 - distance]) for distance in DISTANCES}


def recurrent_layer(cell: str, device: torch.device, gain: float | None = None) -> Recurrent:
    """Return a layer in float64 with the initialization of PyTorch, or with recurrent weights of this gain.

    With a gain g, U ~ N(0, g^2 / hidden), whose spectral radius is about g.
    """
    layer = Recurrent(cell, DIM, DIM).to(device, torch.float64)
    if gain is not None:
        _, recurrent_weight, *_ = layer.rnn.all_weights[0]
        nn.init.normal_(recurrent_weight, std=gain / DIM**0.5)
    return layer


def last_state(layer: Recurrent) -> LastOutput:
    """Return the function from inputs to the last hidden state h_n."""
    return lambda x: layer(x)[0][:, -1]


def last_state_with_attention(layer: Recurrent) -> LastOutput:
    """Return the function from inputs to [c ; h_n], c = sum_i a_i h_i, a = softmax_i(h_n . h_i)."""

    def run(x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch features"]:
        states = layer(x)[0][:, None]
        query = states[:, :, -1:]
        context = attend(query, states, states, backend="reference").output
        return torch.cat((context, query), dim=-1)[:, 0, 0]

    return run
