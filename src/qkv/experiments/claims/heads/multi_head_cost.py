"""Claim 20: many heads cost the same as one."""

from functools import partial

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import multiply_adds, seconds, threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Ratio
from qkv.nn.multi_head import MultiHeadAttention
from qkv.registry import register

HEADS = (1, 2, 4, 8, 16)
SIZES = {"small": (4, 256, 512), "full": (16, 1024, 1024)}  # batch, length, dim


@register("claim", "multi-head-cost")
class MultiHeadCost(SampledClaim):
    """Multiply-adds and time of multi-head attention by the number of heads, at equal width."""

    number = 20
    title = "Many heads cost the same as one head"
    statement = (
        "Splitting the features of a layer between several heads does not change the amount of computation, because "
        "each head is narrower by the same factor."
    )
    notes = (Note("001", "Multi-head with matrices"),)
    equation = (
        "h heads of width d / h over n tokens:\n"
        "projections 4 n d^2,   scores h n^2 (d / h) = n^2 d,   weighted sum h n^2 (d / h) = n^2 d   multiply-adds"
    )
    source = ("src/qkv/nn/multi_head.py::MultiHeadAttention",)
    hypothesis = (
        "The multiply-adds of 8 heads and of 1 head are equal (ratio within 1 %), and the time is the same within 25 %."
        " Time may differ more: there are h times as many softmax weights, which are not multiply-adds."
    )
    criteria = (
        Ratio("multiply-adds: 8 heads", "multiply-adds: 1 head", low=0.99, high=1.01),
        Ratio("time: 8 heads", "time: 1 head", low=0.75, high=1.25),
    )
    figure = (
        Panel(
            "Multiply-adds", "multiply-adds, relative to one head", ("multiply-adds by heads: forward",),
            x_label="heads", log_x=True,
        ),
        Panel(
            "Time", "time, relative to one head", ("time by heads: forward", "time by heads: forward and backward"),
            x_label="heads", log_x=True,
        ),
    )  # fmt: skip
    limits = (
        "The time depends on the kernel: one that keeps the weights in registers pays little for more of them, and "
        "very narrow heads use matrix units badly. Longer sequences raise the share of the softmax."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        batch, length, dim = SIZES[scale]
        x = torch.randn(batch, length, dim, device=device)
        layers = {heads: MultiHeadAttention(dim, heads).to(device) for heads in HEADS}
        counted = {heads: MultiHeadAttention(dim, heads, backend="reference").to(device) for heads in HEADS}

        def train(layer: MultiHeadAttention) -> None:
            layer(x)[0].sum().backward()
            layer.zero_grad()

        with threads(1):
            with torch.no_grad():
                adds = {heads: multiply_adds(partial(counted[heads], x)) for heads in HEADS}
                forward = seconds({heads: partial(layers[heads], x) for heads in HEADS}, device)
            both = seconds({heads: partial(train, layers[heads]) for heads in HEADS}, device, rounds=3)
        values = {
            "multiply-adds: 1 head": adds[1],
            "multiply-adds: 8 heads": adds[8],
            "time: 1 head": forward[1],
            "time: 8 heads": forward[8],
        }
        series = {
            "multiply-adds by heads: forward": {heads: adds[heads] / adds[1] for heads in HEADS},
            "time by heads: forward": {heads: forward[heads] / forward[1] for heads in HEADS},
            "time by heads: forward and backward": {heads: both[heads] / both[1] for heads in HEADS},
        }
        return Sample(values, series)
