"""Claim 9: attention gives the gradient a direct connection to every input."""

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.recurrence.gradients import (
    BATCH,
    gradient_norms,
    last_state,
    last_state_with_attention,
    recurrent_layer,
)
from qkv.experiments.claims.verdict import Ratio
from qkv.registry import register

MODELS = {
    "RNN": ("rnn", last_state),
    "RNN with attention": ("rnn", last_state_with_attention),
    "GRU": ("gru", last_state),
    "GRU with attention": ("gru", last_state_with_attention),
}


@register("claim", "attention-gradient")
class AttentionGradient(SampledClaim):
    """Gradient norm by distance of an RNN and a GRU, with and without attention over all states."""

    number = 9
    title = "Attention gives gradients a direct connection to distant inputs"
    statement = (
        "With attention over all hidden states, the output is connected to each of them directly, so that the gradient "
        "does not have to pass through all steps between."
    )
    notes = (Note("001", "Attention advantages"), Note("003", "Attention models"))
    equation = (
        "c = sum_i a_i h_i,   a = softmax_i(h_n . h_i):   d c / d h_i = a_i I + ...,   without a product over the steps"
    )
    source = (
        "src/qkv/experiments/claims/recurrence/gradients.py::last_state_with_attention",
        "src/qkv/attention/operator.py::attend",
    )
    hypothesis = (
        "At a distance of 64 steps the gradient of an RNN, and of a GRU, is more than 1,000 times as large with "
        "attention as without, and with attention it falls by less than half between distances 16 and 64."
    )
    criteria = (
        Ratio("gradient at distance 64: RNN with attention", "gradient at distance 64: RNN", low=1e3),
        Ratio("gradient at distance 64: GRU with attention", "gradient at distance 64: GRU", low=1e3),
        Ratio("gradient at distance 64: RNN with attention", "gradient at distance 16: RNN with attention", low=0.5),
        Ratio("gradient at distance 64: GRU with attention", "gradient at distance 16: GRU with attention", low=0.5),
    )
    figure = (
        Panel(
            "Gradient of the last output", "norm of the gradient",
            tuple(f"gradient by distance: {label}" for label in MODELS),
            x_label="distance in steps", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "The weights are new, so that attention is nearly uniform. A trained model attends to few states, and the "
        "gradient of the others is small."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        curves = {
            label: gradient_norms(output(recurrent_layer(cell, device)), BATCH[scale], device)
            for label, (cell, output) in MODELS.items()
        }
        values = {
            f"gradient at distance {distance}: {label}": curve[distance]
            for label, curve in curves.items() for distance in (16, 64)
        }  # fmt: skip
        return Sample(values, {f"gradient by distance: {label}": curve for label, curve in curves.items()})
