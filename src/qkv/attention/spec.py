"""What the operator is asked, what it answers, and what a backend must be able to say and do."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from qkv.attention.align import Align
from qkv.attention.mask import Extent, Mask
from qkv.attention.position import Position
from qkv.attention.score import Keys, Score
from qkv.errors import ShapeError
from qkv.types import Bool, Float, Tensor


class Attended(NamedTuple):
    """What attention read, and (where they were asked for) the weights and log-sum-exp behind it."""

    output: Float[Tensor, "batch heads query value_dim"]
    weights: Float[Tensor, "batch heads query key"] | None = None
    lse: Float[Tensor, "batch heads query"] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the operator: tensors and terms."""

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch heads key key_dim"] | Keys
    value: Float[Tensor, "batch heads key value_dim"]
    score: Score
    position: Position | None
    mask: Mask | None
    align: Align
    dropout: float
    need_weights: bool

    @property
    def key_tensor(self) -> Float[Tensor, "batch heads key features"]:
        return self.key.tensor if isinstance(self.key, Keys) else self.key

    @property
    def extent(self) -> Extent:
        batch, heads, queries, _ = self.query.shape
        return Extent(batch, heads, queries, self.value.shape[2], self.query.device)

    def positioned(
        self,
    ) -> tuple[Float[Tensor, "batch heads query dim"], Float[Tensor, "batch heads key dim_k"] | Keys]:
        """Query and key after the position term has turned them."""
        if self.position is None:
            return self.query, self.key
        assert not isinstance(self.key, Keys), "no backend supports a position term on keys that were prepared"
        return self.position.turn(self.query, self.key)

    def allowed(self) -> Bool[Tensor, "#batch #heads #query #key"] | None:
        """The mask as a tensor that broadcasts to the scores; None where there is none."""
        if self.mask is None:
            return None
        allowed = self.mask.materialise(self.extent)
        scores = self.extent[:4]
        if allowed.ndim != 4 or any(one not in (1, other) for one, other in zip(allowed.shape, scores, strict=True)):
            raise ShapeError(
                f"the mask {type(self.mask).__name__} has shape {list(allowed.shape)}, which does not broadcast to "
                f"scores of shape {list(scores)} [batch, heads, query, key]"
            )
        return allowed

    def check(self) -> None:
        """Raise where the tensors do not fit together."""
        query, key, value = self.query.shape, self.key_tensor.shape, self.value.shape
        if not len(query) == len(key) == len(value) == 4:
            raise ShapeError(
                "attend takes query, key and value of 4 dimensions [batch, heads, length, features], "
                f"but they have {len(query)}, {len(key)} and {len(value)}"
            )
        if not query[:2] == key[:2] == value[:2]:
            raise ShapeError(
                f"batch and heads must agree, but query has {tuple(query[:2])}, key {tuple(key[:2])} "
                f"and value {tuple(value[:2])}"
            )
        if key[2] != value[2]:
            raise ShapeError(f"each key needs its value, but there are {key[2]} keys and {value[2]} values")


class Backend(ABC):
    """One way to compute attention."""

    name: str

    @abstractmethod
    def supports(self, request: Request) -> str | None:
        """None where this backend can serve the request, else the reason why not."""

    @abstractmethod
    def run(self, request: Request) -> Attended:
        """Compute a request that this backend supports."""
