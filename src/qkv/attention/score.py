"""Scores: how well each query fits each key.

Every score is a comparison of a transformed query with a transformed key,

    score(q, k) = compare(of_query(q), of_key(k)),

so that keys can be transformed once for a whole sequence (`Keys`), and so that a score whose comparison is a dot
product runs on the fused kernels, whatever it does to queries and keys before. A new score is one class here; `SCORES`
finds it by its name.

A sum over 0 features is 0: queries and keys without features score 0 everywhere, which a softmax turns into uniform
weights. `ScaledDot` divides by the square root of their number and raises a `ShapeError` instead.
"""

import copy
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.extent import pick
from qkv.attention.precision import at_least_float32
from qkv.errors import InputError, ShapeError
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class Keys:
    """Keys that the position and the score have transformed already: what later queries need of a sequence."""

    tensor: Float[Tensor, "batch kv_heads key features"]
    lasting: bool = True  # false where the memory they are in will be written to again


class Sizes(NamedTuple):
    """What a score may need to know of the model it is made for."""

    query: int
    key: int
    hidden: int  # of a network inside the score, or the rank of its matrix
    max_keys: int  # the longest sequence it will be asked to look at
    heads: int = 1


class Score(nn.Module, ABC):
    """Compares queries with keys; the weights of a score, if it has any, are those of each head or one for all."""

    def of_query(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query features"]:
        """What of a query takes part in the comparison."""
        return query

    def of_key(self, key: Float[Tensor, "batch kv_heads key dim"]) -> Float[Tensor, "batch kv_heads key features"]:
        """What of a key takes part in the comparison: computed once per sequence."""
        return key

    @abstractmethod
    def compare(
        self, query: Float[Tensor, "batch heads query features"], key: Float[Tensor, "batch heads key key_features"]
    ) -> Float[Tensor, "batch heads query key"]:
        """Score each transformed query against each transformed key.

        In a new tensor, for a mask may be written into it; in float32 where half precision would round or overflow.
        """

    def keys(self, key: Float[Tensor, "batch kv_heads key dim"]) -> Keys:
        """Transform the keys of a sequence once, for many queries to come."""
        return Keys(self.of_key(key))

    def forward(
        self, query: Float[Tensor, "batch heads query dim"], key: Float[Tensor, "batch heads key key_dim"]
    ) -> Float[Tensor, "batch heads query key"]:
        return self.compare(self.of_query(query), self.of_key(key))

    def of_heads(self, heads: tuple[int, ...]) -> "Score":
        """This score as some of the heads have it, with the same weights and not copies of them."""
        if not self._parameters:
            return self
        part = copy.copy(self)
        part._parameters = {
            name: weight if weight is None or weight.shape[0] == 1 else pick(weight, 0, heads)  # type: ignore[misc]
            for name, weight in self._parameters.items()
        }
        return part

    @classmethod
    def sized(cls, sizes: Sizes) -> "Score":
        """Make this score for the given sizes, as a recipe that names it does; scores without weights ignore them."""
        return cls()


class DotProduct(Score):
    """A score that is a scaled dot product, whatever it does to queries and keys before: fused kernels serve it."""

    @abstractmethod
    def scale_for(self, features: int) -> float:
        """The factor of the dot product over so many features."""

    def compare(
        self, query: Float[Tensor, "batch heads query features"], key: Float[Tensor, "batch heads key key_features"]
    ) -> Float[Tensor, "batch heads query key"]:
        scale = self.checked_scale(query, key)
        if query.is_cuda and query.dtype == key.dtype and _can_widen(query):  # the same numbers in half the kernels
            products = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(-1, -2), out_dtype=torch.float32)
            return products.mul_(scale).unflatten(0, query.shape[:2])
        return (at_least_float32(query) * scale) @ at_least_float32(key).transpose(-1, -2)

    def checked_scale(
        self, query: Float[Tensor, "batch heads query features"], key: Float[Tensor, "batch kv_heads key key_features"]
    ) -> float:
        """The factor of the dot product, after a check that query and key have the same number of features."""
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(
                f"{type(self).__name__} multiplies query and key feature by feature, but the query has "
                f"{query.shape[-1]} to compare and the key {key.shape[-1]}: make them alike, or use a score "
                "made for both sizes (Bilinear, Additive)"
            )
        return self.scale_for(query.shape[-1])


def _can_widen(x: Float[Tensor, "..."]) -> bool:
    """Whether the GPU can multiply these numbers as they are and sum the products in float32; no gradient follows."""
    short = x.dtype in (torch.bfloat16, torch.float16)
    return short and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


@final
class Dot(DotProduct):
    """q . k"""

    def scale_for(self, features: int) -> float:
        return 1.0


