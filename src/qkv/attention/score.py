"""Score functions between queries and keys.

Every score compares a transformed query with a transformed key,

    score(q, k) = compare(transform_query(q), transform_key(k)),

so that keys can be transformed once per sequence (`Keys`), and so that scores whose comparison is a dot product run on
the fused kernels, whatever their transformations.

Queries and keys with 0 features have score 0 everywhere, which a softmax turns into uniform weights. `ScaledDot` would
divide by the square root of 0 and raises a `ShapeError` instead.
"""

import copy
import math
from abc import ABC
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.precision import at_least_float32
from qkv.attention.score_shape import Queries, Scores, select_along
from qkv.attention.term import AttentionTerm
from qkv.config import FiniteFloat, PositiveFloat, Size
from qkv.errors import InputError, ShapeError
from qkv.registry import register
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class Keys:
    """Keys already transformed by the position and the score, to be reused by later queries.

    Args:
        tensor: The keys, [batch, kv_heads, key, features].
    """

    tensor: Float[Tensor, "batch kv_heads key features"]


class Sizes(NamedTuple):
    """Sizes of one attention head, from which `from_sizes` builds its score, align function and position.

    Attributes:
        query: Features of a query; the dim of a layer is heads * query.
        key: Features of a key.
        hidden: Default hidden size of an additive score, and default rank of a bilinear one.
        max_keys: Maximum number of keys.
        heads: Number of heads.
        grid: Rows and columns of the patches of an image; None if the keys are no patches.
    """

    query: int
    key: int
    hidden: int
    max_keys: int
    heads: int = 1
    grid: tuple[int, int] | None = None


class Score(AttentionTerm, nn.Module, ABC):
    """Score function between queries and keys; its parameters, if any, are per head or shared by all heads.

    A subclass overrides `forward(query, key)`; or `compare` and the transformations, if keys can be transformed once.

        @qkv.register("score", "gaussian")
        class Gaussian(Score):
            def forward(self, query, key):
                return -torch.cdist(query, key) ** 2 / 2
    """

    def __init__(self) -> None:
        super().__init__()

    def transform_query(self, query: Queries) -> Float[Tensor, "batch heads query features"]:
        """Transform the queries before the comparison."""
        return query

    def transform_key(
        self, key: Float[Tensor, "batch kv_heads key dim"]
    ) -> Float[Tensor, "batch kv_heads key features"]:
        """Transform the keys before the comparison, once per sequence."""
        return key

    def compare(
        self, query: Float[Tensor, "batch heads query features"], key: Float[Tensor, "batch heads key key_features"]
    ) -> Scores:
        """Score each transformed query against each transformed key.

        Returns a new tensor, which masking may modify in place; in float32 if half precision would round or overflow.
        """
        if type(self).forward is Score.forward:
            raise NotImplementedError(f"{type(self).__name__} overrides neither forward nor compare")
        return self.forward(query, key)

    def keys(self, key: Float[Tensor, "batch kv_heads key dim"]) -> Keys:
        """Transform the keys of a sequence once for all later queries."""
        return Keys(self.transform_key(key))

    def forward(self, query: Queries, key: Float[Tensor, "batch heads key key_dim"]) -> Scores:
        """Score each query against each key; the method that a plug-in overrides.

        Args:
            query: The queries, [batch, heads, query, dim].
            key: The keys, [batch, heads, key, key_dim]; shared heads are repeated.

        Returns:
            A new tensor [batch, heads, query, key], which masking may modify in place.
        """
        return self.compare(self.transform_query(query), self.transform_key(key))

    def select_heads(self, heads: tuple[int, ...]) -> "Score":
        """Return this score restricted to some heads, sharing its parameters."""
        if not self._parameters:
            return self
        subset = copy.copy(self)
        subset._parameters = {
            name: weight if weight is None or weight.shape[0] == 1 else select_along(weight, 0, heads)  # type: ignore[misc]
            for name, weight in self._parameters.items()
        }
        return subset


