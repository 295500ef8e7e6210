"""Masks and positions of the batches of a causal language model.

Three kinds of batches: plain; left-padded, with `padding` positions before each row's first token; packed, with the
document index of each token in `documents`, so that tokens attend to their own document only.
"""

import torch

from qkv.attention import Causal, Documents, Mask, Prefix
from qkv.attention.mask import Not
from qkv.errors import InputError
from qkv.types import Int, Tensor


def batch_mask(
    padding: Int[Tensor, "batch"] | None, documents: Int[Tensor, "batch length"] | None = None, *, causal: bool = True
) -> Mask | None:
    """Return the mask of a batch; the attention output of a padding position, to which no key is visible, is zero."""
    if padding is not None and documents is not None:
        raise InputError("documents and padding are mutually exclusive: a batch is packed or left-padded")
    mask: Mask | None = None
    if documents is not None:
        mask = Documents(documents)
    elif padding is not None:
        mask = Not(Prefix(padding))  # not ~Prefix, which torch.compile cannot trace
    if not causal:
        return mask
    return Causal() if mask is None else Causal() & mask


def batch_positions(
    tokens: Int[Tensor, "batch length"],
    start: int,
    padding: Int[Tensor, "batch"] | None,
    documents: Int[Tensor, "batch length"] | None = None,
) -> int | Int[Tensor, "batch length"]:
    """Return the position of the first token, or of every token, counted from the first of its row or document."""
    if documents is not None:
        return positions_within(documents)
    if padding is None:
        return start
    columns = start + torch.arange(tokens.shape[1], device=tokens.device)
    return (columns - padding[:, None]).clamp(min=0)


def positions_within(documents: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Return the position of each token within its document."""
    position = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return position - position.masked_fill(~starts, 0).cummax(dim=1).values
