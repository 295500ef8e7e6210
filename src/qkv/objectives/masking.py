"""Words that a model has to guess from what stands around them (Devlin et al. 2019)."""

from typing import NamedTuple

import torch

from qkv.errors import InputError
from qkv.types import Bool, Float, Int, Tensor

IGNORE = -1  # the target of a token that is not to be guessed
MASKED, REPLACED = 0.8, 0.1  # of the chosen tokens; the rest stay as they are


class Masked(NamedTuple):
    """What the model reads, and what it has to say of it."""

    tokens: Int[Tensor, "batch length"]
    targets: Int[Tensor, "batch length"]  # the token that was there, or IGNORE


def mask_tokens(
    tokens: Int[Tensor, "batch length"],
    maskable: Bool[Tensor, "batch length"],
    mask: int,
    others: Int[Tensor, "others"],
    generator: torch.Generator,
    *,
    share: float = 0.15,
    words: Int[Tensor, "batch length"] | None = None,
) -> Masked:
    """Choose a share of each row's maskable tokens, at least one; make 80 % of them `mask` and 10 % one of `others`.

    With `words`, the number of the word that each token belongs to, words are chosen as wholes, as many as fit into the
    share (whole-word masking). The generator decides, so that a seed gives the same again.
    """
    if not 0 < share < 1:
        raise InputError(f"share must lie between 0 and 1, not {share}")
    chosen = _chosen(maskable, share, words, generator)
    fate = torch.rand(tokens.shape, generator=generator)
    strangers = others[torch.randint(len(others), tokens.shape, generator=generator)]
    read = torch.where(chosen & (fate < MASKED), mask, tokens)
    read = torch.where(chosen & (fate >= MASKED) & (fate < MASKED + REPLACED), strangers, read)
    return Masked(read, torch.where(chosen, tokens, IGNORE))


def _chosen(
    maskable: Bool[Tensor, "batch length"],
    share: float,
    words: Int[Tensor, "batch length"] | None,
    generator: torch.Generator,
) -> Bool[Tensor, "batch length"]:
    """The tokens to be guessed, of each row a share rounded to whole tokens; of a row without any maskable none."""
    budget = (share * maskable.sum(dim=1)).round().clamp(min=1)
    lot = torch.rand(maskable.shape, generator=generator)
    if words is not None:
        lot = lot.gather(1, _first_of_word(words))  # the pieces of a word share the lot of the first
    lot = lot.masked_fill(~maskable, 2.0)
    order = lot.argsort(dim=1, stable=True)
    drawn = lot.gather(1, order)
    reached = _ends(drawn) <= budget[:, None]
    # At least one word is guessed, also where it is longer than the share.
    fits = (reached | (drawn == drawn[:, :1])) & (drawn < 2.0)
    return torch.zeros_like(maskable).scatter(1, order, fits)


def _first_of_word(words: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """For each token, where the word begins that it belongs to: tokens of a word stand next to each other."""
    place = torch.arange(words.shape[1]).expand_as(words)
    begins = torch.ones_like(words, dtype=torch.bool)
    begins[:, 1:] = words[:, 1:] != words[:, :-1]
    return torch.where(begins, place, 0).cummax(dim=1).values


def _ends(drawn: Float[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """How many tokens lie before the end of the run of equal lots that each token is in; `drawn` is sorted."""
    length = drawn.shape[1]
    place = torch.arange(1, length + 1).expand(drawn.shape)
    last = torch.ones_like(drawn, dtype=torch.bool)
    last[:, :-1] = drawn[:, 1:] != drawn[:, :-1]
    after = torch.where(last, place, length + 1)
    return after.flip(1).cummin(dim=1).values.flip(1)
