"""Request and result types, and the backend interface."""

import difflib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, final

import torch

from qkv.attention.align import Align
from qkv.attention.mask import Mask
from qkv.attention.position import Position
from qkv.attention.score import Keys, Score
from qkv.attention.score_shape import Outputs, Queries, ScoreShape, Weights, select_along
from qkv.errors import InputError, ShapeError
from qkv.registry import registered
from qkv.runtime.notebook import Drawable
from qkv.types import Float, Int, Tensor


class AttentionOutput(NamedTuple):
    """Output of attention and, if requested, its weights before dropout.

    Attributes:
        output: Sum of the values weighted by attention, [batch, heads, query, value_dim].
        weights: Attention weights [batch, heads, query, key]; None unless `attend` was called with `need_weights`.
    """

    output: Outputs
    weights: Weights | None = None

    def __repr__(self) -> str:
        weights = "" if self.weights is None else f", weights {list(self.weights.shape)}"
        return f"AttentionOutput(output {list(self.output.shape)}{weights})"

    def _repr_html_(self) -> str:
        return Drawable._repr_html_(self)  # type: ignore[arg-type]  # a named tuple has no other base class


@dataclass(slots=True)
class AttentionRequest:
    """One call of the operator: its tensors, terms and score shape."""

    query: Queries
    key: Float[Tensor, "batch kv_heads key key_dim"] | Keys
    value: Float[Tensor, "batch kv_heads key value_dim"]
    score: Score
    position: Position | None
    mask: Mask | None
    align: Align
    dropout: float
    need_weights: bool
    shape: ScoreShape

    @property
    def grouped(self) -> bool:
        """Whether query heads share heads of keys and values (grouped-query attention)."""
        if self.shape.heads != self.value.shape[1]:  # noqa: SIM103 (a bool even if sizes are symbolic)
            return True
        return False

    @property
    def groups(self) -> int:
        """Number of query heads per head of keys and values."""
        return self.shape.heads // self.value.shape[1]

    def features(
        self,
    ) -> tuple[Float[Tensor, "batch heads query features"], Float[Tensor, "batch kv_heads key key_features"]]:
        """Return queries and keys transformed by the position and then by the score."""
        return self.score.transform_query(self.rotated_query()), self.transformed_keys().tensor

    def rotated_query(self) -> Queries:
        """Return the queries transformed by the position."""
        if self.position is None or not self.position.rotates_qk:
            return self.query
        return self.position.apply_to_qk(self.query, self.shape.query_positions())

    def transformed_keys(self) -> Keys:
        """Return the keys transformed by the position and the score."""
        return self.key if isinstance(self.key, Keys) else transform_keys(self.key, self.score, self.position)

    def combined_mask(self, extra: Mask | None) -> Mask | None:
        """Return the mask combined with an extra one; None if there is neither."""
        return self.mask if extra is None else extra if self.mask is None else self.mask & extra

    def subset(self, heads: tuple[int, ...] | None, queries: tuple[int, ...] | None) -> "AttentionRequest":
        """Restrict the request to a subset of heads and queries."""
        query, key, value, score = self.query, self.key, self.value, self.score
        if heads is not None:
            kv_heads = tuple(head // self.groups for head in heads)
            keys = select_along(key.tensor if isinstance(key, Keys) else key, 1, kv_heads)
            key = Keys(keys) if isinstance(key, Keys) else keys
            query, value = select_along(query, 1, heads), select_along(value, 1, kv_heads)
            score = score.select_heads(heads)
        query = select_along(query, 2, queries)
        shape = self.shape.subset(heads, queries)
        return replace(self, query=query, key=key, value=value, score=score, shape=shape)


def check_tensors(query: object, key: object, value: object) -> None:
    """Raise unless queries, keys and values are tensors; the keys may have been transformed."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) and not (name == "key" and isinstance(tensor, Keys)):
            hint = f": pass torch.from_numpy({name})" if type(tensor).__module__ == "numpy" else ""
            raise InputError(f"{name} must be a tensor, not {_type_name(tensor)}{hint}")


def check_shapes(query: Tensor, key: Tensor | Keys, value: Tensor) -> None:
    """Raise if the shapes, dtypes or devices of the tensors are incompatible."""
    keys = key.tensor if isinstance(key, Keys) else key
    q, k, v = query.shape, keys.shape, value.shape
    if not len(q) == len(k) == len(v) == 4:
        raise ShapeError(
            "query, key and value must have 4 dimensions [batch, heads, length, features], "
            f"not {len(q)}, {len(k)} and {len(v)}: for one head, pass x[:, None] of x [batch, length, features]; for "
            "several, x.unflatten(-1, (heads, -1)).transpose(1, 2)"
        )
    if not (q[0] == k[0] == v[0] and k[1] == v[1] and (q[1] == k[1] or (k[1] and q[1] % k[1] == 0))):
        raise ShapeError(
            f"batch and heads must match, but query has {tuple(q[:2])}, key {tuple(k[:2])} and value {tuple(v[:2])} "
            "(the query heads may be a multiple of the key and value heads)"
        )
    if k[2] != v[2]:
        raise ShapeError(f"keys and values must have the same length, but there are {k[2]} keys and {v[2]} values")
    if q[1] == 0:
        raise ShapeError(f"attention needs at least one head, but query has shape {list(q)}")
    uniform = query.dtype == keys.dtype == value.dtype and query.device == keys.device == value.device
    if not uniform and not torch.is_autocast_enabled(query.device.type):
        kinds = ", ".join(f"{str(x.dtype).removeprefix('torch.')} on {x.device}" for x in (query, keys, value))
        raise ShapeError(f"query, key and value must have the same dtype and device, but they are {kinds}")
    if not query.is_floating_point():
        raise InputError(f"query, key and value must be floating-point tensors, not {query.dtype}")


_CHECKED_TYPES: set[tuple[type, ...]] = set()  # combinations of types that have passed the check


def check_terms(score: object, position: object, mask: object, align: object, start: object) -> None:
    """Raise if a term has the wrong type."""
    types = (type(score), type(align), type(position), type(mask), type(start))
    if torch.compiler.is_compiling() or types in _CHECKED_TYPES:
        return
    terms = (("score", score, Score), ("align", align, Align), ("position", position, Position), ("mask", mask, Mask))
    for name, term, kind in terms:
        if not isinstance(term, kind) and (term is not None or name in ("score", "align")):
            named = _named(name, term) if isinstance(term, str) else term
            cls = named if isinstance(named, type) else type(named)
            hint = f" (did you mean qkv.attention.{cls.__name__}(...)?)" if issubclass(cls, kind) else ""
            if isinstance(term, str) and named is None:
                hint = _similar(name, term, kind)
            elif callable(term) and not isinstance(term, type) and not hint:
                hint = f": write a subclass of qkv.attention.{kind.__name__}"
            if name == "position" and hasattr(cls, "at"):
                hint = f": {cls.__name__} is not a term of attention, but added to the embeddings"
            raise InputError(f"{name} must be a qkv.attention.{kind.__name__}, not {_type_name(term)}{hint}")
    if not (start is None or isinstance(start, int | Tensor)):
        raise InputError(f"start must be an integer or an integer tensor, not {_type_name(start)}")
    _CHECKED_TYPES.add(types)


def _named(kind: str, name: str) -> type | None:
    """Return the class that a user means by a name: that of a recipe, or of a mask in lower case."""
    return _terms(kind).get(name.lower() if kind == "mask" else name)


def _terms(kind: str) -> dict[str, type]:
    """Return the classes of a kind of terms by their names in recipes; masks by their names in lower case."""
    masks = {mask.__name__.lower(): mask for mask in Mask.__subclasses__() if not mask.__name__.startswith("_")}
    return masks if kind == "mask" else dict(registered(kind))


def _similar(kind: str, name: str, base: type) -> str:
    """Return a hint at the term with the most similar name, or at all terms of a kind."""
    terms = {known: term for known, term in _terms(kind).items() if issubclass(term, base)}
    close = difflib.get_close_matches(name.lower(), terms, n=1)
    if close:
        return f" (did you mean qkv.attention.{terms[close[0]].__name__}(...)?)"
    return f" (known: {', '.join(sorted({term.__name__ for term in terms.values()}))})"


def _type_name(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def transform_keys(
    key: Float[Tensor, "batch kv_heads key dim"],
    score: Score,
    position: Position | None = None,
    start: int | Int[Tensor, "*batch"] = 0,
) -> Keys:
    """Transform keys by position and score, once for all later queries; the first key is at position `start`."""
    if position is not None and position.rotates_qk:
        positions = torch.arange(key.shape[2], device=key.device)[None]
        key = position.apply_to_qk(key, positions + (start if isinstance(start, int) else start.view(-1, 1)))
    return score.keys(key)


@final
@dataclass(frozen=True)
class KeyValue:
    """Keys and values of a sequence, split into heads.

    Args:
        key: Keys transformed by the position and the score, [batch, kv_heads, length, features].
        value: Values, [batch, kv_heads, length, value_dim].
    """

    key: Float[Tensor, "batch kv_heads length features"]
    value: Float[Tensor, "batch kv_heads length value_dim"]

    @property
    def length(self) -> int:
        """Number of tokens, i.e. the position of the next one."""
        return self.key.shape[2]

    def append(self, keys: Keys, value: Float[Tensor, "batch kv_heads new value_dim"]) -> "KeyValue":
        """Return a longer copy, extended by new tokens."""
        return KeyValue(torch.cat((self.key, keys.tensor), dim=2), torch.cat((self.value, value), dim=2))


class Backend(ABC):
    """An implementation of attention."""

    name: str
    has_weights: ClassVar[bool] = False  # whether `run` can return the weights it used: samples cannot be recomputed

    @abstractmethod
    def supports(self, request: AttentionRequest) -> str | None:
        """Return None if this backend supports the request, else the reason why not."""

    @abstractmethod
    def run(self, request: AttentionRequest) -> AttentionOutput:
        """Compute a request that this backend supports."""
