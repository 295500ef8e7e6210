"""PyTorch's fused kernels, for every score that is a dot product after transforming queries and keys."""

from typing import final

import torch
from torch.nn import functional as F

from qkv.attention.backends.measured import crossovers
from qkv.attention.backends.reasons import needs_the_weights, not_a_dot_product, not_a_softmax
from qkv.attention.backends.reference import REFERENCE, for_each_head
from qkv.attention.extent import Cells
from qkv.attention.mask import Causal
from qkv.attention.score import DotProduct
from qkv.attention.spec import Attended, Backend, Request
from qkv.types import Bool, Float, Tensor


@final
class Sdpa(Backend):
    """`torch.nn.functional.scaled_dot_product_attention`; weights, if asked for, are rebuilt beside it."""

    name = "sdpa"

    def supports(self, request: Request) -> str | None:
        return not_a_dot_product(request) or not_a_softmax(request) or needs_the_weights(request)

    def run(self, request: Request) -> Attended:
        output = self._output(request)
        return Attended(output, *REFERENCE.weights(request)) if request.need_weights else Attended(output)

    def _output(self, request: Request) -> Float[Tensor, "batch heads query value_dim"]:
        query, key = request.features()
        score, form = request.score, request.align.as_softmax()
        assert isinstance(score, DotProduct)
        assert form is not None
        scale = score.checked_scale(query, key) / form.temperature
        if scale == 0.0:  # flash takes that for no scale at all, and gives no number
            query, scale = query * 0.0, 1.0
        bias = None
        if request.position is not None and request.position.biases:
            bias = request.position.bias(request.turned_query(), request.extent)(Cells(request.extent))
            bias = (bias / form.temperature).to(query.dtype)
        if bias is None and form.mask is None:
            if request.mask is None:
                return _fused(request, query, key, scale)
            if isinstance(request.mask, Causal) and request.extent.ends_at_the_last_key:
                if request.extent.queries == 1:  # it stands at the last key: it sees them all
                    return _fused(request, query, key, scale)
                if request.extent.queries == request.extent.keys:
                    return _fused(request, query, key, scale, is_causal=True)
        visible = request.see(form.mask)
        if visible is None:
            return _fused(request, query, key, scale, bias)
        # A row with nothing to see reads zeros on every kernel but cuDNN's: for that one, let it see everything, then
        # put zeros in its place, through which no gradient flows either.
        empty = visible.empty if query.is_cuda and not _needs_no_plan(request, query) else None
        seen = visible.allowed if empty is None else visible.allowed | empty
        output = _fused(request, query, key, scale, seen if bias is None else bias.masked_fill(~seen, -torch.inf))
        return output if empty is None else output.masked_fill(empty, 0.0)


def _fused(
    request: Request,
    query: Float[Tensor, "batch heads query features"],
    key: Float[Tensor, "batch kv_heads key features"],
    scale: float,
    mask: Float[Tensor, "#batch #heads #query #key"] | Bool[Tensor, "#batch #heads #query #key"] | None = None,
    is_causal: bool = False,
) -> Float[Tensor, "batch heads query value_dim"]:
    value, dropout = request.value, request.dropout
    if query.is_cuda and _needs_no_plan(request, query):
        if mask is None:
            return torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout, is_causal, scale=scale
            )[0]
        key, value = for_each_head(key, request.groups), for_each_head(value, request.groups)
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, _aligned_bias(mask, request), torch.is_grad_enabled(), dropout, scale=scale
        )[0]
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=request.grouped
    )


def _needs_no_plan(request: Request, query: Float[Tensor, "batch heads query features"]) -> bool:
    """Whether a call is too small to be worth cuDNN's planning, and fits the other kernels as it is."""
    batch, heads, queries, keys = request.extent[:4]
    features, value_dim = query.shape[-1], request.value.shape[-1]
    return (
        query.dtype in (torch.bfloat16, torch.float16)
        and features == value_dim <= 256
        and features % 8 == 0
        and 0 < 4 * batch * heads * queries * keys * features < crossovers(query.device).plan_operations
    )


def _aligned_bias(
    mask: Float[Tensor, "#batch #heads #query #key"] | Bool[Tensor, "#batch #heads #query #key"], request: Request
) -> Float[Tensor, "batch heads query key"]:
    """A mask as what is added to the scores, each row of it beginning at a multiple of 16 bytes as kernels want it."""
    rows, keys = mask.shape[:3], request.extent.keys
    bias = torch.zeros((*rows, -(-keys // 8) * 8), dtype=request.query.dtype, device=mask.device)[..., :keys]
    bias = bias.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else bias.copy_(mask)
    return bias.expand(request.extent[:4])
