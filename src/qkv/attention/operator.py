"""The attention operator: as a function and as a module."""

from collections.abc import Callable
from typing import TypedDict, Unpack

from torch import nn

from qkv.attention.align import Align, Softmax
from qkv.attention.backends import Explanation, check_backend, choose, explain_choice
from qkv.attention.mask import AnyMask, as_mask
from qkv.attention.position import Position
from qkv.attention.score import Keys, ScaledDot, Score
from qkv.attention.score_shape import ScoreShape
from qkv.attention.spec import AttentionOutput, AttentionRequest, check_shapes, check_terms, transform_keys
from qkv.errors import InputError
from qkv.types import Float, Int, Tensor

SCALED_DOT = ScaledDot()
SOFTMAX = Softmax()


def attend(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key key_dim"] | Keys,
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    score: Score = SCALED_DOT,
    position: Position | None = None,
    mask: AnyMask | None = None,
    align: Align = SOFTMAX,
    dropout: float = 0.0,
    backend: str = "auto",
    need_weights: bool = False,
    start: int | Int[Tensor, "*batch"] | None = None,
) -> AttentionOutput:
    """Compute attention with the given score, position, mask and align function.

    scores = mask(position(score(query, key))),   weights = align(scores),   output = weights @ value

    `mask` is a `Mask` or a boolean tensor [query, key] or [batch, heads, query, key], true where attention is allowed.
    `start` is the position of the first query among the keys, an integer or a tensor (shared or one per batch row); by
    default the last query is aligned with the last key. Query heads may share heads of keys and values (GQA).
    `dropout` is applied to the weights whenever it is positive; the returned weights are those before dropout.
    The output of a fully masked query is zero. Masked keys and values must be finite: they are multiplied by zero.
    `backend` is "auto" or a name; a named backend that does not support the request raises `Unsupported`.
    """
    request = build_request(query, key, value, score, position, mask, align, dropout, need_weights, start)
    return choose(request, backend).run(request)


class Terms(TypedDict, total=False):
    """Keyword arguments of `attend`, except `backend`."""

    score: Score
    position: Position | None
    mask: AnyMask | None
    align: Align
    dropout: float
    need_weights: bool
    start: int | Int[Tensor, "*batch"] | None


def explain(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key key_dim"] | Keys,
    value: Float[Tensor, "batch kv_heads key value_dim"],
    backend: str = "auto",
    **terms: Unpack[Terms],
) -> Explanation:
    """Return which backend a call of `attend` would use, and why the others would not be used."""
    return explain_choice(build_request(query, key, value, **terms), backend)


def build_request(
    query: Tensor,
    key: Tensor | Keys,
    value: Tensor,
    score: Score = SCALED_DOT,
    position: Position | None = None,
    mask: AnyMask | None = None,
    align: Align = SOFTMAX,
    dropout: float = 0.0,
    need_weights: bool = False,
    start: int | Int[Tensor, "*batch"] | None = None,
) -> AttentionRequest:
    """Check the arguments of `attend` and pack them into an `AttentionRequest`."""
    check_shapes(query, key, value)
    if isinstance(mask, Tensor):
        mask = as_mask(mask)
    check_terms(score, position, mask, align, start)
    if dropout and not 0.0 < dropout <= 1.0:
        raise InputError(f"dropout must be between 0 and 1, not {dropout}")
    shape = ScoreShape(query.shape[0], query.shape[1], query.shape[2], value.shape[2], query.device, start)
    return AttentionRequest(query, key, value, score, position, mask, align, dropout, need_weights, shape)


class Attend(nn.Module):
    """The operator as a module with fixed terms, to which `watch`, `ablate` and `replace_weights` can attach."""

    def __init__(
        self,
        score: Score | None = None,
        align: Align | None = None,
        position: Position | None = None,
        dropout: float = 0.0,
        backend: str = "auto",
        heads: int | None = None,
    ) -> None:
        super().__init__()
        self.score = score or ScaledDot()
        self.align = align or Softmax()
        self.position = position
        self.dropout = dropout
        self.backend = check_backend(backend)
        self.heads = heads  # if known, `watch` and `ablate` check head indices before the first call
        self.watchers: tuple[Callable[[AttentionRequest, Tensor | None], None], ...] = ()
        self.ablations: tuple[Callable[[Tensor], Tensor], ...] = ()
        self.replacement: Callable[[int], Align] | None = None  # from the number of queries of a call to its weights

    def forward(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key key_dim"] | Keys,
        value: Float[Tensor, "batch kv_heads key value_dim"],
        mask: AnyMask | None = None,
        *,
        position: Position | None = None,
        align: Align | None = None,
        start: int | Int[Tensor, "*batch"] | None = None,
    ) -> AttentionOutput:
        """Run `attend` with the module's terms; `position` and `align` override the module's."""
        request = build_request(
            query,
            key,
            value,
            self.score,
            position or self.position,
            mask,
            (align or self.align) if self.replacement is None else self.replacement(query.shape[2]),
            self.dropout if self.training else 0.0,
            start=start,
        )
        backend = choose(request, self.backend if self.replacement is None else "auto")
        if self.watchers and backend.has_weights:  # exact even if they are sampled
            request.need_weights = True
        result = backend.run(request)
        for watcher in self.watchers:
            watcher(request, result.weights)
        output = result.output
        for ablation in self.ablations:
            output = ablation(output)
        return AttentionOutput(output)

    def keys(
        self,
        key: Float[Tensor, "batch kv_heads key dim"],
        start: int | Int[Tensor, "*batch"] = 0,
        *,
        position: Position | None = None,
    ) -> Keys:
        """Transform the keys of a sequence once for all later queries; the first key is at position `start`."""
        return transform_keys(key, self.score, position or self.position, start)
