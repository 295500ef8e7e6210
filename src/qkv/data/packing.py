"""Texts of any length, packed into rows of one length: no padding, and no text sees another."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qkv.errors import InputError
from qkv.types import Int, Tensor

NOTHING = -1  # the number of the text that padding belongs to, and what is to be said after the last token of a text


@dataclass(frozen=True)
class Packed:
    """Rows of tokens, one text after the other; one that does not fit goes on in the next row as another text."""

    tokens: Int[Tensor, "rows length"]
    texts: Int[Tensor, "rows length"]  # the number of the text that each token is of: `Documents(texts)` is the mask
    positions: Int[Tensor, "rows length"]  # counted from the beginning of each text in its row
    coming: Int[Tensor, "rows length"]  # the next token of the same text in the same row, or NOTHING


def pack(texts: Sequence[Sequence[int]], length: int, pad: int) -> Packed:
    """Lay texts one after the other, and cut them into rows; the last row is filled up with `pad`."""
    if length < 1:
        raise InputError(f"a row has room for one token at least, not {length}")
    sizes = torch.tensor([len(text) for text in texts], dtype=torch.long)
    tokens = torch.from_numpy(
        np.concatenate([np.asarray(text, dtype=np.int64) for text in texts] or [np.empty(0, int)])
    )
    rows = -(-len(tokens) // length)
    fill = rows * length - len(tokens)
    owners = torch.repeat_interleave(torch.arange(len(texts)), sizes)
    tokens = torch.cat((tokens, torch.full((fill,), pad))).view(rows, length)
    owners = torch.cat((owners, torch.full((fill,), NOTHING))).view(rows, length)
    place = torch.arange(length).expand(rows, -1)
    begins = torch.ones_like(owners, dtype=torch.bool)
    begins[:, 1:] = owners[:, 1:] != owners[:, :-1]
    coming = torch.full_like(tokens, NOTHING)
    coming[:, :-1] = torch.where(begins[:, 1:] | (owners[:, 1:] == NOTHING), NOTHING, tokens[:, 1:])
    return Packed(tokens, owners, place - torch.where(begins, place, 0).cummax(dim=1).values, coming)
