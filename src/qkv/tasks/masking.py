"""Masking for masked language modelling (Devlin et al. 2019)."""

from typing import NamedTuple

import torch

from qkv.errors import InputError
from qkv.types import Bool, Float, Int, Tensor

IGNORE = -1  # target of a token that is not predicted
MASK_SHARE, RANDOM_SHARE = 0.8, 0.1  # of the selected tokens; the rest are unchanged


class MaskedTokens(NamedTuple):
    """Input tokens and targets of masked language modelling."""

    tokens: Int[Tensor, "batch length"]
    targets: Int[Tensor, "batch length"]  # the original token, or IGNORE


def mask_tokens(
    tokens: Int[Tensor, "batch length"],
    maskable: Bool[Tensor, "batch length"],
    mask: int,
    random_tokens: Int[Tensor, "candidates"],
    generator: torch.Generator,
    *,
    mask_prob: float = 0.15,
    word_ids: Int[Tensor, "batch length"] | None = None,
) -> MaskedTokens:
    """Select a fraction of each row's maskable tokens, at least one.

    80 % of them become `mask`, 10 % one of `random_tokens`, 10 % are unchanged. With `word_ids`, the index of the word
    of each token, whole words are selected, as many as fit into the fraction (whole-word masking).
    """
    if not 0 < mask_prob < 1:
        raise InputError(f"mask_prob must lie between 0 and 1, not {mask_prob}")
    selected = _select(maskable, mask_prob, word_ids, generator)
    uniform = torch.rand(tokens.shape, generator=generator)
    replacements = random_tokens[torch.randint(len(random_tokens), tokens.shape, generator=generator)]
    inputs = torch.where(selected & (uniform < MASK_SHARE), mask, tokens)
    is_random = selected & (uniform >= MASK_SHARE) & (uniform < MASK_SHARE + RANDOM_SHARE)
    inputs = torch.where(is_random, replacements, inputs)
    return MaskedTokens(inputs, torch.where(selected, tokens, IGNORE))


def _select(
    maskable: Bool[Tensor, "batch length"],
    mask_prob: float,
    word_ids: Int[Tensor, "batch length"] | None,
    generator: torch.Generator,
) -> Bool[Tensor, "batch length"]:
    """Select round(mask_prob * maskable) tokens of each row, at least one; none in a row without maskable tokens."""
    budget = (mask_prob * maskable.sum(dim=1)).round().clamp(min=1)
    priority = torch.rand(maskable.shape, generator=generator)
    if word_ids is not None:
        priority = priority.gather(1, _first_of_word(word_ids))  # all tokens of a word share that of the first
    priority = priority.masked_fill(~maskable, 2.0)
    order = priority.argsort(dim=1, stable=True)
    ordered = priority.gather(1, order)
    within_budget = _run_ends(ordered) <= budget[:, None]
    # Select at least one word, even if it exceeds the budget.
    fits = (within_budget | (ordered == ordered[:, :1])) & (ordered < 2.0)
    return torch.zeros_like(maskable).scatter(1, order, fits)


def _first_of_word(word_ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Return the position of the first token of each token's word; the tokens of a word are contiguous."""
    position = torch.arange(word_ids.shape[1]).expand_as(word_ids)
    is_first = torch.ones_like(word_ids, dtype=torch.bool)
    is_first[:, 1:] = word_ids[:, 1:] != word_ids[:, :-1]
    return torch.where(is_first, position, 0).cummax(dim=1).values


def _run_ends(ordered: Float[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Return the end position of the run of equal values that contains each element of a sorted tensor."""
    length = ordered.shape[1]
    end = torch.arange(1, length + 1).expand(ordered.shape)
    is_last = torch.ones_like(ordered, dtype=torch.bool)
    is_last[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    ends = torch.where(is_last, end, length + 1)
    return ends.flip(1).cummin(dim=1).values.flip(1)
