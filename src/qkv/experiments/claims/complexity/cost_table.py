"""Claim 12: the cost of recurrent, convolutional and self-attention layers."""

from collections.abc import Callable
from functools import partial

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.complexity.layers import LAYERS, LENGTH_EXPONENTS, WIDTH_EXPONENTS, build_layer
from qkv.experiments.claims.cost import multiply_adds, seconds, threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Exponent
from qkv.registry import register

LENGTHS = {"small": (128, 256, 512, 1024, 2048, 4096), "full": (512, 1024, 2048, 4096, 8192, 16384)}
WIDTHS = {"small": (32, 64, 128, 256), "full": (64, 128, 256, 512)}
DIM, LENGTH = 64, 512  # fixed width while the length varies, and fixed length while the width varies
BATCH = {"small": 1, "full": 16}
FITTED_FROM = 1024  # length from which the exponent of the time is fitted


@register("claim", "cost-table")
class CostTable(SampledClaim):
    """Multiply-adds and time of five layers by length, multiply-adds by width, and the fitted exponents."""

    number = 12
    title = "The cost of recurrence, convolution and self-attention by length and width"
    statement = (
        "For n tokens of width d, a recurrent layer needs O(n d^2) operations, a convolution of k inputs O(k n d^2), "
        "self-attention O(n^2 d), attention to r neighbours O(r n d), and attention to k projected keys O(k n d)."
    )
    notes = (Note("000", "Convolutional Encoder-Decoder"), Note("004", "Quadratic compute in self-attention"))
    equation = (
        "recurrent  n d^2     convolution  k n d^2     self-attention  n^2 d     local  r n d     Linformer  k n d\n"
        "operations = c n^p: p is the slope of log(operations) over log(n)"
    )
    source = (
        "src/qkv/experiments/claims/complexity/layers.py::build_layer",
        "src/qkv/nn/rnn.py::Recurrent",
        "src/qkv/nn/conv.py::GatedConvolution",
        "src/qkv/attention/operator.py::attend",
        "src/qkv/models/linformer.py::LengthProjection",
    )
    hypothesis = (
        "The exponents of the counted multiply-adds by length and by width are the predicted ones within 0.1. The "
        "exponents of the measured time by length, from 1,024 tokens on, are the predicted ones within 0.3; below, "
        "constant costs of each call flatten the curves."
    )
    criteria = (
        *(Exponent(f"multiply-adds by length: {name}", LENGTH_EXPONENTS[name] - 0.1, LENGTH_EXPONENTS[name] + 0.1)
          for name in LAYERS),
        *(Exponent(f"multiply-adds by width: {name}", WIDTH_EXPONENTS[name] - 0.1, WIDTH_EXPONENTS[name] + 0.1)
          for name in LAYERS),
        *(Exponent(f"time by length: {name}", LENGTH_EXPONENTS[name] - 0.3, LENGTH_EXPONENTS[name] + 0.3,
                   min_x=FITTED_FROM) for name in LAYERS),
    )  # fmt: skip
    figure = (
        Panel(
            "Operations by length, width 64", "multiply-adds", tuple(f"multiply-adds by length: {n}" for n in LAYERS),
            x_label="length n", log_x=True, log_y=True,
        ),
        Panel(
            "Time by length, width 64", "seconds, forward", tuple(f"time by length: {n}" for n in LAYERS),
            x_label="length n", log_x=True, log_y=True,
        ),
        Panel(
            "Operations by width, length 512", "multiply-adds", tuple(f"multiply-adds by width: {n}" for n in LAYERS),
            x_label="width d", log_x=True, log_y=True,
        ),
        Panel(
            "Time by width, length 512", "seconds, forward", tuple(f"time by width: {n}" for n in LAYERS),
            x_label="width d", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "Time is proportional to the operations only where they, and not the start of kernels or the memory, dominate. "
        "The projections of queries, keys and values, O(n d^2), are not counted, as in the table of the notes: with "
        "them, self-attention is quadratic only when n is larger than about 2 d."
    )
    amendments = "The first run, with 5 rounds of timing instead of 25, was mixed."

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        batch = BATCH[scale]
        by_length = [(length, DIM) for length in LENGTHS[scale]]
        by_width = [(LENGTH, dim) for dim in WIDTHS[scale]]
        series: dict[str, dict[int, float]] = {}
        with torch.no_grad(), threads(1):
            for axis, sizes, column in (("length", by_length, 0), ("width", by_width, 1)):
                calls: dict[tuple[str, int, int], Callable[[], object]] = {}
                for length, dim in sizes:
                    x = torch.randn(batch, length, dim, device=device)
                    calls |= {(n, length, dim): partial(build_layer(n, length, dim, device), x) for n in LAYERS}
                times = seconds(calls, device, rounds=25)
                for name, length, dim in calls:
                    x = torch.randn(batch, length, dim, device=device)
                    count = multiply_adds(partial(build_layer(name, length, dim, device, "reference"), x))
                    size = (length, dim)[column]
                    series.setdefault(f"multiply-adds by {axis}: {name}", {})[size] = count
                    series.setdefault(f"time by {axis}: {name}", {})[size] = times[name, length, dim]
        return Sample({}, series)
