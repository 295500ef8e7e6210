"""Claim 10: the interaction distance of an RNN is linear, that of attention constant."""

from collections.abc import Sequence

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.complexity.layers import KERNEL
from qkv.experiments.claims.cost import shortest_path
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Exponent
from qkv.nn.conv import GatedConvolution
from qkv.nn.multi_head import MultiHeadAttention
from qkv.nn.rnn import Recurrent
from qkv.registry import register
from qkv.types import Float, Tensor

Tokens = Sequence[Float[Tensor, "batch 1 dim"]]

DIM = 8
DISTANCES = {"small": (8, 16, 32, 64, 128), "full": (8, 16, 32, 64, 128, 256, 512)}


@register("claim", "interaction-distance")
class InteractionDistance(SampledClaim):
    """Operations between the first input and the last output, by distance, counted in the autograd graph."""

    number = 10
    title = "The distance between two words is linear in an RNN, constant in attention"
    statement = (
        "In an RNN, information about a word passes through one step for each word between it and the word that needs "
        "it. Self-attention connects any two words directly."
    )
    notes = (
        Note("000", "Self-Attention and Transformer Networks"),
        Note("001", "Linear interaction distance"),
        Note("004", "Seq-2-seq with self-attention"),
    )
    equation = (
        "recurrent: h_n = f(x_n, f(x_{n-1}, ... f(x_1, h_0)))   O(n)\n"
        "convolution of k inputs: n / (k - 1) layers            O(n / k)\n"
        "attention: y_n = sum_j a_nj v_j                        O(1)"
    )
    source = (
        "src/qkv/experiments/claims/cost.py::shortest_path",
        "src/qkv/nn/rnn.py::StepwiseRNN",
        "src/qkv/nn/multi_head.py::MultiHeadAttention",
    )
    hypothesis = (
        "The number of operations on the shortest path from the first input to the last output grows with exponent 1 "
        "(0.9 to 1.1) in an RNN and with exponent 0 (within 0.05) in self-attention."
    )
    criteria = (
        Exponent("path: RNN", low=0.9, high=1.1),
        Exponent("path: self-attention", low=-0.05, high=0.05),
    )
    figure = (
        Panel(
            "Shortest path from the first input to the last output", "operations",
            ("path: RNN", "path: convolutions of 3 inputs", "path: self-attention"),
            x_label="distance in words", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "It is a property of the equations. Dilated convolutions need a number of layers that is logarithmic in the "
        "distance. A short path is necessary for a strong gradient, but not sufficient (claims 7 to 9)."
    )
    amendments = "A first version counted paths through a matrix product that all tokens share, and was mixed."
    deterministic = True
    seeds = 1

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        paths: dict[str, dict[int, float]] = {}
        for distance in DISTANCES[scale]:
            for label, last_output in LAST_OUTPUTS.items():
                tokens = [torch.randn(1, 1, DIM, requires_grad=number == 0) for number in range(distance + 1)]
                paths.setdefault(label, {})[distance] = shortest_path(last_output(tokens), tokens[0])
        return Sample({}, {f"path: {label}": curve for label, curve in paths.items()})


# Each token is a tensor of its own, so that the autograd graph has only the dependencies of the equations.


def recurrent_output(tokens: Tokens) -> Float[Tensor, "batch dim"]:
    """h_n of an RNN, step by step."""
    rnn = Recurrent("rnn", DIM, DIM)
    state = rnn.unpack_state(torch.zeros(1, 1, rnn.state_dim))
    for token in tokens:
        output, state = rnn.unroll(token)(state)
    return output


def convolution_output(tokens: Tokens) -> Float[Tensor, "batch 1 dim"]:
    """The last output of as many causal convolutions as it takes to depend on the first input."""
    zeros = [torch.zeros(1, 1, DIM)] * (KERNEL - 1)
    for _ in range(-(-(len(tokens) - 1) // (KERNEL - 1))):
        layer, padded = GatedConvolution(DIM, KERNEL), [*zeros, *tokens]
        tokens = [layer(torch.cat(padded[end - KERNEL : end], dim=1)) for end in range(KERNEL, len(padded) + 1)]
    return tokens[-1]


def attention_output(tokens: Tokens) -> Float[Tensor, "batch 1 dim"]:
    """The output of self-attention for the last query."""
    layer = MultiHeadAttention(DIM, 1, backend="reference")
    return layer.cross(tokens[-1], layer.keys_values(torch.cat(list(tokens), dim=1)))


LAST_OUTPUTS = {
    "RNN": recurrent_output,
    "convolutions of 3 inputs": convolution_output,
    "self-attention": attention_output,
}
