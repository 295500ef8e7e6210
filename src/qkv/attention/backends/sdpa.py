"""PyTorch's fused kernels, for scores that are dot products of transformed queries and keys."""

from functools import partial
from typing import final

import torch
from torch.nn import functional as F

from qkv.attention.backends.cpu import kernel_attention, suits_kernel
from qkv.attention.backends.measured import PLAN_OPERATIONS
from qkv.attention.backends.reasons import needs_weights, not_a_dot_product, not_a_softmax
from qkv.attention.backends.reference import REFERENCE, repeat_kv
from qkv.attention.mask import Causal
from qkv.attention.score import DotProduct
from qkv.attention.score_shape import Allowed, CellIndex, Outputs, Scores
from qkv.attention.spec import AttentionOutput, AttentionRequest, Backend
from qkv.types import Float, Tensor


@final
class Sdpa(Backend):
    """`torch.nn.functional.scaled_dot_product_attention`; weights, if requested, are computed separately.

    A kernel of qkv (`qkv.attention.backends.cpu`) computes the same faster in training on the CPU.
    """

    name = "sdpa"

    def supports(self, request: AttentionRequest) -> str | None:
        return not_a_dot_product(request) or not_a_softmax(request) or needs_weights(request)

    def run(self, request: AttentionRequest) -> AttentionOutput:
        return AttentionOutput(self._output(request), REFERENCE.weights(request) if request.need_weights else None)

    def _output(self, request: AttentionRequest) -> Outputs:
        query, key = request.features()
        score, form = request.score, request.align.as_softmax()
        assert isinstance(score, DotProduct)
        assert form is not None
        scale = score.checked_scale(query, key) / form.temperature
        if scale == 0.0:  # flash attention treats a scale of 0 as unset and returns NaN
            query, scale = query * 0.0, 1.0
        bias = None
        if request.position is not None and request.position.adds_bias:
            bias = request.position.bias(request.rotated_query(), request.shape)(CellIndex(request.shape))
            bias = (bias / form.temperature).to(query.dtype)
        if bias is None and form.mask is None:
            if request.mask is None:
                return _fused(request, query, key, scale)
            if isinstance(request.mask, Causal) and request.shape.ends_at_last_key:
                if request.shape.queries == 1:  # at the last key: it attends to all keys
                    return _fused(request, query, key, scale)
                if request.shape.queries == request.shape.keys:
                    return _fused(request, query, key, scale, is_causal=True)
        mask = request.combined_mask(form.mask)
        if mask is None:
            return _fused(request, query, key, scale, bias=bias)
        # All kernels except cuDNN's return zeros for fully masked rows. For cuDNN, unmask these rows and zero the
        # output afterwards, which also zeroes their gradient.
        allowed, fully_masked = mask.to_dense(request.shape), None
        if query.is_cuda and not _avoids_cudnn(request, query):
            fully_masked = mask.fully_masked(request.shape, allowed)
            allowed = allowed if fully_masked is None else allowed | fully_masked
        output = _fused(request, query, key, scale, allowed, bias)
        return output if fully_masked is None else output.masked_fill(fully_masked, 0.0)


def _fused(
    request: AttentionRequest,
    query: Float[Tensor, "batch heads query features"],
    key: Float[Tensor, "batch kv_heads key features"],
    scale: float,
    allowed: Allowed | None = None,
    bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
) -> Outputs:
    value, dropout = request.value, request.dropout
    if suits_kernel(query, key, value, bias):
        return kernel_attention(query, key, value, scale, allowed, bias, is_causal, dropout)
    mask = allowed if bias is None or allowed is None else bias.masked_fill(~allowed, -torch.inf)
    mask = bias if mask is None else mask
    if query.is_cuda and _avoids_cudnn(request, query):
        if mask is None:
            return torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout, is_causal, scale=scale
            )[0]
        key, value = repeat_kv(key, request.groups), repeat_kv(value, request.groups)
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, _aligned_bias(mask, request), torch.is_grad_enabled(), dropout, scale=scale
        )[0]
    attend = partial(F.scaled_dot_product_attention, dropout_p=dropout, is_causal=is_causal, scale=scale)
    if query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.requires_grad:
        # The gradient of the CPU kernel takes five times as long in bfloat16.
        mask = mask if mask is None or mask.dtype == torch.bool else mask.float()
        with torch.autocast("cpu", enabled=False):
            output = attend(query.float(), key.float(), value.float(), mask, enable_gqa=request.grouped)
        return output.to(value.dtype)
    return attend(query, key, value, mask, enable_gqa=request.grouped)


def _avoids_cudnn(request: AttentionRequest, query: Float[Tensor, "batch heads query features"]) -> bool:
    """Whether a call is too small for cuDNN's planning to pay off, and meets the constraints of the other kernels."""
    batch, heads, queries, keys = request.shape[:4]
    features, value_dim = query.shape[-1], request.value.shape[-1]
    return (
        query.dtype in (torch.bfloat16, torch.float16)
        and features == value_dim <= 256
        and features % 8 == 0
        and 0 < 4 * batch * heads * queries * keys * features < PLAN_OPERATIONS
    )


def _aligned_bias(mask: Float[Tensor, "#batch #heads #query #key"] | Allowed, request: AttentionRequest) -> Scores:
    """Convert a mask to an additive bias whose rows are aligned to 16 bytes, as the kernel requires."""
    rows, keys = mask.shape[:3], request.shape.keys
    bias = torch.zeros((*rows, -(-keys // 8) * 8), dtype=request.query.dtype, device=mask.device)[..., :keys]
    bias = bias.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else bias.copy_(mask)
    return bias.expand(request.shape[:4])
