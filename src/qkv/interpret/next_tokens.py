"""The distribution of the next token after each token of a text."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from qkv.pipelines.output import Candidate
from qkv.types import Float, Tensor

CANDIDATES = 10  # kept of each distribution


class NextToken(NamedTuple):
    """The distribution after a token, and the token that follows in the text."""

    candidates: tuple[Candidate, ...]  # the most likely first
    probability: float | None  # of the token that follows; None after the last token
    rank: int | None  # 1 if it is the most likely


def next_tokens(
    log_p: Float[Tensor, "length vocabulary"], ids: Sequence[int], piece: Callable[[int], str]
) -> tuple[NextToken, ...]:
    """Return the most likely tokens after each token of a text, given the log-probabilities there."""
    top = log_p.topk(min(CANDIDATES, log_p.shape[1]), dim=1)
    values, tokens = top.values.exp().tolist(), top.indices.tolist()
    following = log_p[:-1].gather(1, log_p.new_tensor(ids[1:]).long()[:, None])
    ranks = ((log_p[:-1] > following).sum(dim=1) + 1).tolist()
    probabilities = following[:, 0].exp().tolist()
    return tuple(
        NextToken(tuple(map(Candidate, map(piece, row), row_values)), probability, rank)
        for row, row_values, probability, rank in zip(
            tokens, values, [*probabilities, None], [*ranks, None], strict=True
        )
    )
