"""A task that needs the order of symbols, and blocks of SNAIL that learn it."""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Sinusoidal
from qkv.models.snail import AttentionBlock, TemporalConvolution, TrunkConfig, dilated_layers
from qkv.types import Float, Int, Tensor

SYMBOLS, LENGTH, DISTANCE = 8, 16, 3
BATCH, TEST_SIZE, DIM, LEARNING_RATE = 64, 512, 32, 2e-3
KINDS = ("with convolutions", "without", "without, with sinusoids")


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
