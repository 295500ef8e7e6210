"""The specification: attention in plain PyTorch, every term, weights included."""

from typing import final

import torch
from torch.nn import functional as F

from qkv.attention.score import Keys
from qkv.attention.spec import Attended, Backend, Request
from qkv.types import Float, Tensor


@final
class Reference(Backend):
    """Serves every request. Masked keys get weight zero exactly, also in a row where every key is masked."""

    name = "reference"

    def supports(self, request: Request) -> str | None:
        if request.position is not None and isinstance(request.key, Keys):
            return "a position term acts on keys before the score does, but these keys have been through the score"
        return None

    def run(self, request: Request) -> Attended:
        scores, weights = self._scores_and_weights(request)
        output = F.dropout(weights, request.dropout) @ request.value
        if not request.need_weights:
            return Attended(output)
        return Attended(output, weights, request.align.log_sum_exp(scores))

    def weights(
        self, request: Request
    ) -> tuple[Float[Tensor, "batch heads query key"], Float[Tensor, "batch heads query"] | None]:
        """The weights of a request, before any dropout, and its log-sum-exp."""
        scores, weights = self._scores_and_weights(request)
        return weights, request.align.log_sum_exp(scores)

    def _scores_and_weights(
        self, request: Request
    ) -> tuple[Float[Tensor, "batch heads query key"], Float[Tensor, "batch heads query key"]]:
        query, key = request.positioned()
        scores = request.score(query, key)
        if request.position is not None:
            scores = request.position.shift(scores, query)
        allowed = request.allowed()
        if allowed is None:
            return scores, request.align(scores, query)
        # The lowest finite score instead of -inf: a row with nothing to see then has finite weights, which the second
        # fill turns into zeros, and no NaN ever meets the backward pass.
        blocked = ~allowed
        scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
        return scores, request.align(scores, query).masked_fill(blocked, 0.0)


REFERENCE = Reference()