class DotProduct(Score):
    """A score that is a scaled dot product of transformed queries and keys, which fused kernels support."""

    def scale_for(self, features: int) -> float:
        """Scale of the dot product over `features` features."""
        return 1.0

    def compare(
        self, query: Float[Tensor, "batch heads query features"], key: Float[Tensor, "batch heads key key_features"]
    ) -> Scores:
        scale = self.checked_scale(query, key)
        half = query.dtype == key.dtype and query.dtype in (torch.bfloat16, torch.float16)
        if query.is_cuda and half and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # A float32 output of half-precision inputs has no gradient; same result with half the kernel launches.
            products = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(-1, -2), out_dtype=torch.float32)
            return products.mul_(scale).unflatten(0, query.shape[:2])
        return (at_least_float32(query) * scale) @ at_least_float32(key).transpose(-1, -2)

    def checked_scale(
        self, query: Float[Tensor, "batch heads query features"], key: Float[Tensor, "batch kv_heads key key_features"]
    ) -> float:
        """Return the scale of the dot product after checking that query and key have the same number of features."""
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(
                f"{type(self).__name__} needs queries and keys of the same size, but the query has "
                f"{query.shape[-1]} features and the key {key.shape[-1]}: use Bilinear or Additive for different sizes"
            )
        return self.scale_for(query.shape[-1])


@final
@register("score", "dot")
class Dot(DotProduct):
    """q . k"""


@final
@register("score", "scaled_dot")
class ScaledDot(DotProduct):
    """q . k / sqrt(d), or q . k times a given scale (Vaswani et al. 2017).

    With d = 0 features 1 / sqrt(d) is undefined, so a `ShapeError` is raised unless a scale is given.

    Args:
        scale: Factor of q . k; by default 1 / sqrt(d).
    """

    def __init__(self, scale: FiniteFloat | None = None) -> None:  # factor of q . k; unset: 1 / sqrt(d)
        super().__init__()
        self.scale = scale

    def scale_for(self, features: int) -> float:
        if self.scale is not None:
            return self.scale
        if features == 0:
            raise ShapeError("ScaledDot divides by sqrt(d), but query and key have d = 0 features: pass a scale")
        return 1.0 / math.sqrt(features)


@final
@register("score", "bilinear", "general")
class Bilinear(DotProduct):
    """q W k: "general", or multiplicative, attention (Luong, Pham and Manning 2015).

    Args:
        query_dim: Features of a query.
        key_dim: Features of a key.
        heads: Number of heads with a W of their own; 1 shares it among all heads.
    """

    def __init__(self, query_dim: int, key_dim: int, heads: int = 1) -> None:
        super().__init__()
        self.query_dim, self.key_dim, self.heads = query_dim, key_dim, heads
        self.weight = uniform_parameter((heads, query_dim, key_dim), inputs=query_dim)  # W

    def transform_query(self, query: Queries) -> Float[Tensor, "batch heads query key_dim"]:
        return _project(query, self.weight, "query")

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "Bilinear":
        return cls(sizes.query, sizes.key, sizes.heads)


@final
@register("score", "low_rank_bilinear", "low_rank")
class LowRankBilinear(DotProduct):
    """(U q) . (V k): a bilinear score whose matrix U^T V has reduced rank.

    Args:
        query_dim: Features of a query.
        key_dim: Features of a key.
        rank: Rank of U^T V.
        heads: Number of heads with U and V of their own; 1 shares them among all heads.
    """

    def __init__(self, query_dim: int, key_dim: int, rank: int, heads: int = 1) -> None:
        super().__init__()
        if rank < 1:
            raise InputError(f"rank must be at least 1, not {rank}")
        self.query_dim, self.key_dim, self.rank, self.heads = query_dim, key_dim, rank, heads
        self.query_weight = uniform_parameter((heads, query_dim, rank), inputs=query_dim)  # U
        self.key_weight = uniform_parameter((heads, key_dim, rank), inputs=key_dim)  # V

    def transform_query(self, query: Queries) -> Float[Tensor, "batch heads query rank"]:
        return _project(query, self.query_weight, "query")

    def transform_key(self, key: Float[Tensor, "batch kv_heads key dim"]) -> Float[Tensor, "batch kv_heads key rank"]:
        return _project(key, self.key_weight, "key")

    @classmethod
    def from_sizes(cls, sizes: Sizes, *, rank: Size | None = None) -> "LowRankBilinear":  # of U^T V; unset: hidden size
        return cls(sizes.query, sizes.key, sizes.hidden if rank is None else rank, sizes.heads)


