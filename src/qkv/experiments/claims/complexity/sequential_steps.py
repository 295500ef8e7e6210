"""Claim 11: an RNN needs O(n) sequential steps, attention is parallel and faster to train."""

from functools import partial

import torch
from torch import nn

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import Calls, longest_path, seconds, threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Exponent, Ratio
from qkv.nn.multi_head import MultiHeadAttention
from qkv.nn.rnn import Recurrent
from qkv.registry import register
from qkv.types import Float, Tensor

COUNTED_DIM, COUNTED_LENGTHS = 8, (8, 16, 32, 64, 128)
DIM, HEADS, LAYERS = 256, 4, ("GRU", "LSTM", "self-attention")
LENGTHS = {"small": (16, 32, 64, 128), "full": (16, 32, 64, 128, 256, 512, 1024)}
BATCH = {"small": 2, "full": 32}
LONG = 128


@register("claim", "sequential-steps")
class SequentialSteps(SampledClaim):
    """Sequential operations of a layer by length, and the time of a training step."""

    number = 11
    title = "An RNN needs as many sequential steps as words; attention trains faster"
    statement = (
        "The steps of an RNN depend on each other and cannot be computed at the same time. Self-attention computes all "
        "positions at once, so that training is faster."
    )
    notes = (
        Note("000", "Self-Attention and Transformer Networks"),
        Note("001", "Lack of parallelizability"),
        Note("002", "Take home lesson"),
    )
    equation = (
        "recurrent: h_t = f(x_t, h_{t-1}), t = 1 ... n: n steps;   attention: softmax(Q K^T / sqrt(d)) V: O(1) steps"
    )
    source = (
        "src/qkv/experiments/claims/cost.py::longest_path",
        "src/qkv/nn/rnn.py::Recurrent",
        "src/qkv/nn/multi_head.py::MultiHeadAttention",
    )
    hypothesis = (
        "The longest chain of operations grows with exponent 1 (0.9 to 1.1) in an RNN and 0 (within 0.05) in attention."
        " A forward and backward pass over 128 words of width 256 takes more time with a GRU, and with an LSTM, than "
        "with self-attention."
    )
    criteria = (
        Exponent("sequential steps: RNN", low=0.9, high=1.1),
        Exponent("sequential steps: self-attention", low=-0.05, high=0.05),
        Ratio("time at 128 words: GRU", "time at 128 words: self-attention", low=1.0),
        Ratio("time at 128 words: LSTM", "time at 128 words: self-attention", low=1.0),
    )
    figure = (
        Panel(
            "Longest chain of operations", "operations", ("sequential steps: RNN", "sequential steps: self-attention"),
            x_label="words", log_x=True, log_y=True,
        ),
        Panel(
            "Forward and backward pass, width 256", "seconds", tuple(f"training time: {name}" for name in LAYERS),
            x_label="words", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "Self-attention has n^2 d operations: for long texts and few processors it is slower than an RNN. The times "
        "are those of one layer of this width; on a CPU, of one thread, so that only vector units work in parallel."
    )
    amendments = (
        "The first run, with two threads and a larger batch, was mixed. The times are now those of one thread, "
        "with more rounds and shorter texts."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        steps: dict[str, dict[int, float]] = {"RNN": {}, "self-attention": {}}
        for length in COUNTED_LENGTHS:
            x = torch.randn(1, length, COUNTED_DIM, requires_grad=True)
            steps["RNN"][length] = longest_path(StepwiseLayer(COUNTED_DIM)(x))
            steps["self-attention"][length] = longest_path(AttentionLayer(COUNTED_DIM)(x))
        layers: dict[str, nn.Module] = {
            "GRU": Recurrent("gru", DIM, DIM).to(device),
            "LSTM": Recurrent("lstm", DIM, DIM).to(device),
            "self-attention": MultiHeadAttention(DIM, HEADS).to(device),
        }

        def train(layer: nn.Module, x: torch.Tensor) -> None:
            layer(x)[0].sum().backward()
            layer.zero_grad()

        calls: Calls = {}
        for length in LENGTHS[scale]:
            x = torch.randn(BATCH[scale], length, DIM, device=device)
            calls |= {(name, length): partial(train, layer, x) for name, layer in layers.items()}
        with threads(1):
            times = seconds(calls, device, rounds=9)
        curves = {name: {length: times[name, length] for length in LENGTHS[scale]} for name in layers}
        series = {f"sequential steps: {label}": curve for label, curve in steps.items()}
        series |= {f"training time: {name}": curve for name, curve in curves.items()}
        return Sample({f"time at {LONG} words: {name}": curve[LONG] for name, curve in curves.items()}, series)


class AttentionLayer(MultiHeadAttention):
    """Self-attention with one head, computed by the reference."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, 1, backend="reference")

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:  # type: ignore[override]
        return super().forward(x)[0]


class StepwiseLayer(Recurrent):
    """A recurrent layer that is computed step by step, so that its steps are separate in the autograd graph."""

    def __init__(self, dim: int) -> None:
        super().__init__("rnn", dim, dim)

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:  # type: ignore[override]
        step, state, outputs = self.unroll(x), self.unpack_state(x.new_zeros(len(x), 1, self.state_dim)), []
        for _ in range(x.shape[1]):
            output, state = step(state)
            outputs.append(output)
        return torch.stack(outputs, dim=1)
