"""Claim 51: self-attention is quadratic in the length, a Linformer linear."""

from functools import partial

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.complexity.layers import RANK
from qkv.experiments.claims.cost import Calls, multiply_adds, seconds, threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Exponent, Ratio
from qkv.models.linformer import LengthProjection, LinformerConfig, LowRankAttention
from qkv.nn.multi_head import BackendName, MultiHeadAttention
from qkv.registry import register

DIM, HEADS = 64, 2
LENGTHS = {"small": (256, 512, 1024, 2048, 4096), "full": (1024, 2048, 4096, 8192, 16384)}
BATCH = {"small": 1, "full": 8}
LONG = 4096


@register("claim", "linformer-linear")
class LinformerLinear(SampledClaim):
    """Multiply-adds and time of a layer of multi-head attention and of a Linformer, by length."""

    number = 51
    title = "Self-attention is quadratic in the length, a Linformer linear"
    statement = (
        "Comparing all pairs of tokens makes the computation of self-attention grow with the square of the length; a "
        "Linformer, which compares each token with a fixed number of projected keys, grows linearly."
    )
    notes = (Note("004", "Quadratic compute in self-attention"),)
    equation = (
        "full:       4 n d^2 + 2 n^2 d             multiply-adds\n"
        "Linformer:  4 n d^2 + 2 k n d + 2 k n d   keys and values are projected from n to k positions"
    )
    source = (
        "src/qkv/models/linformer.py::LowRankAttention",
        "src/qkv/models/linformer.py::LengthProjection",
        "src/qkv/nn/multi_head.py::MultiHeadAttention",
    )
    hypothesis = (
        "From 1,024 tokens on, where n is much larger than d = 64, the exponent of the operations and of the time is "
        "above 1.6 for full attention and below 1.2 for the Linformer with k = 64; at 4,096 tokens it is at least 3 "
        "times as fast."
    )
    criteria = (
        Exponent("multiply-adds: full attention", low=1.6, high=2.1, min_x=1024),
        Exponent("multiply-adds: Linformer", low=0.9, high=1.1, min_x=1024),
        Exponent("time: full attention", low=1.6, high=2.3, min_x=1024),
        Exponent("time: Linformer", low=0.7, high=1.2, min_x=1024),
        Ratio("time at 4096: full attention", "time at 4096: Linformer", low=3.0),
    )
    figure = (
        Panel(
            "Operations of one layer", "multiply-adds", ("multiply-adds: full attention", "multiply-adds: Linformer"),
            x_label="length n", log_x=True, log_y=True,
        ),
        Panel(
            "Time of one layer", "seconds, forward", ("time: full attention", "time: Linformer"),
            x_label="length n", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "Below about 2 d tokens the projections dominate both. On a GPU the time of short sequences is constant, so "
        "the exponents hold from longer sequences on. Quality at equal cost is not measured here."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        counts: dict[str, dict[int, float]] = {"full attention": {}, "Linformer": {}}
        calls: Calls = {}
        with torch.no_grad(), threads(1):
            for length in LENGTHS[scale]:
                x = torch.randn(BATCH[scale], length, DIM, device=device)
                for label, layer in build_layers(length, "auto").items():
                    calls[label, length] = partial(layer.to(device), x)
                for label, layer in build_layers(length, "reference").items():  # whose products are counted
                    counts[label][length] = len(x) * multiply_adds(partial(layer.to(device), x[:1]))
            times = seconds(calls, device)
        curves = {label: {n: times[label, n] for n in LENGTHS[scale]} for label in counts}
        series = {f"multiply-adds: {label}": curve for label, curve in counts.items()}
        series |= {f"time: {label}": curve for label, curve in curves.items()}
        return Sample({f"time at {LONG}: {label}": curve[LONG] for label, curve in curves.items()}, series)


def build_layers(length: int, backend: BackendName) -> dict[str, torch.nn.Module]:
    """Return a layer of full attention and one of a Linformer."""
    config = LinformerConfig(
        dim=DIM, heads=HEADS, max_length=length, rank=RANK, attention_dropout=0.0, backend=backend,
    )  # fmt: skip
    return {
        "full attention": MultiHeadAttention(DIM, HEADS, backend=config.backend),
        "Linformer": LowRankAttention(config, LengthProjection(config), LengthProjection(config)),
    }
