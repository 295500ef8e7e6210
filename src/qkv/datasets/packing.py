"""Sequence packing: texts of any length in rows of one length, without padding between them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qkv.types import Int, Tensor

IGNORE_INDEX = -1  # text index of padding, and target of the last token of a text


@dataclass(frozen=True)
class Packed:
    """Concatenated texts in rows; a text that does not fit is continued in the next row as a separate text."""

    tokens: Int[Tensor, "rows length"]
    texts: Int[Tensor, "rows length"]  # text index of each token: `Documents(texts)` is the mask
    positions: Int[Tensor, "rows length"]  # from the start of each text in its row
    targets: Int[Tensor, "rows length"]  # next token of the same text in the same row, or IGNORE_INDEX


def pack(texts: Sequence[Sequence[int]], length: int, pad: int) -> Packed:
    """Concatenate texts and split them into rows; the last row is padded with `pad`."""
    sizes = torch.tensor([len(text) for text in texts], dtype=torch.long)
    tokens = torch.from_numpy(
        np.concatenate([np.asarray(text, dtype=np.int64) for text in texts] or [np.empty(0, int)])
    )
    rows = -(-len(tokens) // length)
    fill = rows * length - len(tokens)
    owners = torch.repeat_interleave(torch.arange(len(texts)), sizes)
    tokens = torch.cat((tokens, torch.full((fill,), pad))).view(rows, length)
    owners = torch.cat((owners, torch.full((fill,), IGNORE_INDEX))).view(rows, length)
    return packed_rows(tokens, owners)


def packed_rows(tokens: Int[Tensor, "rows length"], owners: Int[Tensor, "rows length"]) -> Packed:
    """Return rows of tokens, of which the text of each is known, with positions and targets."""
    column = torch.arange(tokens.shape[1]).expand(len(tokens), -1)
    starts = torch.ones_like(owners, dtype=torch.bool)
    starts[:, 1:] = owners[:, 1:] != owners[:, :-1]
    targets = torch.full_like(tokens, IGNORE_INDEX)
    targets[:, :-1] = torch.where(starts[:, 1:] | (owners[:, 1:] == IGNORE_INDEX), IGNORE_INDEX, tokens[:, 1:])
    return Packed(tokens, owners, column - torch.where(starts, column, 0).cummax(dim=1).values, targets)
