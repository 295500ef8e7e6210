"""Claim 26: sinusoidal positions extrapolate to longer sequences, learned ones do not."""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Learned, PositionalEncoding, Rotary, Sinusoidal
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Difference
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multi_head import MultiHeadAttention
from qkv.registry import register
from qkv.types import Float, Int, Tensor

DIM, HEADS, SYMBOLS, LAYERS = 64, 4, 16, 2
TRAINED, LONGEST = 16, 48  # longest sequence in training and in the test
TESTED = (8, 12, 16, 20, 24, 32, 40, 48)
STEPS = {"small": 1200, "full": 5000}
BATCH, TEST_SIZE, LEARNING_RATE = 64, 128, 2e-3
KINDS = ("sinusoidal", "learned", "rotary")


@register("claim", "extrapolation")
class Extrapolation(SampledClaim):
    """Accuracy in returning the preceding symbol, inside and beyond the trained length, by kind of position."""

    number = 26
    title = "Sinusoidal positions extrapolate to longer sequences, learned do not"
    statement = (
        "A model with sinusoidal positions can be used for sequences longer than those in training; learned positions "
        "are not defined, or not trained, beyond the trained length."
    )
    notes = (Note("001", "Learning position representations"), Note("004", "Issues: Sequence order"))
    equation = "sinusoidal: PE(pos) for any pos;   learned: P[pos] for pos < T, trained for the lengths in the data"
    source = (
        "src/qkv/attention/encoding.py::Sinusoidal",
        "src/qkv/attention/encoding.py::Learned",
        "src/qkv/experiments/claims/positions/extrapolation.py::train_and_test",
    )
    hypothesis = (
        "A two-layer encoder learns to return, at each position, the symbol before it, on sequences of up to 16 "
        "symbols. On the later half of 32 symbols, the accuracy falls by less than 0.1 with sinusoids, and by more "
        "than 0.2 with learned positions, relative to 16 symbols."
    )
    criteria = (
        Difference("accuracy at 32: sinusoidal", "accuracy at 16: sinusoidal", low=-0.1),
        Difference("accuracy at 32: learned", "accuracy at 16: learned", high=-0.2),
    )
    figure = (
        Panel(
            "Symbol before each position; trained to length 16", "accuracy in the later half",
            tuple(f"accuracy by length: {kind}" for kind in KINDS), x_label="length of the sequence",
        ),
    )  # fmt: skip
    limits = (
        "The task is the simplest one that needs positions. Rotary positions are shown for comparison. Training on "
        "more lengths, or with random offsets, can improve extrapolation."
    )
    amendments = (
        "The first run had 600 training steps instead of 1,200, compared ALiBi as well, and did not support the claim."
    )

    seeds_in_processes = True

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        values: dict[str, float] = {}
        series: dict[str, dict[int, float]] = {}
        with threads(1):
            for kind in KINDS:
                accuracy = train_and_test(kind, STEPS[scale], device)
                series[f"accuracy by length: {kind}"] = accuracy
                values |= {f"accuracy at {length}: {kind}": accuracy[length] for length in (16, 32)}
        return Sample(values, series)


class Encoder(nn.Module):
    """Blocks x = x + MHA(LN(x)), x = x + FFN(LN(x)) over symbols with positions, and a readout."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        encodings: dict[str, PositionalEncoding] = {"sinusoidal": Sinusoidal(DIM), "learned": Learned(LONGEST, DIM)}
        self.encoding = encodings.get(kind)
        self.embed, self.readout = nn.Embedding(SYMBOLS, DIM), nn.Linear(DIM, SYMBOLS)
        self.attention = nn.ModuleList(
            MultiHeadAttention(DIM, HEADS, position=Rotary(DIM // HEADS) if kind == "rotary" else None)
            for _ in range(LAYERS)
        )
        self.ffn = nn.ModuleList(FeedForward(DIM, 2 * DIM) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * LAYERS + 1))

    def forward(self, symbols: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length symbols"]:
        x = self.embed(symbols)
        if self.encoding is not None:
            x = x + self.encoding(symbols.shape[1])
        for number, (attention, ffn) in enumerate(zip(self.attention, self.ffn, strict=True)):
            x = x + attention(self.norms[2 * number](x))[0]
            x = x + ffn(self.norms[2 * number + 1](x))
        return self.readout(self.norms[-1](x))


def train_and_test(kind: str, steps: int, device: torch.device) -> dict[int, float]:
    """Train to return the symbol before each position; return the accuracy in the later half by length."""
    model = Encoder(kind).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(steps):
        length = int(torch.randint(4, TRAINED + 1, ()))
        symbols = torch.randint(SYMBOLS, (BATCH, length), device=device)
        optimizer.zero_grad()
        F.cross_entropy(model(symbols)[:, 1:].flatten(0, 1), symbols[:, :-1].flatten()).backward()
        optimizer.step()
    accuracy = {}
    with torch.no_grad():
        for length in TESTED:
            symbols = torch.randint(SYMBOLS, (TEST_SIZE, length), device=device)
            correct = model(symbols)[:, 1:].argmax(dim=-1) == symbols[:, :-1]
            accuracy[length] = float(correct[:, length // 2 - 1 :].double().mean())
    return accuracy
