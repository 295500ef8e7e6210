"""Hard attention without a product of weights and values: the value of the chosen key of each query.

j = argmax_i score(q, k_i), or a sample,   output = v_j
"""

from dataclasses import replace
from typing import NamedTuple, final

import torch

from qkv.attention.align import AlignInput
from qkv.attention.backends.reasons import is_empty, needs_dropout, needs_weights, selects_several_keys
from qkv.attention.backends.reference import REFERENCE
from qkv.attention.hard import one_hot
from qkv.attention.score_shape import Outputs, Weights
from qkv.attention.spec import AttentionOutput, AttentionRequest, Backend
from qkv.types import Bool, Int, Tensor

BLOCK_CELLS = 2**21  # scores computed at a time in inference: 8 MB in float32
BLOCK_QUERIES = 64  # minimum number of queries of a block


class Choice(NamedTuple):
    """The key of each query, and whether it is visible: false if all keys of the query are masked."""

    key: Int[Tensor, "batch heads query"]
    visible: Bool[Tensor, "batch heads query"] | None  # None without a mask


@final
class Gather(Backend):
    """Supports align functions that select one key per query; the scores are those of the reference."""

    name = "gather"
    has_weights = True

    def supports(self, request: AttentionRequest) -> str | None:
        return selects_several_keys(request) or needs_weights(request) or needs_dropout(request) or is_empty(request)

    def run(self, request: AttentionRequest) -> AttentionOutput:
        if torch.is_grad_enabled() or request.need_weights or torch.compiler.is_compiling():
            inputs = REFERENCE.align_input(request)
            choice = _choose(request, inputs)
            weights = _weights(choice, inputs) if request.need_weights else None
            return AttentionOutput(_gather(request, choice), weights)
        request = replace(request, key=request.transformed_keys())
        batch, heads, queries, keys = request.shape[:4]
        size = max(BLOCK_QUERIES, BLOCK_CELLS // (batch * heads * keys))
        if size >= queries or getattr(request.align, "training", False):  # samples do not depend on the block size
            return AttentionOutput(_gather(request, _choose(request, REFERENCE.align_input(request))))
        parts = [
            request.subset(None, tuple(range(begin, min(begin + size, queries)))) for begin in range(0, queries, size)
        ]
        key, visible = zip(*(_choose(part, REFERENCE.align_input(part)) for part in parts), strict=True)
        choice = Choice(torch.cat(key, dim=2), None if request.mask is None else torch.cat(visible, dim=2))
        return AttentionOutput(_gather(request, choice))


def _choose(request: AttentionRequest, inputs: AlignInput) -> Choice:
    key = request.align.select_keys(inputs)
    if inputs.allowed is None:
        return Choice(key, None)
    allowed = inputs.allowed.expand(*key.shape, request.shape.keys)
    return Choice(key, allowed.gather(-1, key.unsqueeze(-1)).squeeze(-1))


def _gather(request: AttentionRequest, choice: Choice) -> Outputs:
    """Return the chosen values; zeros for queries with no visible key."""
    shape, device = request.shape, request.value.device
    batch = torch.arange(shape.batch, device=device).view(-1, 1, 1)
    head = torch.arange(shape.heads, device=device).div(request.groups, rounding_mode="floor").view(1, -1, 1)
    output = request.value[batch, head, choice.key]
    if torch.is_autocast_enabled(device.type):  # the dtype of a matrix product
        output = output.to(torch.get_autocast_dtype(device.type))
    return output if choice.visible is None else torch.where(choice.visible.unsqueeze(-1), output, 0.0)


def _weights(choice: Choice, inputs: AlignInput) -> Weights:
    weights = one_hot(choice.key, inputs.scores)
    return weights if inputs.allowed is None else torch.where(inputs.allowed, weights, 0.0)
