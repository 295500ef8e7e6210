"""PyTorch's FlexAttention: block masks and biases inside the kernel, without query x key tensors in memory."""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from qkv.attention.align import LocalPredictive, SoftmaxForm
from qkv.attention.backends.reasons import is_empty, needs_dropout, needs_weights, not_a_dot_product, not_a_softmax
from qkv.attention.backends.reference import REFERENCE
from qkv.attention.mask import Mask, Padding
from qkv.attention.score import DotProduct, Keys
from qkv.attention.score_shape import Index, Outputs, ScoreShape
from qkv.attention.spec import AttentionOutput, AttentionRequest, Backend
from qkv.types import Float, Tensor

ScoreMod = Callable[[Tensor, Index], Tensor]  # modifies the score of a cell
LSE = AuxRequest(lse=True)
MIN_FEATURES = 16  # of the matrix products in the kernel; smaller sizes are zero-padded
SMALL_BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32,
                "num_stages": 2}  # gathering a bias needs shared memory  # fmt: skip
RECOMPILE_LIMIT = 256  # one compilation per pair of terms and size exceeds the default of 8


@final
class Flex(Backend):
    """`torch.nn.attention.flex_attention`, compiled on GPUs; on the CPU uncompiled and inference only."""

    name = "flex"

    def supports(self, request: AttentionRequest) -> str | None:
        if isinstance(request.align, LocalPredictive):
            if not (request.mask is None or isinstance(request.mask, Padding)):
                return "LocalPredictive needs the number of unmasked keys, which is known in advance for Padding only"
        elif (reason := not_a_softmax(request)) is not None:
            return reason
        reason = not_a_dot_product(request) or needs_weights(request) or needs_dropout(request) or is_empty(request)
        if reason is not None:
            return reason
        if request.query.device.type == "cpu" and _needs_gradient(request):
            return "there is no backward pass on the CPU"
        if request.query.device.type not in ("cpu", "cuda"):
            return f"only CPU and CUDA are supported, not {request.query.device.type}"
        return None

    def run(self, request: AttentionRequest) -> AttentionOutput:
        if isinstance(request.align, LocalPredictive):
            output = self._local(request, request.align)
        else:
            form = request.align.as_softmax()
            assert form is not None
            output, _ = self._softmax(request, form, None)
        return AttentionOutput(output, REFERENCE.weights(request) if request.need_weights else None)

    def _softmax(
        self, request: AttentionRequest, form: SoftmaxForm, score_mod: ScoreMod | None
    ) -> tuple[Outputs, Float[Tensor, "batch heads query"]]:
        """Return softmax attention with modified scores, and its log-sum-exp."""
        query, key = request.features()
        assert isinstance(request.score, DotProduct)
        output, lse = _flex(
            _pad_features(MIN_FEATURES, query),
            _pad_features(MIN_FEATURES, key),
            _pad_features(MIN_FEATURES, request.value),
            score_mod=_build_score_mod(request, form.temperature, score_mod),
            block_mask=_block_mask(request, form.mask),
            scale=request.score.checked_scale(query, key) / form.temperature,
            enable_gqa=request.grouped,
            kernel_options=SMALL_BLOCKS if request.position is not None and request.position.gathers_bias else None,
        )
        return output[..., : request.value.shape[-1]], lse

    def _local(self, request: AttentionRequest, align: LocalPredictive) -> Outputs:
        """softmax(s) G = softmax(s + log G) exp(lse(s + log G) - lse(s)), with s restricted to the window."""
        lengths: int | Tensor = request.shape.keys
        if isinstance(request.mask, Padding):
            lengths = request.mask.lengths.to(request.shape.device).clamp(0, request.shape.keys).view(-1, 1, 1)
        centre = align.centre(request.rotated_query(), lengths).unsqueeze(-1)  # b h q 1

        fixed = centre.detach()  # no gradient flows through the window mask

        def window(score: Tensor, index: Index) -> Tensor:
            distance = index.key - index.per_query(fixed, index.key * 0)
            return torch.where(distance.abs() <= align.window, score, -torch.inf)

        def gaussian(score: Tensor, index: Index) -> Tensor:
            distance = index.key - index.per_query(centre, index.key * 0)
            return window(score, index) - 2.0 * (distance / align.window) ** 2

        output, gaussian_lse = self._softmax(request, SoftmaxForm(), gaussian)
        _, lse = self._softmax(request, SoftmaxForm(), window)
        empty = lse == -torch.inf  # the output is zero already; avoid -inf - -inf = NaN
        factor = torch.exp(gaussian_lse.masked_fill(empty, 0.0) - lse.masked_fill(empty, 0.0))
        return output * factor.unsqueeze(-1).to(output.dtype)


def _block_mask(request: AttentionRequest, extra: Mask | None) -> BlockMask | None:
    mask = request.combined_mask(extra)
    if mask is None:
        return None
    if extra is not None or isinstance(request.shape.start, Tensor) or torch.compiler.is_compiling():
        return _create_block_mask(mask, request.shape)
    return _cached_block_mask(mask, request.shape)


def _create_block_mask(mask: Mask, shape: ScoreShape) -> BlockMask:
    if not torch.compiler.is_compiling():
        mask.to_dense(shape._replace(device=torch.device("meta")))  # check the shapes
    mask = mask.to(shape.device)
    return create_block_mask(
        lambda batch, head, query, key: mask.allows(Index(shape, batch, head, query, key)),
        *shape[:4],
        device=shape.device,
    )


_cached_block_mask = lru_cache(maxsize=8)(_create_block_mask)  # all layers of a model use the same mask


def _build_score_mod(
    request: AttentionRequest, temperature: float, score_mod: ScoreMod | None
) -> Callable[..., Tensor] | None:
    shape = request.shape
    bias = None
    if request.position is not None and request.position.adds_bias:
        bias = request.position.bias(request.rotated_query(), shape)
    if bias is None and score_mod is None:
        return None

    def modified(score: Tensor, index: Index) -> Tensor:
        score = score if bias is None else score + bias(index) / temperature
        return score if score_mod is None else score_mod(score, index)

    return lambda score, *cell: modified(score, Index(shape, *cell))


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    # fullgraph: raise on graph breaks instead of falling back to slow eager execution
    return torch.compile(flex_attention, fullgraph=True, dynamic=False)


def _flex(
    query: Tensor, key: Tensor, value: Tensor, **terms: Any
) -> tuple[Outputs, Float[Tensor, "batch heads query"]]:
    if torch.compiler.is_compiling():
        output, aux = flex_attention(query, key, value, return_aux=LSE, **terms)
    elif query.device.type == "cuda":
        with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT):
            output, aux = _compiled()(query, key, value, return_aux=LSE, **terms)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
            # It rejects tensors that require gradients, even under no_grad.
            query, key, value = query.detach(), key.detach(), value.detach()
            output, aux = flex_attention(query, key, value, return_aux=LSE, **terms)
    return output, aux.lse


def _pad_features(features: int, x: Float[Tensor, "batch some_heads length dim"]) -> Float[Tensor, "..."]:
    return F.pad(x, (0, features - x.shape[-1])) if x.shape[-1] < features else x


def _needs_gradient(request: AttentionRequest) -> bool:
    key = request.key.tensor if isinstance(request.key, Keys) else request.key
    terms = (request.score, request.align, getattr(request.position, "term", request.position))
    weights = (weight for term in terms if isinstance(term, nn.Module) for weight in term.parameters())
    return torch.is_grad_enabled() and any(x.requires_grad for x in (request.query, key, request.value, *weights))
