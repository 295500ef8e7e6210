"""What the operator is asked, what it answers, and what a backend must be able to say and do."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from qkv.attention.align import Align
from qkv.attention.extent import Extent, pick
from qkv.attention.mask import Mask, Visible
from qkv.attention.position import Position
from qkv.attention.score import Keys, Score
from qkv.errors import InputError, ShapeError
from qkv.types import Float, Int, Tensor


class Attended(NamedTuple):
    """What attention read, and (where they were asked for) the weights and log-sum-exp behind it."""

    output: Float[Tensor, "batch heads query value_dim"]
    weights: Float[Tensor, "batch heads query key"] | None = None
    lse: Float[Tensor, "batch heads query"] | None = None


@dataclass(slots=True)
class Request:
    """One call of the operator: tensors, terms, and where it stands."""

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key key_dim"] | Keys
    value: Float[Tensor, "batch kv_heads key value_dim"]
    score: Score
    position: Position | None
    mask: Mask | None
    align: Align
    dropout: float
    need_weights: bool
    extent: Extent
    visible: Visible | None = None  # the mask as tensors, where a plan has made them already

    @property
    def grouped(self) -> bool:
        """Whether several heads share a head of keys and values."""
        if self.extent.heads != self.value.shape[1]:  # noqa: SIM103 (it decides, also where sizes are symbols)
            return True
        return False

    @property
    def groups(self) -> int:
        """How many heads share a head of keys and values."""
        return self.extent.heads // self.value.shape[1]

    def features(
        self,
    ) -> tuple[Float[Tensor, "batch heads query features"], Float[Tensor, "batch kv_heads key key_features"]]:
        """What of queries and keys is compared: first the position turns them, then the score transforms them."""
        return self.score.of_query(self.turned_query()), self.prepared_keys().tensor

    def turned_query(self) -> Float[Tensor, "batch heads query dim"]:
        """The queries after the position has turned them."""
        if self.position is None or not self.position.turns:
            return self.query
        return self.position.turn(self.query, self.extent.places())

    def prepared_keys(self) -> Keys:
        """The keys as the score compares them."""
        return self.key if isinstance(self.key, Keys) else prepare(self.key, self.score, self.position)

    def see(self, further: Mask | None = None) -> Visible | None:
        """The mask as tensors, together with a further one; None where neither forbids anything."""
        if further is not None:
            return (further if self.mask is None else self.mask & further).visible(self.extent)
        if self.visible is None and self.mask is not None:
            return self.mask.visible(self.extent)
        return self.visible

    def of(self, heads: tuple[int, ...] | None, queries: tuple[int, ...] | None) -> "Request":
        """The same request for some heads and queries only."""
        query, key, value, score = self.query, self.key, self.value, self.score
        if heads is not None:
            shared = tuple(head // self.groups for head in heads)
            key = Keys(pick(key.tensor, 1, shared)) if isinstance(key, Keys) else pick(key, 1, shared)
            query, value, score = pick(query, 1, heads), pick(value, 1, shared), score.of_heads(heads)
        query = pick(query, 2, queries)
        extent = self.extent.of(heads, queries)
        return replace(self, query=query, key=key, value=value, score=score, extent=extent, visible=None)


def check_shapes(query: Tensor, key: Tensor | Keys, value: Tensor) -> None:
    """Raise where the tensors of a request do not fit together."""
    keys = key.tensor if isinstance(key, Keys) else key
    q, k, v = query.shape, keys.shape, value.shape
    if not len(q) == len(k) == len(v) == 4:
        raise ShapeError(
            "attend takes query, key and value of 4 dimensions [batch, heads, length, features], "
            f"but they have {len(q)}, {len(k)} and {len(v)}"
        )
    if not (q[0] == k[0] == v[0] and k[1] == v[1] and (q[1] == k[1] or (k[1] and q[1] % k[1] == 0))):
        raise ShapeError(
            f"batch and heads must agree, but query has {tuple(q[:2])}, key {tuple(k[:2])} and value {tuple(v[:2])} "
            "(several heads of queries may share one head of keys and values)"
        )
    if k[2] != v[2]:
        raise ShapeError(f"each key needs its value, but there are {k[2]} keys and {v[2]} values")
    if q[1] == 0:
        raise ShapeError(f"attention needs a head at least, but query has shape {list(q)}")
    alike = query.dtype == keys.dtype == value.dtype and query.device == keys.device == value.device
    if not alike and not torch.is_autocast_enabled(query.device.type):
        kinds = ", ".join(f"{str(x.dtype).removeprefix('torch.')} on {x.device}" for x in (query, keys, value))
        raise ShapeError(f"query, key and value must be of one dtype and on one device, but they are {kinds}")


_FITTING: set[tuple[type, ...]] = set()  # the types that were seen to fit: to look at them once is enough


def check_terms(score: object, position: object, mask: object, align: object, start: object) -> None:
    """Raise where something else was given in place of a term."""
    types = (type(score), type(align), type(position), type(mask), type(start))
    if torch.compiler.is_compiling() or types in _FITTING:
        return
    terms = (("score", score, Score), ("align", align, Align), ("position", position, Position), ("mask", mask, Mask))
    for name, term, kind in terms:
        if not isinstance(term, kind) and (term is not None or name in ("score", "align")):
            hint = f": write {term.__name__}(...)" if isinstance(term, type) else ""
            raise InputError(f"{name} takes an object of qkv.attention.{kind.__name__}, not {_named(term)}{hint}")
    if not (start is None or isinstance(start, int | Tensor)):
        raise InputError(f"start takes a whole number or a tensor of them, not {_named(start)}")
    _FITTING.add(types)


def _named(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"


def prepare(
    key: Float[Tensor, "batch kv_heads key dim"],
    score: Score,
    position: Position | None = None,
    start: int | Int[Tensor, "*batch"] = 0,
) -> Keys:
    """Keys as a score compares them: computed once, for many queries to come. The first stands at place `start`."""
    if position is not None and position.turns:
        places = torch.arange(key.shape[2], device=key.device)[None]
        key = position.turn(key, places + (start if isinstance(start, int) else start.view(-1, 1)))
    return score.keys(key)


class Backend(ABC):
    """One way to compute attention."""

    name: str

    @abstractmethod
    def supports(self, request: Request) -> str | None:
        """None where this backend can serve the request, else the reason why not."""

    @abstractmethod
    def run(self, request: Request) -> Attended:
        """Compute a request that this backend supports."""
