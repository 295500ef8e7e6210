"""Claim 46: the temporal convolutions of SNAIL give attention the order of its input."""

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.meta_learning.order_task import KINDS, train_and_test
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.registry import register

STEPS = {"small": 800, "full": 5000}


@register("claim", "snail-order")
class SnailOrder(SampledClaim):
    """Accuracy in returning an earlier symbol, by SNAIL's attention blocks with and without its convolutions."""

    number = 46
    title = "SNAIL's temporal convolutions solve the problem of positions"
    statement = (
        "Attention does not know the order of its input. SNAIL combines it with convolutions over time, which do, and "
        "needs no positional encoding."
    )
    notes = (Note("003", "Transformers family"),)
    equation = "with: Attend(Convolve(Attend(x)));   without: Attend(Attend(x));   x_t = E[symbol_t], no positions"
    source = (
        "src/qkv/models/snail.py::TemporalConvolution",
        "src/qkv/models/snail.py::AttentionBlock",
        "src/qkv/experiments/claims/meta_learning/order_task.py::Blocks",
    )
    hypothesis = (
        "The task is to return the symbol three positions before each position, of eight random symbols (by chance "
        "12.5 %). With convolutions the accuracy is above 90 %, and at least 30 points higher than without them. "
        "Attention is causal in both. Sinusoidal positions are shown for comparison."
    )
    criteria = (
        Mean("accuracy: with convolutions", low=90.0),
        Difference("accuracy: with convolutions", "accuracy: without", low=30.0),
    )
    figure = (
        Panel("The symbol three positions before", "accuracy, %", points=tuple(f"accuracy: {kind}" for kind in KINDS)),
    )
    limits = (
        "The task needs order only, and convolutions solve it without attention. Deeper causal attention can learn "
        "some order from the mask alone. The sinusoids are shown after the same short training and "
        "without tuning: their accuracy near chance is no evidence against positional encodings."
    )

    seeds_in_processes = True

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        with threads(1):
            return Sample({f"accuracy: {kind}": train_and_test(kind, STEPS[scale], device) for kind in KINDS})
