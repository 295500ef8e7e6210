"""The attention operator: as a function and as a module."""

from collections.abc import Callable
from typing import TypedDict, Unpack

from torch import nn

from qkv.attention.align import Align, Softmax
from qkv.attention.backends import Explanation, check_backend, choose, explain_choice
from qkv.attention.mask import AnyMask, as_mask, check_mask_shape
from qkv.attention.position import Position
from qkv.attention.score import Keys, ScaledDot, Score
from qkv.attention.score_shape import ScoreShape
from qkv.attention.spec import (
    AttentionOutput,
    AttentionRequest,
    check_shapes,
    check_tensors,
    check_terms,
    transform_keys,
)
from qkv.errors import InputError
from qkv.registry import check_keywords, keyword_hints
from qkv.types import Float, Int, Tensor

SCALED_DOT = ScaledDot()
SOFTMAX = Softmax()
HINTS = {  # for arguments of torch.nn.functional.scaled_dot_product_attention and torch.nn.MultiheadAttention
    "attn_mask": "mask",
    "attention_mask": "mask",
    "key_padding_mask": "mask=Padding(lengths)",
    "is_causal": "mask=Causal()",
    "dropout_p": "dropout",
    "scale": "score=ScaledDot(scale)",
}


@keyword_hints(HINTS)
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

    Query heads may share heads of keys and values (GQA). The output of a fully masked query is zero. Masked keys and
    values must be finite: they are multiplied by zero.

        query, key, value = torch.randn(3, 2, 4, 5, 8)
        qkv.attend(query, key, value, mask=Causal(), need_weights=True).weights  # [2, 4, 5, 5]

    Args:
        query: Queries, [batch, heads, query, dim].
        key: Keys [batch, kv_heads, key, key_dim], or `Keys` that were transformed once for several calls.
        value: Values, [batch, kv_heads, key, value_dim].
        score: Score function between queries and keys.
        position: Position term: rotates queries and keys, adds a bias to the scores, or adds to the output.
        mask: A `Mask`, or a boolean tensor [query, key] or [batch, heads, query, key], true where attention is allowed;
            sizes of 1 are broadcast.
        align: Maps scores to weights.
        dropout: Probability to drop a weight, applied whenever it is positive; there is no training mode.
        backend: "auto", "reference", "sdpa", "flex", "triton" or "gather"; a named backend that does not support the
            call raises `Unsupported`.
        need_weights: Whether to return the weights. By default `result.weights` is None, since fused kernels never
            hold the matrix [query, key] in memory; with it, the reference implementation computes the result.
        start: Position of the first query among the keys, an integer or a tensor (shared, or one per batch row); by
            default the last query is at the position of the last key.

    Returns:
        `output` [batch, heads, query, value_dim], and `weights` [batch, heads, query, key] before dropout, or None.
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
    """Return which backend a call of `attend` would use, and why the others would not be used.

        print(qkv.attention.explain(query, key, value, mask=Causal()))

    Args:
        query: Queries, [batch, heads, query, dim].
        key: Keys, [batch, kv_heads, key, key_dim].
        value: Values, [batch, kv_heads, key, value_dim].
        backend: Name of the backend to ask for, or "auto".
        **terms: Other arguments of `attend`, such as `mask` and `score`.

    Returns:
        The name of the backend, and the reason against each other one.
    """
    check_keywords(attend, terms, HINTS)
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
    check_tensors(query, key, value)
    check_shapes(query, key, value)
    shape = ScoreShape(query.shape[0], query.shape[1], query.shape[2], value.shape[2], query.device, start)
    if isinstance(mask, Tensor):
        mask = as_mask(mask)
        check_mask_shape(mask.allowed.shape, shape)
    check_terms(score, position, mask, align, start)
    if dropout and not 0.0 < dropout <= 1.0:
        raise InputError(f"dropout must be between 0 and 1, not {dropout}")
    return AttentionRequest(query, key, value, score, position, mask, align, dropout, need_weights, shape)


class Attend(nn.Module):
    """The operator as a module with fixed terms, to which `watch`, `ablate` and `replace_weights` can attach.

        attention = Attend(Additive(query_dim=64, key_dim=64, hidden_dim=32))
        output = attention(query, key, value, mask=Padding(lengths)).output

    Args:
        score: Score function between queries and keys; by default `ScaledDot()`.
        align: Maps scores to weights; by default `Softmax()`.
        position: Position term, or None.
        dropout: Probability to drop a weight in training.
        backend: "auto", "reference", "sdpa", "flex", "triton" or "gather".
        heads: Number of heads, if known: `watch` and `ablate` then check head indices before the first call.
    """

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
        self.heads = heads
        self.watchers: tuple[Callable[[AttentionRequest, Tensor | None], None], ...] = ()
        self.ablations: tuple[Callable[[Tensor], Tensor], ...] = ()
        self.replacement: Callable[[int], Align] | None = None  # from the number of queries of a call to its weights

    def extra_repr(self) -> str:
        """The terms that are no modules and so have no line of their own, and the options that are no defaults."""
        align = None if isinstance(self.align, Softmax) and self.align.temperature == 1.0 else self.align
        terms = {"align": align, "position": self.position}
        shown = [f"{key}={term!r}" for key, term in terms.items() if not isinstance(term, nn.Module | None)]
        shown += [f"dropout={self.dropout}"] if self.dropout else []
        return ", ".join([*shown, *([f"backend={self.backend!r}"] if self.backend != "auto" else [])])

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
        """Run `attend` with the module's terms.

        Args:
            query: Queries, [batch, heads, query, dim].
            key: Keys [batch, kv_heads, key, key_dim], or `Keys` that were transformed once for several calls.
            value: Values, [batch, kv_heads, key, value_dim].
            mask: A `Mask`, or a boolean tensor [query, key] or [batch, heads, query, key], true where attention is
                allowed; sizes of 1 are broadcast.
            position: Replaces the position of the module.
            align: Replaces the align function of the module.
            start: Position of the first query among the keys, an integer or a tensor (shared, or one per batch row); by
                default the last query is at the position of the last key.

        Returns:
            `output` [batch, heads, query, value_dim]; the weights are None: record them with `qkv.watch`.
        """
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
