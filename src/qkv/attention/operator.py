"""The one attention operator: as a function, as a plan to keep, and as a module that holds its terms."""

from collections.abc import Callable
from typing import TypedDict, Unpack, final

from torch import nn

from qkv.attention.align import Align, Softmax
from qkv.attention.backends import Explanation, checked_name, choose, explained
from qkv.attention.backends.reference import REFERENCE
from qkv.attention.extent import Extent
from qkv.attention.mask import Mask
from qkv.attention.position import Position
from qkv.attention.score import Keys, ScaledDot, Score
from qkv.attention.spec import Attended, Backend, Request, check_shapes, check_terms, prepare
from qkv.errors import InputError, ShapeError
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
    mask: Mask | None = None,
    align: Align = SOFTMAX,
    dropout: float = 0.0,
    backend: str = "auto",
    need_weights: bool = False,
    start: int | Int[Tensor, "*batch"] | None = None,
) -> Attended:
    """Read from the values, by how well each query fits each key.

    scores = mask(position(score(query, key))),   weights = align(scores),   output = weights @ value

    `start` is the place of the first query among the keys, a number or a tensor (one for all rows, or one each); unless
    it is given, the last query stands at the last key. Several heads of queries may share one of keys and values.
    `dropout` acts on the weights and is applied whenever it is positive; the weights returned are those before it.
    A query whose every key is masked reads zeros. What stands behind a mask must still be finite: it counts zero times.
    `backend` is "auto" or a name, which raises `Unsupported` where that backend cannot serve the request.
    """
    request = build_request(query, key, value, score, position, mask, align, dropout, backend, need_weights, start)
    return choose(request, backend).run(request)


class Terms(TypedDict, total=False):
    """What `attend` takes by name."""

    score: Score
    position: Position | None
    mask: Mask | None
    align: Align
    dropout: float
    backend: str
    need_weights: bool
    start: int | Int[Tensor, "*batch"] | None


@final
class Plan:
    """A call of `attend` with everything settled but the tensors: terms, backend, and the mask as it will be used.

    It is for tensors of the same sizes, dtype and device, with gradients asked of them or not as when it was made.
    """

    def __init__(self, request: Request, backend: Backend) -> None:
        self.backend = backend
        self.extent = request.extent
        live = isinstance(request.extent.start, Tensor)  # it may change between calls, and the mask with it
        self._terms = (
            request.score, request.position, request.mask, request.align, request.dropout, request.need_weights,
            request.extent, None if live else request.see(),
        )  # fmt: skip

    def __call__(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key key_dim"] | Keys,
        value: Float[Tensor, "batch kv_heads key value_dim"],
    ) -> Attended:
        """`attend`, for tensors of the sizes that the plan was made with."""
        check_shapes(query, key, value)
        if (*query.shape[:3], value.shape[2]) != self.extent[:4]:
            raise ShapeError(
                f"the plan was made for {list(self.extent[:4])} [batch, heads, query, key], but was given "
                f"{[*query.shape[:3], value.shape[2]]}: make another"
            )
        return self.backend.run(Request(query, key, value, *self._terms))


def plan(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key key_dim"] | Keys,
    value: Float[Tensor, "batch kv_heads key value_dim"],
    **terms: Unpack[Terms],
) -> Plan:
    """Settle a call of `attend` once, to make it many times with tensors of the same sizes, as a decoding loop does."""
    request = build_request(query, key, value, **terms)
    return Plan(request, choose(request, terms.get("backend", "auto")))


def explain(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key key_dim"] | Keys,
    value: Float[Tensor, "batch kv_heads key value_dim"],
    **terms: Unpack[Terms],
) -> Explanation:
    """Which backend a call of `attend` would run on, and why the others would not; print it, or read its fields."""
    return explained(build_request(query, key, value, **terms), terms.get("backend", "auto"))


def build_request(
    query: Tensor,
    key: Tensor | Keys,
    value: Tensor,
    score: Score = SCALED_DOT,
    position: Position | None = None,
    mask: Mask | None = None,
    align: Align = SOFTMAX,
    dropout: float = 0.0,
    backend: str = "auto",
    need_weights: bool = False,
    start: int | Int[Tensor, "*batch"] | None = None,
) -> Request:
    """What `attend` takes, as one value."""
    check_shapes(query, key, value)
    check_terms(score, position, mask, align, start)
    if dropout and not 0.0 < dropout <= 1.0:
        raise InputError(f"dropout is a share of the weights, from 0 to 1, not {dropout}")
    extent = Extent(query.shape[0], query.shape[1], query.shape[2], value.shape[2], query.device, start)
    return Request(query, key, value, score, position, mask, align, dropout, need_weights, extent)


class Attend(nn.Module):
    """The operator with its terms: what a model calls, what `watch` looks at, and where `ablate` switches heads off."""

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
        self.backend = checked_name(backend)
        self.heads = heads  # where it is known before the first call: who asks for a head that is not there hears of it
        self.watchers: tuple[Callable[[Request, Tensor | None], None], ...] = ()
        self.ablations: tuple[Callable[[Tensor], Tensor], ...] = ()

    def forward(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key key_dim"] | Keys,
        value: Float[Tensor, "batch kv_heads key value_dim"],
        mask: Mask | None = None,
        *,
        position: Position | None = None,
        align: Align | None = None,
        start: int | Int[Tensor, "*batch"] | None = None,
    ) -> Attended:
        """`attend` with the module's terms; a position or alignment given here takes the place of the module's."""
        request = build_request(
            query,
            key,
            value,
            self.score,
            position or self.position,
            mask,
            align or self.align,
            self.dropout if self.training else 0.0,
            start=start,
        )
        backend = choose(request, self.backend)
        if self.watchers and backend is REFERENCE:  # it has the weights in hand: exact also where they are drawn
            request.need_weights = True
        attended = backend.run(request)
        for watcher in self.watchers:
            watcher(request, attended.weights)
        output = attended.output
        for ablation in self.ablations:
            output = ablation(output)
        return Attended(output)

    def keys(
        self,
        key: Float[Tensor, "batch kv_heads key dim"],
        start: int | Int[Tensor, "*batch"] = 0,
        *,
        position: Position | None = None,
    ) -> Keys:
        """The keys of a sequence as this attention compares them, computed once; the first stands at place `start`."""
        return prepare(key, self.score, position or self.position, start)
