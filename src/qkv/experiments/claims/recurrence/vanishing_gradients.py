"""Claim 7: the gradients of RNNs vanish or explode with distance."""

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.recurrence.gradients import BATCH, gradient_norms, last_state, recurrent_layer
from qkv.experiments.claims.verdict import Ratio
from qkv.registry import register

GAINS = {"gain 0.5": 0.5, "gain 1": 1.0, "gain 2": 2.0, "gain 4": 4.0, "PyTorch's initialization": None}


@register("claim", "vanishing-gradients")
class VanishingGradients(SampledClaim):
    """Gradient norm by distance of a tanh RNN, for recurrent weights of different size."""

    number = 7
    title = "Gradients of RNNs vanish or explode with distance"
    statement = (
        "The gradient of an RNN with respect to an earlier input is a product of one matrix for each step between, so "
        "that it shrinks or grows exponentially with the distance."
    )
    notes = (Note("003", "Introduction"), Note("004", "RNN"))
    equation = "h_t = tanh(W x_t + U h_{t-1}),   d h_n / d h_{n-k} = prod_{t=n-k+1}^{n} diag(1 - h_t^2) U"
    source = (
        "src/qkv/nn/rnn.py::Recurrent",
        "src/qkv/experiments/claims/recurrence/gradients.py::gradient_norms",
    )
    hypothesis = (
        "From a distance of 1 to 64 steps, the gradient of a tanh RNN of width 64 falls by more than a factor of 1,000 "
        "with PyTorch's initialization and with small recurrent weights (gain 0.5), and grows by more than a factor of "
        "1,000 with large ones (gain 4)."
    )
    criteria = (
        Ratio(
            "gradient at distance 64: PyTorch's initialization", "gradient at distance 1: PyTorch's initialization",
            high=1e-3,
        ),
        Ratio("gradient at distance 64: gain 0.5", "gradient at distance 1: gain 0.5", high=1e-3),
        Ratio("gradient at distance 64: gain 4", "gradient at distance 1: gain 4", low=1e3),
    )  # fmt: skip
    figure = (
        Panel(
            "Gradient of the last state of an RNN", "norm of the gradient",
            tuple(f"gradient by distance: {label}" for label in GAINS),
            x_label="distance in steps", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "Weights between the two regimes, orthogonal ones for example, keep the norm for longer; saturation of tanh "
        "then makes gradients vanish. Trained weights can differ from new ones."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        curves = {
            label: gradient_norms(last_state(recurrent_layer("rnn", device, gain)), BATCH[scale], device)
            for label, gain in GAINS.items()
        }
        values = {
            f"gradient at distance {distance}: {label}": curve[distance]
            for label, curve in curves.items() for distance in (1, 64)
        }  # fmt: skip
        return Sample(values, {f"gradient by distance: {label}": curve for label, curve in curves.items()})
