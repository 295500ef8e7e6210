"""The specification: attention in plain PyTorch, every term, weights included."""

from typing import final

import torch
from torch.nn import functional as F

from qkv.attention.align import Scored, cooled
from qkv.attention.extent import Cells
from qkv.attention.spec import Attended, Backend, Request
from qkv.errors import ShapeError
from qkv.types import Float, Tensor


@final
class Reference(Backend):
    """Serves every request. Masked keys get weight zero exactly, also in a row where every key is masked."""

    name = "reference"

    def supports(self, request: Request) -> str | None:
        return None

    def run(self, request: Request) -> Attended:
        weights, lse = self.weights(request)
        dropped = F.dropout(weights, request.dropout).to(request.value.dtype)
        output = dropped @ for_each_head(request.value, request.groups)
        if request.position is not None and request.position.reads:
            read = request.position.read(dropped, request.extent)
            if read.shape != output.shape:
                raise ShapeError(
                    f"{type(request.position).__name__} reads vectors of {read.shape[-1]} features beside values of "
                    f"{output.shape[-1]}: make it with value_dim={output.shape[-1]}"
                )
            output = output + read
        return Attended(output, weights, lse) if request.need_weights else Attended(output)

    def weights(
        self, request: Request
    ) -> tuple[Float[Tensor, "batch heads query key"], Float[Tensor, "batch heads query"] | None]:
        """The weights of a request, before any dropout, and (where weights are asked for) their log-sum-exp.

        They come in the precision of the scores, which is float32 for dot products of shorter numbers.
        """
        query = request.turned_query()
        keys = for_each_head(request.prepared_keys().tensor, request.groups)
        scores = request.score.compare(request.score.of_query(query), keys)
        if request.position is not None and request.position.biases:
            scores = scores + request.position.bias(query, request.extent)(Cells(request.extent))
        visible = request.see()
        if request.extent.keys == 0:
            weights = scores  # nothing to weigh: alignments look for a best key
        elif visible is None:
            weights = request.align.weigh(Scored(scores, None, query, request.extent))
        else:
            # The lowest finite score instead of -inf: a row with nothing to see then has finite weights, which the
            # second fill turns into zeros, and no NaN ever meets the backward pass.
            scores = torch.where(visible.allowed, scores, torch.finfo(scores.dtype).min)
            weights = request.align.weigh(Scored(scores, visible.allowed, query, request.extent))
            if visible.empty is not None or not request.align.clears_the_lowest:
                weights = torch.where(visible.allowed, weights, 0.0)
        return weights, _log_sum_exp(request, scores) if request.need_weights else None


def _log_sum_exp(
    request: Request, scores: Float[Tensor, "batch heads query key"]
) -> Float[Tensor, "batch heads query"] | None:
    """log sum exp(s / T) over the keys that are seen, -inf where none is; None where weights are not a softmax."""
    form = request.align.as_softmax()
    if form is None:
        return None
    scores = cooled(scores, form.temperature, None)
    visible = request.see(form.mask)
    return (scores if visible is None else scores.masked_fill(~visible.allowed, -torch.inf)).logsumexp(dim=-1)


def for_each_head(x: Float[Tensor, "batch kv_heads key dim"], groups: int) -> Float[Tensor, "batch heads key dim"]:
    """Keys or values that several heads share, once for each of them."""
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


REFERENCE = Reference()
