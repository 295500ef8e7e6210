"""Masking, and segment pairs for next-sentence prediction, as in the pre-training of BERT (Devlin et al. 2019)."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import torch

from qkv.errors import InputError
from qkv.types import Bool, Float, Int, Tensor

IGNORE = -1  # target of a token that is not predicted
MASK_SHARE, RANDOM_SHARE = 0.8, 0.1  # of the selected tokens, by default; the rest are unchanged


class MaskedTokens(NamedTuple):
    """Input tokens and targets of masked language modeling."""

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
    mask_share: float = MASK_SHARE,
    random_share: float = RANDOM_SHARE,
    word_ids: Int[Tensor, "batch length"] | None = None,
) -> MaskedTokens:
    """Select a fraction of each row's maskable tokens, at least one.

    `mask_share` of them become `mask`, `random_share` one of `random_tokens`, the rest are unchanged. With `word_ids`,
    the index of the word of each token, whole words are selected, as many as fit into the fraction (whole-word
    masking).
    """
    selected = _select(maskable, mask_prob, word_ids, generator)
    uniform = torch.rand(tokens.shape, generator=generator)
    replacements = random_tokens[torch.randint(len(random_tokens), tokens.shape, generator=generator)]
    inputs = torch.where(selected & (uniform < mask_share), mask, tokens)
    is_random = selected & (uniform >= mask_share) & (uniform < mask_share + random_share)
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


Sentences = Sequence[int]  # of a document: the start of each sentence, and the end of the last


class SegmentPair(NamedTuple):
    """Two segments; `follows` is the label."""

    first: range
    second: range
    follows: bool


def sentence_pairs(documents: Sequence[Sentences], max_tokens: int, rng: Random) -> Iterator[SegmentPair]:
    """Yield pairs of at most `max_tokens` tokens that cover every document once.

    A run of sentences of about that length is split in two. With probability 0.5 its second half is replaced by a
    random segment of another document, of about the same length so that the length does not reveal the label, and the
    replaced sentences are used again in the next run. A single remaining sentence is dropped: it could only be paired
    with a random segment, which would unbalance the labels.
    """
    if sum(len(document) > 1 for document in documents) < 2:
        raise InputError("next-sentence prediction needs at least two documents")
    for index, document in enumerate(documents):
        start = 0
        while (end := _end_of_run(document, start, max_tokens, min_sentences=2)) - start > 1:
            cut = rng.randint(start + 1, end - 1)
            first, second = range(document[start], document[cut]), range(document[cut], document[end])
            follows = rng.random() < 0.5
            if not follows:
                second = _random_segment(documents, index, len(second), rng)
            yield SegmentPair(*_truncate(first, second, max_tokens, rng), follows)
            start = end if follows else cut


def _end_of_run(document: Sentences, start: int, min_tokens: int, min_sentences: int) -> int:
    """Return the end of the shortest run from sentence `start` with enough tokens and sentences."""
    last = len(document) - 1
    end = min(start + min_sentences, last)
    while end < last and document[end] - document[start] < min_tokens:
        end += 1
    return end


def _random_segment(documents: Sequence[Sentences], exclude: int, length: int, rng: Random) -> range:
    """Return a random segment of about this length from any other document."""
    while True:
        index = rng.randrange(len(documents))
        document = documents[index]
        if index != exclude and len(document) > 1:
            start = rng.randrange(len(document) - 1)
            while start > 0 and document[-1] - document[start] < length:
                start -= 1
            return range(document[start], document[_end_of_run(document, start, length, min_sentences=1)])


def _truncate(first: range, second: range, max_tokens: int, rng: Random) -> tuple[range, range]:
    """Remove tokens from a random end of the longer segment until both fit."""
    segments = [first, second]
    for _ in range(len(first) + len(second) - max_tokens):
        longer = int(len(segments[1]) > len(segments[0]))
        segments[longer] = segments[longer][1:] if rng.getrandbits(1) else segments[longer][:-1]
    return segments[0], segments[1]