@final
@register("score", "cosine")
class Cosine(DotProduct):
    """b q . k / (|q| |k|) with a learned sharpness b > 0: content-based addressing (Graves et al. 2014).

    Args:
        sharpness: Initial value of b.
        heads: Number of heads with a b of their own; 1 shares it among all heads.
    """

    def __init__(self, sharpness: float = 1.0, heads: int = 1) -> None:
        super().__init__()
        if not sharpness > 0:
            raise InputError(f"sharpness must be positive, not {sharpness}")
        self.sharpness, self.heads = sharpness, heads
        self.log_sharpness = nn.Parameter(torch.full((heads,), math.log(sharpness)))  # log b keeps b positive

    def transform_query(self, query: Queries) -> Queries:
        _check_heads(self.log_sharpness.shape[0], query, "query")
        return _normalize(query) * self.log_sharpness.exp()[:, None, None].to(query.dtype)

    def transform_key(self, key: Float[Tensor, "batch kv_heads key dim"]) -> Float[Tensor, "batch kv_heads key dim"]:
        return _normalize(key)

    @classmethod
    def from_sizes(cls, sizes: Sizes, *, sharpness: PositiveFloat = 1.0) -> "Cosine":  # initial factor of the cosine
        return cls(sharpness, sizes.heads)


class HiddenLayer(Score):
    """v . tanh(W q + U k): a feed-forward network with one hidden layer."""

    query_weight: Float[Tensor, "heads query_dim hidden"]  # W
    key_weight: Float[Tensor, "heads key_dim hidden"]  # U
    vector: Float[Tensor, "heads hidden"]  # v

    def transform_query(self, query: Queries) -> Float[Tensor, "batch heads query hidden"]:
        return _project(query, self.query_weight, "query")

    def transform_key(self, key: Float[Tensor, "batch kv_heads key dim"]) -> Float[Tensor, "batch kv_heads key hidden"]:
        return _project(key, self.key_weight, "key")

    def compare(
        self, query: Float[Tensor, "batch heads query hidden"], key: Float[Tensor, "batch heads key hidden"]
    ) -> Scores:
        query, key = query.unsqueeze(-2), key.unsqueeze(-3)
        if query.device.type == "cpu" and query.dtype == torch.float32:
            # tanh x = 2 sigmoid(2 x) - 1, and PyTorch's sigmoid is six times as fast on the CPU
            hidden = torch.add(2 * query, key, alpha=2).sigmoid_()  # b h q k hidden
            return 2 * self._project_hidden(hidden) - self.vector.sum(dim=-1)[:, None, None]
        return self._project_hidden(torch.tanh(query + key))

    def _project_hidden(self, hidden: Float[Tensor, "batch heads query key hidden"]) -> Scores:
        if self.vector.shape[0] == 1:
            return hidden @ self.vector[0]  # a single matrix-vector product
        return (hidden * self.vector[:, None, None]).sum(dim=-1)


