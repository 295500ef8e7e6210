"""Reference implementation: attention in plain PyTorch, with all terms and weights."""

from collections.abc import Sequence
from typing import final

import torch
from torch.nn import functional as F

from qkv.attention.align import AlignInput
from qkv.attention.score_shape import CellIndex, Weights
from qkv.attention.spec import AttentionOutput, AttentionRequest, Backend
from qkv.errors import ShapeError
from qkv.types import Float, Tensor


@final
class Reference(Backend):
    """Supports every request. Masked keys get weight exactly zero, also in fully masked rows."""

    name = "reference"
    has_weights = True

    def supports(self, request: AttentionRequest) -> str | None:
        return None

    def run(self, request: AttentionRequest) -> AttentionOutput:
        weights = self.weights(request)
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
        return AttentionOutput(output, weights if request.need_weights else None)

    def weights(self, request: AttentionRequest) -> Weights:
        """Return the weights before dropout.

        They have the dtype of the scores, which is float32 for dot products in half precision.
        """
        inputs = self.align_input(request)
        if request.shape.keys == 0:
            return inputs.scores  # no keys: align functions need at least one
        weights = request.align.compute_weights(inputs)
        _check_shape(request.align, "weights", weights, inputs.scores.shape)
        if request.mask is None or inputs.allowed is None:
            return weights
        if request.align.zeroes_masked and request.mask.fully_masked(request.shape, inputs.allowed) is None:
            return weights
        return torch.where(inputs.allowed, weights, 0.0)

    def align_input(self, request: AttentionRequest) -> AlignInput:
        """Return the scores, with those of masked keys at the lowest value."""
        query = request.rotated_query()
        keys = repeat_kv(request.transformed_keys().tensor, request.groups)
        scores = request.score.compare(request.score.transform_query(query), keys)
        _check_shape(request.score, "scores", scores, (*query.shape[:3], keys.shape[2]))
        if request.position is not None and request.position.adds_bias:
            scores = scores + request.position.bias(query, request.shape)(CellIndex(request.shape))
        allowed = None if request.mask is None else request.mask.to_dense(request.shape)
        if allowed is None:
            return AlignInput(scores, None, query, request.shape)
        # The lowest finite score instead of -inf: fully masked rows then have finite weights, which `weights` sets to
        # zero, and no NaN reaches the backward pass.
        scores = torch.where(allowed, scores, torch.finfo(scores.dtype).min)
        return AlignInput(scores, allowed, query, request.shape)


def _check_shape(term: object, kind: str, result: Tensor, expected: Sequence[int]) -> None:
    """Raise for the result of a term, such as a user's own score, that would broadcast to another shape."""
    if tuple(result.shape) != tuple(expected):
        raise ShapeError(
            f"{type(term).__name__} returned {kind} of shape {list(result.shape)}, not {list(expected)} "
            "[batch, heads, query, key]"
        )


def repeat_kv(x: Float[Tensor, "batch kv_heads key dim"], groups: int) -> Float[Tensor, "batch heads key dim"]:
    """Repeat key or value heads once for each query head of their group."""
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


REFERENCE = Reference()
