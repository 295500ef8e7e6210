"""PyTorch's fused kernels, for every score that is a dot product after transforming queries and keys."""

from functools import partial
from typing import final

import torch
from torch.nn import functional as F

from qkv.attention.backends.reference import REFERENCE
from qkv.attention.extent import Cells
from qkv.attention.mask import Causal
from qkv.attention.score import DotProduct
from qkv.attention.spec import Attended, Backend, Request
from qkv.types import Tensor


@final
class Sdpa(Backend):
    """`torch.nn.functional.scaled_dot_product_attention`; weights, if asked for, are rebuilt beside it."""

    name = "sdpa"

    def supports(self, request: Request) -> str | None:
        if not isinstance(request.score, DotProduct):
            return f"the score {type(request.score).__name__} is not a dot product"
        if request.align.as_softmax() is None:
            return f"the alignment {type(request.align).__name__} is not a softmax"
        if request.position is not None and request.position.reads:
            return f"the position {type(request.position).__name__} adds to what is read, which needs the weights"
        return None

    def run(self, request: Request) -> Attended:
        output = self._output(request)
        return Attended(output, *REFERENCE.weights(request)) if request.need_weights else Attended(output)

    def _output(self, request: Request) -> Tensor:
        query, key = request.features()
        score, form = request.score, request.align.as_softmax()
        assert isinstance(score, DotProduct)
        assert form is not None
        fused = partial(
            F.scaled_dot_product_attention,
            query,
            key,
            request.value,
            dropout_p=request.dropout,
            scale=score.checked_scale(query, key) / form.temperature,
            enable_gqa=request.groups > 1,
        )
        bias = None
        if request.position is not None and request.position.biases:
            bias = request.position.bias(request.turned_query(), request.extent)(Cells(request.extent))
            bias = (bias / form.temperature).to(query.dtype)
        if bias is None and form.mask is None:
            if request.mask is None:
                return fused()
            if isinstance(request.mask, Causal) and request.extent.ends_at_the_last_key:
                if request.extent.queries == 1:  # it stands at the last key: it sees them all
                    return fused()
                if request.extent.queries == request.extent.keys:
                    return fused(is_causal=True)
        visible = request.see(form.mask)
        if visible is None:
            return fused(attn_mask=bias)
        # A row with nothing to see would come out as NaN, or not, as the kernel likes: let it see everything, then
        # put zeros in its place, through which no gradient flows either.
        seen = visible.allowed if visible.empty is None else visible.allowed | visible.empty
        output = fused(attn_mask=seen if bias is None else bias.masked_fill(~seen, -torch.inf))
        return output if visible.empty is None else output.masked_fill(visible.empty, 0.0)
