"""Worked example: digits of sinusoidal positions."""

import torch

from qkv.attention import Sinusoidal
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Mean
from qkv.registry import register

DIM = 512
PRINTED = {  # value by index, of positions 0 and 1; negative indices count from the end
    0: {0: 0.0, 1: 1.0, 2: 0.0, -2: 0.0, -1: 1.0},
    1: {0: 0.8414, 1: 0.5403, 2: 0.8218, -2: 0.0001, -1: 0.9999},
}
CUT = 1.01e-4  # the note cuts the digits after the fourth decimal


@register("claim", "position-digits")
class PositionDigits(SampledClaim):
    """Sinusoidal positions 0 and 1 of width 512, compared with the printed digits."""

    number = 57
    title = "Worked example: digits of sinusoidal positions"
    statement = "The note prints the first and last values of the sinusoidal encodings of positions 0 and 1, d = 512."
    notes = (Note("003", "Transformers position encoding"),)
    equation = "PE(pos, 2k) = sin(pos / 10000^(2k/d)),   PE(pos, 2k+1) = cos(pos / 10000^(2k/d))"
    source = ("src/qkv/attention/encoding.py::Sinusoidal",)
    hypothesis = (
        "All printed values agree within 1e-4, since the note cuts digits instead of rounding them. Its formula has "
        "10000^(i/d) also for odd i, which would give PE(1, 1) = cos(1 / 10000^(1/512)) = 0.555: the digits follow the "
        "equation above."
    )
    criteria = (
        Mean("largest difference: position 0", high=CUT),
        Mean("largest difference: position 1", high=CUT),
        Mean("difference of PE(1, 1): formula as printed", low=0.01),
    )
    figure = (
        Panel(
            "Encoding of position 1, d = 512", "value", ("value by index: sine", "value by index: cosine"),
            x_label="index",
        ),
    )  # fmt: skip
    limits = "Nothing: it is arithmetic."
    deterministic = True
    seeds = 1

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        encoding = Sinusoidal(DIM).double()(2)
        values = {
            f"largest difference: position {position}": max(
                abs(float(encoding[position, index]) - digits) for index, digits in PRINTED[position].items()
            )
            for position in PRINTED
        }
        as_printed = torch.tensor(10000.0, dtype=torch.float64).pow(-1 / DIM).cos()
        values["difference of PE(1, 1): formula as printed"] = abs(float(as_printed) - PRINTED[1][1])
        series = {
            f"value by index: {name}": {index: float(encoding[1, index]) for index in range(first, DIM, 2)}
            for first, name in enumerate(("sine", "cosine"))
        }
        return Sample(values, series)
