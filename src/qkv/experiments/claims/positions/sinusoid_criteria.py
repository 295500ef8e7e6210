"""Claim 24: sinusoids satisfy four criteria that simpler encodings violate."""

from collections.abc import Callable

import torch

from qkv.attention import IndexEncoding, IndexFraction, OneHotEncoding, PositionalEncoding, Sinusoidal
from qkv.errors import InputError
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Mean
from qkv.registry import register

DIM = 128
SHORT, LONG = 64, 1024  # lengths of two texts
ENCODINGS: dict[str, Callable[[int], PositionalEncoding]] = {  # of a text with this length
    "sinusoidal": lambda length: Sinusoidal(DIM),
    "index": lambda length: IndexEncoding(DIM),
    "index / length": lambda length: IndexFraction(DIM, length),
    "one-hot": lambda length: OneHotEncoding(DIM),
}
NAMES = tuple(ENCODINGS)


@register("claim", "sinusoid-criteria")
class SinusoidCriteria(SampledClaim):
    """Uniqueness, consistency, bounds and reproducibility of four positional encodings."""

    number = 24
    title = "Sinusoids satisfy four criteria that simpler encodings violate"
    statement = (
        "A positional encoding should be unique, consistent between texts of different lengths, bounded and defined "
        "for longer texts, and deterministic. Sinusoids are; the index, the index divided by the length, and one-hot "
        "vectors each violate a criterion."
    )
    notes = (Note("003", "Transformers position encoding"), Note("002", "Transformers are not sequential"))
    equation = "PE(pos, 2i) = sin(pos / 10000^(2i/d)),   PE(pos, 2i+1) = cos(pos / 10000^(2i/d))"
    source = (
        "src/qkv/attention/encoding.py::Sinusoidal",
        "src/qkv/attention/simple_encoding.py::IndexEncoding",
        "src/qkv/attention/simple_encoding.py::IndexFraction",
        "src/qkv/attention/simple_encoding.py::OneHotEncoding",
    )
    hypothesis = (
        "For texts of 64 and 1,024 tokens and 128 features, sinusoids have different vectors at all positions (the "
        "smallest distance is above 0.1), the same distance between neighbors in both texts (within 0.1 %), values "
        "of at most 1, vectors for all positions, and no variation between calls. The index exceeds 100, the distance"
        " of neighbors of index / length differs between the texts by more than 10 %, and one-hot vectors cover less"
        " than half of the positions of the long text."
    )
    criteria = (
        Mean("smallest distance: sinusoidal", low=0.1),
        Mean("inconsistency: sinusoidal", high=1e-3),
        Mean("largest value: sinusoidal", high=1.000001),
        Mean("covered positions: sinusoidal", low=0.999),
        Mean("variation between calls: sinusoidal", high=1e-12),
        Mean("largest value: index", low=100.0),
        Mean("inconsistency: index / length", low=0.1),
        Mean("covered positions: one-hot", high=0.5),
    )
    figure = (
        Panel(
            "Smallest distance between two positions", "distance in a text of 1,024 tokens", log_y=True,
            points=tuple(f"smallest distance: {name}" for name in NAMES),
        ),
        Panel(
            "Inconsistency between texts", "relative difference of neighbors' distance",
            points=tuple(f"inconsistency: {name}" for name in NAMES),
        ),
        Panel("Largest value", "value", log_y=True, points=tuple(f"largest value: {name}" for name in NAMES)),
        Panel(
            "Covered positions of 1,024", "share of the positions of a long text",
            points=tuple(f"covered positions: {name}" for name in NAMES),
        ),
    )  # fmt: skip
    limits = (
        "The numbers are properties of the formulas, not of trained models. A wider model covers more one-hot "
        "positions. That vectors exist for longer texts does not mean that a model can use them (claim 26)."
    )
    deterministic = True
    seeds = 1

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        values: dict[str, float] = {}
        for label, build in ENCODINGS.items():
            covered = covered_positions(build(LONG), LONG)
            vectors = build(LONG)(covered).double()
            distances = torch.pdist(vectors)
            neighbours = [float((x[1:] - x[:-1]).norm(dim=-1).mean()) for x in (build(SHORT)(SHORT), vectors)]
            values[f"smallest distance: {label}"] = float(distances.min())
            values[f"inconsistency: {label}"] = abs(neighbours[0] / neighbours[1] - 1)
            values[f"largest value: {label}"] = float(vectors.abs().max())
            values[f"covered positions: {label}"] = covered / LONG
            again = build(LONG)(covered).double()
            values[f"variation between calls: {label}"] = float((vectors - again).abs().max())
        return Sample(values)


def covered_positions(encoding: PositionalEncoding, length: int) -> int:
    """Return the number of positions, from the first on, that have a vector."""
    low, high = 1, length
    while low < high:
        middle = (low + high + 1) // 2
        try:
            encoding(middle)
            low = middle
        except InputError:
            high = middle - 1
    return low
