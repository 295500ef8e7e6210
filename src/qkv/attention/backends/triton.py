"""Our own kernels for the scores that PyTorch's cannot fuse: v . tanh(W q + U k)."""

import importlib.util
from typing import final

from qkv.attention.backends.reasons import is_empty, needs_dropout, needs_the_weights, not_a_softmax
from qkv.attention.backends.reference import REFERENCE, for_each_head
from qkv.attention.mask import Padding
from qkv.attention.score import HiddenLayer
from qkv.attention.spec import Attended, Backend, Request


@final
class Triton(Backend):
    """Additive attention that never holds a [query, key, hidden] tensor; see `additive`."""

    name = "triton"

    def supports(self, request: Request) -> str | None:
        if not isinstance(request.score, HiddenLayer):
            return f"the score {type(request.score).__name__} is not a network with a hidden layer"
        reason = not_a_softmax(request) or needs_the_weights(request) or needs_dropout(request) or is_empty(request)
        if reason is not None:
            return reason
        if 0 in (request.value.shape[-1], request.score.vector.shape[-1]):
            return "the values, or the hidden layer of the score, have no features"
        if request.position is not None and request.position.biases:
            return f"the position {type(request.position).__name__} adds to the scores"
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        from qkv.attention.backends.additive import DTYPES
        from qkv.attention.backends.additive_kernels import INTERPRETED

        if request.query.device.type != "cuda" and not INTERPRETED:
            return "Triton's kernels run on a GPU, or anywhere under its interpreter (TRITON_INTERPRET=1)"
        if request.query.dtype not in DTYPES:
            return f"it computes in float32, bfloat16 and float16, not in {str(request.query.dtype)[6:]}"
        return None

    def run(self, request: Request) -> Attended:
        from qkv.attention.backends.additive import additive_attention

        score, form = request.score, request.align.as_softmax()
        assert isinstance(score, HiddenLayer)
        assert form is not None
        query, key = request.features()
        lengths = allowed = None
        if isinstance(request.mask, Padding) and form.mask is None:
            lengths = request.mask.lengths.to(query.device)
        elif (visible := request.see(form.mask)) is not None:
            allowed = visible.allowed
        output, lse = additive_attention(
            query.transpose(-1, -2),
            for_each_head(key, request.groups).transpose(-1, -2),
            score.vector / form.temperature,
            for_each_head(request.value, request.groups),
            lengths,
            allowed,
        )
        if not request.need_weights:
            return Attended(output)
        weights, _ = REFERENCE.weights(request)
        return Attended(output, weights, lse)