@final
class ScaledDot(DotProduct):
    """q . k / sqrt(d), or q . k times a given scale (Vaswani et al. 2017).

    With d = 0 features 1 / sqrt(d) is undefined: a `ShapeError`, unless a scale is given.
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def scale_for(self, features: int) -> float:
        if self.scale is not None:
            return self.scale
        if features == 0:
            raise ShapeError("ScaledDot divides by sqrt(d), but query and key have d = 0 features: give it a scale")
        return 1.0 / math.sqrt(features)


@final
class Bilinear(DotProduct):
    """q W k: "general", or multiplicative, attention (Luong, Pham and Manning 2015)."""

    def __init__(self, query_dim: int, key_dim: int, heads: int = 1) -> None:
        super().__init__()
        self.weight = _uniform((heads, query_dim, key_dim), inputs=query_dim)  # W

    def of_query(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query key_dim"]:
        return _project(query, self.weight, "query")

    def scale_for(self, features: int) -> float:
        return 1.0

    @classmethod
    def sized(cls, sizes: Sizes) -> "Score":
        return cls(sizes.query, sizes.key, sizes.heads)


@final
class LowRankBilinear(DotProduct):
    """(U q) . (V k), a bilinear score whose matrix U^T V has the given rank: fewer weights than W (reduced rank)."""

    def __init__(self, query_dim: int, key_dim: int, rank: int, heads: int = 1) -> None:
        super().__init__()
        if rank < 1:
            raise InputError(f"the rank of a matrix is at least 1, not {rank}")
        self.query_weight = _uniform((heads, query_dim, rank), inputs=query_dim)  # U
        self.key_weight = _uniform((heads, key_dim, rank), inputs=key_dim)  # V

    def of_query(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query rank"]:
        return _project(query, self.query_weight, "query")

    def of_key(self, key: Float[Tensor, "batch kv_heads key dim"]) -> Float[Tensor, "batch kv_heads key rank"]:
        return _project(key, self.key_weight, "key")

    def scale_for(self, features: int) -> float:
        return 1.0

    @classmethod
    def sized(cls, sizes: Sizes) -> "Score":
        return cls(sizes.query, sizes.key, sizes.hidden, sizes.heads)


@final
class Cosine(DotProduct):
    """b q . k / (|q| |k|): content-based addressing, its sharpness b > 0 learned (Graves, Wayne and Danihelka 2014)."""

    def __init__(self, sharpness: float = 1.0, heads: int = 1) -> None:
        super().__init__()
        if not sharpness > 0:
            raise InputError(f"sharpness must be positive, not {sharpness}")
        self.log_sharpness = nn.Parameter(torch.full((heads,), math.log(sharpness)))  # log b: b stays positive

    def of_query(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query dim"]:
        _check_heads(self.log_sharpness.shape[0], query, "query")
        return _direction(query) * self.log_sharpness.exp()[:, None, None].to(query.dtype)

    def of_key(self, key: Float[Tensor, "batch kv_heads key dim"]) -> Float[Tensor, "batch kv_heads key dim"]:
        return _direction(key)

    def scale_for(self, features: int) -> float:
        return 1.0

    @classmethod
    def sized(cls, sizes: Sizes) -> "Score":
        return cls(heads=sizes.heads)


class HiddenLayer(Score):
    """v . tanh(W q + U k): a network with one hidden layer, which compares any query with any key."""

    query_weight: Float[Tensor, "heads query_dim hidden"]  # W
    key_weight: Float[Tensor, "heads key_dim hidden"]  # U
    vector: Float[Tensor, "heads hidden"]  # v

    def of_query(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query hidden"]:
        return _project(query, self.query_weight, "query")

    def of_key(self, key: Float[Tensor, "batch kv_heads key dim"]) -> Float[Tensor, "batch kv_heads key hidden"]:
        return _project(key, self.key_weight, "key")

    def compare(
        self, query: Float[Tensor, "batch heads query hidden"], key: Float[Tensor, "batch heads key hidden"]
    ) -> Float[Tensor, "batch heads query key"]:
        query, key = query.unsqueeze(-2), key.unsqueeze(-3)
        if query.device.type == "cpu" and query.dtype == torch.float32:
            # tanh x = 2 sigmoid(2 x) - 1, and PyTorch's sigmoid is six times as fast there
            hidden = torch.add(2 * query, key, alpha=2).sigmoid_()  # b h q k hidden
            return 2 * self._weigh(hidden) - self.vector.sum(dim=-1)[:, None, None]
        return self._weigh(torch.tanh(query + key))

    def _weigh(self, hidden: Float[Tensor, "batch heads query key hidden"]) -> Float[Tensor, "batch heads query key"]:
        if self.vector.shape[0] == 1:
            return hidden @ self.vector[0]  # one product of a large matrix with a vector
        return (hidden * self.vector[:, None, None]).sum(dim=-1)


@final
class Additive(HiddenLayer):
    """v . tanh(W q + U k) (Bahdanau, Cho and Bengio 2015)."""

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, heads: int = 1) -> None:
        super().__init__()
        self.query_weight = _uniform((heads, query_dim, hidden_dim), inputs=query_dim)
        self.key_weight = _uniform((heads, key_dim, hidden_dim), inputs=key_dim)
        self.vector = _uniform((heads, hidden_dim), inputs=hidden_dim)

    @classmethod
    def sized(cls, sizes: Sizes) -> "Score":
        return cls(sizes.query, sizes.key, sizes.hidden, sizes.heads)


@final
class Concat(HiddenLayer):
    """v . tanh(W [q ; k]), one matrix for both (Luong, Pham and Manning 2015): `Additive`, its two matrices stacked."""

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, heads: int = 1) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.weight = _uniform((heads, query_dim + key_dim, hidden_dim), inputs=query_dim + key_dim)
        self.vector = _uniform((heads, hidden_dim), inputs=hidden_dim)

    @property
    def query_weight(self) -> Float[Tensor, "heads query_dim hidden"]:  # type: ignore[override]
        return self.weight[:, : self.query_dim]

    @property
    def key_weight(self) -> Float[Tensor, "heads key_dim hidden"]:  # type: ignore[override]
        return self.weight[:, self.query_dim :]

    @classmethod
    def sized(cls, sizes: Sizes) -> "Score":
        return cls(sizes.query, sizes.key, sizes.hidden, sizes.heads)


@final
class Location(Score):
    """W q, a score for each place of the source, whatever stands there (Luong, Pham and Manning 2015)."""

    def __init__(self, query_dim: int, max_keys: int, heads: int = 1) -> None:
        super().__init__()
        self.weight = _uniform((heads, query_dim, max_keys), inputs=query_dim)

    def of_query(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query max_keys"]:
        return _project(query, self.weight, "query")

    def compare(
        self, query: Float[Tensor, "batch heads query max_keys"], key: Float[Tensor, "batch heads key dim"]
    ) -> Float[Tensor, "batch heads query key"]:
        if key.shape[2] > query.shape[-1]:
            raise ShapeError(f"Location was made for at most {query.shape[-1]} keys, but there are {key.shape[2]}")
        return query[..., : key.shape[2]]

    @classmethod
    def sized(cls, sizes: Sizes) -> "Score":
        return cls(sizes.query, sizes.max_keys, sizes.heads)


def _project(
    x: Float[Tensor, "batch heads length dim"], weight: Float[Tensor, "heads_or_1 in_dim features"], what: str
) -> Float[Tensor, "batch heads length features"]:
    """x W, with a W for each head or one for all."""
    heads, dim, _ = weight.shape
    if x.shape[-1] != dim:
        raise ShapeError(f"the score was made for a {what} of {dim} features, but it has {x.shape[-1]}")
    if heads == 1:
        return x @ weight[0]  # one matrix product; a broadcast one would be as many small ones as the batch has rows
    _check_heads(heads, x, what)
    return torch.einsum("bhld,hdf->bhlf", x, weight)


def _check_heads(heads: int, x: Float[Tensor, "batch heads length dim"], what: str) -> None:
    if heads not in (1, x.shape[1]):
        raise ShapeError(f"the score was made for {heads} heads, but the {what} has {x.shape[1]}")


def _direction(x: Float[Tensor, "batch heads length dim"]) -> Float[Tensor, "batch heads length dim"]:
    """x / |x|, computed in float32 at least; next to nothing has no direction, and is only made larger."""
    return F.normalize(at_least_float32(x), dim=-1, eps=1e-4).to(x.dtype)


def _uniform(shape: tuple[int, ...], *, inputs: int) -> nn.Parameter:
    """Weights uniform in +-1/sqrt(inputs), as PyTorch's linear layers begin; none at all for 0 inputs."""
    bound = 1.0 / math.sqrt(max(inputs, 1))
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def _finals(cls: type[Score]) -> list[type[Score]]:
    children = cls.__subclasses__()
    return [leaf for child in children for leaf in _finals(child)] if children else [cls]


SCORES = {re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower(): cls for cls in _finals(Score)}  # type: ignore[type-abstract]
SCORES |= {"general": Bilinear, "low_rank": LowRankBilinear}  # as papers and lectures call them
