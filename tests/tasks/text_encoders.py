"""A minimal text encoder: the state of a token depends on that token only."""

from types import SimpleNamespace

import torch
from torch import nn

from qkv.nn.interfaces import TextEncoder


class TableEncoder(TextEncoder):
    def __init__(self, vocab_size: int, labels: tuple[str, ...], head: str, max_length: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(label_names=labels, labels=len(labels), max_length=max_length, head=head)
        self.table = nn.Embedding(vocab_size, len(labels))

    def forward(self, tokens, segments=None, lengths=None):
        hidden = self.table(tokens)
        if lengths is None:
            return hidden
        inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        return hidden * inside[..., None]

    def logits(self, hidden):
        return hidden if self.config.head == "tagger" else hidden.sum(dim=1)
