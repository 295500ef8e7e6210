"""Triton kernels for additive scores, v . tanh(W q + U k), which PyTorch's kernels cannot fuse."""

import importlib.util
from typing import final

from qkv.attention.backends.reasons import needs_dropout, needs_weights, not_a_softmax
from qkv.attention.backends.reference import REFERENCE, repeat_kv
from qkv.attention.mask import Padding
from qkv.attention.score import HiddenLayer
from qkv.attention.spec import AttentionOutput, AttentionRequest, Backend


@final
class Triton(Backend):
    """Additive attention without a [query, key, hidden] tensor; see `additive`."""

    name = "triton"

    def supports(self, request: AttentionRequest) -> str | None:
        if not isinstance(request.score, HiddenLayer):
            return f"the score {type(request.score).__name__} is not additive"
        reason = not_a_softmax(request) or needs_weights(request) or needs_dropout(request)
        if reason is not None:
            return reason
        if 0 in request.shape[:3]:
            return "the batch is empty or there are no queries"
        if 0 in (request.value.shape[-1], request.score.vector.shape[-1]):
            return "the values or the hidden layer of the score have size 0"
        if request.position is not None and request.position.adds_bias:
            return f"the position {type(request.position).__name__} adds a bias to the scores"
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        from qkv.attention.backends.additive import DTYPES
        from qkv.attention.backends.additive_kernels import INTERPRETED

        if request.query.device.type != "cuda" and not INTERPRETED:
            return "Triton needs a GPU or its interpreter (TRITON_INTERPRET=1)"
        if request.query.dtype not in DTYPES:
            return f"only float32, bfloat16 and float16 are supported, not {str(request.query.dtype)[6:]}"
        return None

    def run(self, request: AttentionRequest) -> AttentionOutput:
        from qkv.attention.backends.additive import additive_attention

        score, form = request.score, request.align.as_softmax()
        assert isinstance(score, HiddenLayer)
        assert form is not None
        query, key = request.features()
        lengths = allowed = None
        if isinstance(request.mask, Padding) and form.mask is None:
            lengths = request.mask.lengths.to(query.device)
        elif (mask := request.combined_mask(form.mask)) is not None:
            allowed = mask.to_dense(request.shape)
        output, _ = additive_attention(
            query.transpose(-1, -2),
            repeat_kv(key, request.groups).transpose(-1, -2),
            score.vector / form.temperature,
            repeat_kv(request.value, request.groups),
            lengths,
            allowed,
        )
        return AttentionOutput(output, REFERENCE.weights(request) if request.need_weights else None)