@final
@register("score", "additive")
class Additive(HiddenLayer):
    """v . tanh(W q + U k) (Bahdanau, Cho and Bengio 2015).

    Args:
        query_dim: Features of a query.
        key_dim: Features of a key.
        hidden_dim: Size of the tanh layer.
        heads: Number of heads with W, U and v of their own; 1 shares them among all heads.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, heads: int = 1) -> None:
        super().__init__()
        self.query_dim, self.key_dim, self.hidden_dim, self.heads = query_dim, key_dim, hidden_dim, heads
        self.query_weight = uniform_parameter((heads, query_dim, hidden_dim), inputs=query_dim)
        self.key_weight = uniform_parameter((heads, key_dim, hidden_dim), inputs=key_dim)
        self.vector = uniform_parameter((heads, hidden_dim), inputs=hidden_dim)

    @classmethod
    def from_sizes(cls, sizes: Sizes, *, hidden_dim: Size | None = None) -> "Additive":  # size of the tanh layer
        return cls(sizes.query, sizes.key, sizes.hidden if hidden_dim is None else hidden_dim, sizes.heads)


@final
@register("score", "concat")
class Concat(HiddenLayer):
    """v . tanh(W [q ; k]), one matrix for both (Luong, Pham and Manning 2015): `Additive`, its two matrices stacked.

    Args:
        query_dim: Features of a query.
        key_dim: Features of a key.
        hidden_dim: Size of the tanh layer.
        heads: Number of heads with W and v of their own; 1 shares them among all heads.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, heads: int = 1) -> None:
        super().__init__()
        self.query_dim, self.key_dim, self.hidden_dim, self.heads = query_dim, key_dim, hidden_dim, heads
        self.weight = uniform_parameter((heads, query_dim + key_dim, hidden_dim), inputs=query_dim + key_dim)
        self.vector = uniform_parameter((heads, hidden_dim), inputs=hidden_dim)

    @property
    def query_weight(self) -> Float[Tensor, "heads query_dim hidden"]:  # type: ignore[override]
        return self.weight[:, : self.query_dim]

    @property
    def key_weight(self) -> Float[Tensor, "heads key_dim hidden"]:  # type: ignore[override]
        return self.weight[:, self.query_dim :]

    @classmethod
    def from_sizes(cls, sizes: Sizes, *, hidden_dim: Size | None = None) -> "Concat":  # size of the tanh layer
        return cls(sizes.query, sizes.key, sizes.hidden if hidden_dim is None else hidden_dim, sizes.heads)


@final
@register("score", "location")
class Location(Score):
    """W q: a score for each source position, independent of its key (Luong, Pham and Manning 2015).

    Args:
        query_dim: Features of a query.
        max_keys: Maximum number of keys.
        heads: Number of heads with a W of their own; 1 shares it among all heads.
    """

    def __init__(self, query_dim: int, max_keys: int, heads: int = 1) -> None:
        super().__init__()
        self.query_dim, self.max_keys, self.heads = query_dim, max_keys, heads
        self.weight = uniform_parameter((heads, query_dim, max_keys), inputs=query_dim)

    def transform_query(self, query: Queries) -> Float[Tensor, "batch heads query max_keys"]:
        return _project(query, self.weight, "query")

    def compare(
        self, query: Float[Tensor, "batch heads query max_keys"], key: Float[Tensor, "batch heads key dim"]
    ) -> Scores:
        if key.shape[2] > query.shape[-1]:
            raise ShapeError(f"Location supports at most {query.shape[-1]} keys, not {key.shape[2]}")
        return query[..., : key.shape[2]]

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "Location":
        return cls(sizes.query, sizes.max_keys, sizes.heads)


def _project(
    x: Float[Tensor, "batch heads length dim"], weight: Float[Tensor, "heads_or_1 in_dim features"], name: str
) -> Float[Tensor, "batch heads length features"]:
    """x W, with W per head or shared by all heads."""
    heads, dim, _ = weight.shape
    if x.shape[-1] != dim:
        raise ShapeError(f"the score expects a {name} of {dim} features, not {x.shape[-1]}")
    if heads == 1:
        return x @ weight[0]  # one matmul; broadcasting would launch one per batch row
    _check_heads(heads, x, name)
    return torch.einsum("bhld,hdf->bhlf", x, weight)


def _check_heads(heads: int, x: Float[Tensor, "batch heads length dim"], name: str) -> None:
    if heads not in (1, x.shape[1]):
        raise ShapeError(f"the score expects {heads} heads, but the {name} has {x.shape[1]}")


def _normalize(x: Float[Tensor, "batch heads length dim"]) -> Float[Tensor, "batch heads length dim"]:
    """x / max(|x|, 1e-4), computed at least in float32."""
    return F.normalize(at_least_float32(x), dim=-1, eps=1e-4).to(x.dtype)


def uniform_parameter(shape: tuple[int, ...], *, inputs: int) -> nn.Parameter:
    """Parameter initialized uniformly in +-1/sqrt(inputs), like nn.Linear; 0 inputs are allowed."""
    bound = 1.0 / math.sqrt(max(inputs, 1))
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
