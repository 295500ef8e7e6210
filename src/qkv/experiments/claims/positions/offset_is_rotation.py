"""Claim 25: an offset between sinusoidal encodings is a rotation."""

import torch

from qkv.attention import Sinusoidal
from qkv.attention.encoding import angles
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Mean
from qkv.registry import register
from qkv.types import Float, Tensor

DIM, OFFSETS = 64, (1, 2, 4, 8, 16, 32, 64)
POSITIONS = {"small": 1024, "full": 16384}


@register("claim", "offset-is-rotation")
class OffsetIsRotation(SampledClaim):
    """Error of the rotation by an offset, and of the best linear map for sinusoidal and for random encodings."""

    number = 25
    title = "An offset between sinusoidal positions is a rotation"
    statement = (
        "The sinusoidal encoding of a position is transformed into that of another position by a rotation matrix that "
        "depends on the distance only."
    )
    notes = (Note("002", "Transformers are not sequential"),)
    equation = (
        "PE(pos + k) = R_k PE(pos)   for all pos,\n"
        "R_k: a block [cos(k w_i)  sin(k w_i) ; -sin(k w_i)  cos(k w_i)] for each pair of features,\n"
        "w_i = 10000^(-2i/d)"
    )
    source = ("src/qkv/attention/encoding.py::Sinusoidal", "src/qkv/attention/encoding.py::angles")
    hypothesis = (
        "The rotation is exact (relative error below 1e-6 in float64). For comparison, vectors without such structure, "
        "drawn at random like new learned positions, are not related by any single matrix: the best linear map, "
        "fitted by least squares to all positions, leaves a relative error above 0.5."
    )
    criteria = (
        Mean("error: rotation of sinusoids", high=1e-6),
        Mean("error: best map of random vectors", low=0.5),
    )
    figure = (
        Panel(
            "Error of PE(pos + k) from PE(pos)", "relative error",
            ("error by offset: rotation of sinusoids", "error by offset: best map of sinusoids",
             "error by offset: best map of random vectors"),
            x_label="offset k", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = "It is an identity; only rounding in lower precision changes it. It does not show that models use it."
    amendments = (
        "The rotation was estimated by least squares at first, by the pseudo-inverse now; the verdict is the same."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        count = POSITIONS[scale]
        sinusoids = Sinusoidal(DIM).to(device, torch.float64)(count + max(OFFSETS))
        random = torch.randn_like(sinusoids)
        errors: dict[str, dict[float, float]] = {}
        for offset in OFFSETS:
            measured = {
                "rotation of sinusoids": relative_error(sinusoids, offset, rotation(offset, device)),
                "best map of sinusoids": relative_error(sinusoids, offset, best_map(sinusoids, offset)),
                "best map of random vectors": relative_error(random, offset, best_map(random, offset)),
            }
            for label, error in measured.items():
                errors.setdefault(label, {})[offset] = max(error, 1e-17)  # the axis is logarithmic
        names = ("rotation of sinusoids", "best map of random vectors")
        values = {f"error: {label}": max(errors[label].values()) for label in names}
        values["error: best map of random vectors"] = min(errors["best map of random vectors"].values())
        return Sample(values, {f"error by offset: {label}": curve for label, curve in errors.items()})


def rotation(offset: int, device: torch.device) -> Float[Tensor, "dim dim"]:
    """R_k as a matrix: a 2 x 2 rotation for each pair of features."""
    angle = angles(torch.tensor(offset, device=device), DIM, torch.float64)
    cos, sin = angle.cos(), angle.sin()
    blocks = torch.stack((torch.stack((cos, sin), dim=-1), torch.stack((-sin, cos), dim=-1)), dim=-2)
    return torch.block_diag(*blocks)


def best_map(encoding: Float[Tensor, "length dim"], offset: int) -> Float[Tensor, "dim dim"]:
    """The matrix M with the least squared error of M PE(pos) for PE(pos + k)."""
    # by the pseudo-inverse, since slow sinusoids are almost linearly dependent
    return (torch.linalg.pinv(encoding[:-offset], rtol=1e-10) @ encoding[offset:]).T


def relative_error(encoding: Float[Tensor, "length dim"], offset: int, matrix: Float[Tensor, "dim dim"]) -> float:
    """|M PE(pos) - PE(pos + k)| / |PE(pos + k)|, over all positions."""
    expected = encoding[offset:]
    return float((encoding[:-offset] @ matrix.T - expected).norm() / expected.norm())
