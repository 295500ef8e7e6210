"""Claim 46: the temporal convolutions of SNAIL give attention the order of its input."""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Sinusoidal
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.models.snail import AttentionBlock, TemporalConvolution, TrunkConfig, dilated_layers
from qkv.registry import register
from qkv.types import Float, Int, Tensor

SYMBOLS, LENGTH, DISTANCE = 8, 16, 3
STEPS = {"small": 800, "full": 5000}
BATCH, TEST_SIZE, DIM, LEARNING_RATE = 64, 512, 32, 2e-3
KINDS = ("with convolutions", "without", "without, with sinusoids")


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
        "src/qkv/experiments/claims/meta_learning/snail_order.py::Blocks",
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
        "some order from the mask alone."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        with threads(1):
            return Sample({f"accuracy: {kind}": train_and_test(kind, STEPS[scale], device) for kind in KINDS})


class Blocks(nn.Module):
    """Two attention blocks of SNAIL over symbols, with or without a convolution between them, and a readout."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        config, width = TrunkConfig(), DIM
        self.embed = nn.Embedding(SYMBOLS, DIM)
        self.encoding = Sinusoidal(DIM) if kind == "without, with sinusoids" else None
        blocks: list[nn.Module] = [AttentionBlock(config, width, DIM, DIM, LENGTH)]
        width += DIM
        if kind == "with convolutions":
            blocks.append(TemporalConvolution(width, LENGTH, DIM))
            width += dilated_layers(LENGTH) * DIM
        blocks.append(AttentionBlock(config, width, DIM, DIM, LENGTH))
        self.blocks, self.readout = nn.Sequential(*blocks), nn.Linear(width + DIM, SYMBOLS)

    def forward(self, symbols: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length symbols"]:
        x = self.embed(symbols)
        return self.readout(self.blocks(x if self.encoding is None else self.encoding.add_to(x)))


def train_and_test(kind: str, steps: int, device: torch.device) -> float:
    """Train to return the symbol `DISTANCE` positions before; return the accuracy in percent."""
    model = Blocks(kind).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(steps):
        symbols = torch.randint(SYMBOLS, (BATCH, LENGTH), device=device)
        logits = model(symbols)[:, DISTANCE:]
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), symbols[:, :-DISTANCE].flatten()).backward()
        optimizer.step()
    with torch.no_grad():
        symbols = torch.randint(SYMBOLS, (TEST_SIZE, LENGTH), device=device)
        right = model(symbols)[:, DISTANCE:].argmax(dim=-1) == symbols[:, :-DISTANCE]
    return 100 * float(right.double().mean())
