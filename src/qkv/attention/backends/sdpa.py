"""PyTorch's fused kernels, for every score that is a dot product after transforming queries and keys."""

from functools import partial
from typing import final

from torch.nn import functional as F

from qkv.attention.align import Softmax
from qkv.attention.backends.reference import REFERENCE
from qkv.attention.mask import Causal
from qkv.attention.score import DotProduct
from qkv.attention.spec import Attended, Backend, Request


@final
class Sdpa(Backend):
    """`torch.nn.functional.scaled_dot_product_attention`; weights, if asked for, are rebuilt beside it."""

    name = "sdpa"

    def supports(self, request: Request) -> str | None:
        if not isinstance(request.score, DotProduct):
            return f"the score {type(request.score).__name__} is not a dot product"
        if not isinstance(request.align, Softmax):
            return f"the alignment {type(request.align).__name__} is not a softmax"
        if request.position is not None and request.position.shifts_scores:
            return f"the position {type(request.position).__name__} acts on the scores"
        return REFERENCE.supports(request)

    def run(self, request: Request) -> Attended:
        query, key = request.positioned()
        assert isinstance(request.score, DotProduct)
        assert isinstance(request.align, Softmax)
        query, key, scale = request.score.as_dot(query, key)
        scale /= request.align.temperature

        fused = partial(
            F.scaled_dot_product_attention, query, key, request.value, dropout_p=request.dropout, scale=scale
        )
        causal = isinstance(request.mask, Causal)
        if request.mask is None or (
            causal and query.shape[2] == 1
        ):  # the last query stands at the last key: it sees all
            output = fused()
        elif causal and query.shape[2] == key.shape[2]:
            output = fused(is_causal=True)
        else:
            # A row with nothing to see would come out as NaN, or not, as the kernel likes: let it see everything,
            # then put zeros in its place, through which no gradient flows either.
            allowed = request.allowed()
            assert allowed is not None
            empty = ~allowed.any(dim=-1, keepdim=True)
            output = fused(attn_mask=allowed | empty).masked_fill(empty, 0.0)
        if not request.need_weights:
            return Attended(output)
        return Attended(output, *REFERENCE.weights(request))
