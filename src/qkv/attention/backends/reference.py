"""Reference implementation: attention in plain PyTorch, with all terms and weights."""

from typing import final

import torch
from torch.nn import functional as F

from qkv.attention.align import AlignInput, apply_temperature
from qkv.attention.score_shape import CellIndex
from qkv.attention.spec import AttentionOutput, Backend, Request
from qkv.errors import ShapeError
from qkv.types import Float, Tensor


@final
class Reference(Backend):
    """Supports every request. Masked keys get weight exactly zero, also in fully masked rows."""

    name = "reference"

    def supports(self, request: Request) -> str | None:
        return None

    def run(self, request: Request) -> AttentionOutput:
        weights, lse = self.weights(request)
        dropped = F.dropout(weights, request.dropout).to(request.value.dtype)
        output = dropped @ repeat_kv(request.value, request.groups)
        if request.position is not None and request.position.adds_to_output:
            added = request.position.add_to_output(dropped, request.shape)
            if added.shape != output.shape:
                raise ShapeError(
                    f"{type(request.position).__name__} has value vectors of size {added.shape[-1]}, but the values "
                    f"have size {output.shape[-1]}: pass value_dim={output.shape[-1]}"
                )
            output = output + added
        return AttentionOutput(output, weights, lse) if request.need_weights else AttentionOutput(output)

    def weights(
        self, request: Request
    ) -> tuple[Float[Tensor, "batch heads query key"], Float[Tensor, "batch heads query"] | None]:
        """Return the weights before dropout and, if `need_weights` is set, their log-sum-exp.

        They have the dtype of the scores, which is float32 for dot products in half precision.
        """
        query = request.rotated_query()
        keys = repeat_kv(request.transformed_keys().tensor, request.groups)
        scores = request.score.compare(request.score.transform_query(query), keys)
        if request.position is not None and request.position.adds_bias:
            scores = scores + request.position.bias(query, request.shape)(CellIndex(request.shape))
        mask = request.materialize_mask()
        if request.shape.keys == 0:
            weights = scores  # no keys: align functions need at least one
        elif mask is None:
            weights = request.align.compute_weights(AlignInput(scores, None, query, request.shape))
        else:
            # The lowest finite score instead of -inf: fully masked rows then have finite weights, which the second fill
            # sets to zero, and no NaN reaches the backward pass.
            scores = torch.where(mask.allowed, scores, torch.finfo(scores.dtype).min)
            weights = request.align.compute_weights(AlignInput(scores, mask.allowed, query, request.shape))
            if mask.fully_masked is not None or not request.align.zeroes_masked:
                weights = torch.where(mask.allowed, weights, 0.0)
        return weights, _log_sum_exp(request, scores) if request.need_weights else None


def _log_sum_exp(
    request: Request, scores: Float[Tensor, "batch heads query key"]
) -> Float[Tensor, "batch heads query"] | None:
    """log sum exp(s / T) over the unmasked keys, -inf if there is none; None if the weights are not a softmax."""
    form = request.align.as_softmax()
    if form is None:
        return None
    scores = apply_temperature(scores, form.temperature, None)
    mask = request.materialize_mask(form.mask)
    return (scores if mask is None else scores.masked_fill(~mask.allowed, -torch.inf)).logsumexp(dim=-1)


def repeat_kv(x: Float[Tensor, "batch kv_heads key dim"], groups: int) -> Float[Tensor, "batch heads key dim"]:
    """Repeat key or value heads once for each query head of their group."""
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


REFERENCE = Reference()
