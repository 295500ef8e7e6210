"""Scores: how well each query fits each key.

Every score is a comparison of a transformed query with a transformed key,

    score(q, k) = compare(of_query(q), of_key(k)),

so that keys can be transformed once for a whole sequence (`Keys`), and so that a score whose comparison is a dot
product runs on the fused kernels. A new score is one class here; `SCORES` finds it by its name.
"""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from qkv.errors import ShapeError
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class Keys:
    """Keys that a score has taken through `of_key` already."""

    tensor: Float[Tensor, "batch heads key features"]


class Score(nn.Module, ABC):
    """Compares queries with keys."""

    def of_query(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query features"]:
        """What of a query takes part in the comparison."""
        return query

    def of_key(self, key: Float[Tensor, "batch heads key dim"]) -> Float[Tensor, "batch heads key features"]:
        """What of a key takes part in the comparison: computed once per sequence."""
        return key

    @abstractmethod
    def compare(
        self, query: Float[Tensor, "batch heads query features"], key: Float[Tensor, "batch heads key features"]
    ) -> Float[Tensor, "batch heads query key"]:
        """Score each transformed query against each transformed key."""

    def keys(self, key: Float[Tensor, "batch heads key dim"]) -> Keys:
        """Transform the keys of a sequence once, for many queries to come."""
        return Keys(self.of_key(key))

    def forward(
        self, query: Float[Tensor, "batch heads query dim"], key: Float[Tensor, "batch heads key dim_k"] | Keys
    ) -> Float[Tensor, "batch heads query key"]:
        keys = key if isinstance(key, Keys) else self.keys(key)
        return self.compare(self.of_query(query), keys.tensor)

    @classmethod
    def sized(cls, query_dim: int, key_dim: int, hidden_dim: int, heads: int = 1) -> "Score":
        """Make this score for the given sizes, as a recipe that names it does; scores without weights ignore them."""
        return cls()


class DotProduct(Score):
    """A score that is a scaled dot product, whatever it does to queries and keys before: fused kernels serve it."""

    @abstractmethod
    def scale_for(self, features: int) -> float:
        """The factor of the dot product over so many features."""

    def as_dot(
        self, query: Float[Tensor, "batch heads query dim"], key: Float[Tensor, "batch heads key key_dim"] | Keys
    ) -> tuple[Float[Tensor, "batch heads query features"], Float[Tensor, "batch heads key features"], float]:
        """The (q, k, s) of which s * (q . k) is the score."""
        query = self.of_query(query)
        key = key.tensor if isinstance(key, Keys) else self.of_key(key)
        return query, key, self._checked_scale(query, key)

    def compare(
        self, query: Float[Tensor, "batch heads query features"], key: Float[Tensor, "batch heads key key_features"]
    ) -> Float[Tensor, "batch heads query key"]:
        return (query * self._checked_scale(query, key)) @ key.transpose(-1, -2)

    def _checked_scale(self, query: Tensor, key: Tensor) -> float:
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(
                f"{type(self).__name__} multiplies query and key feature by feature, but the query has "
                f"{query.shape[-1]} and the key {key.shape[-1]}: project one of them, or use Additive"
            )
        return self.scale_for(query.shape[-1])


@final
class Dot(DotProduct):
    """q . k"""

    def scale_for(self, features: int) -> float:
        return 1.0


@final
class ScaledDot(DotProduct):
    """q . k / sqrt(d), or q . k times a given scale (Vaswani et al. 2017)."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def scale_for(self, features: int) -> float:
        return 1.0 / math.sqrt(features) if self.scale is None else self.scale


@final
class Additive(Score):
    """v . tanh(W q + U k), a network with one hidden layer (Bahdanau, Cho and Bengio 2015)."""

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, heads: int = 1) -> None:
        super().__init__()
        self.query_weight = _uniform((heads, query_dim, hidden_dim), inputs=query_dim)  # W
        self.key_weight = _uniform((heads, key_dim, hidden_dim), inputs=key_dim)  # U
        self.vector = _uniform((heads, hidden_dim), inputs=hidden_dim)  # v

    def of_query(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query hidden"]:
        return _project(query, self.query_weight)

    def of_key(self, key: Float[Tensor, "batch heads key dim"]) -> Float[Tensor, "batch heads key hidden"]:
        return _project(key, self.key_weight)

    def compare(
        self, query: Float[Tensor, "batch heads query hidden"], key: Float[Tensor, "batch heads key hidden"]
    ) -> Float[Tensor, "batch heads query key"]:
        hidden = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))  # b h q k hidden
        if self.vector.shape[0] == 1:
            return hidden @ self.vector[0]  # one product of a large matrix with a vector
        return (hidden * self.vector[:, None, None]).sum(dim=-1)

    @classmethod
    def sized(cls, query_dim: int, key_dim: int, hidden_dim: int, heads: int = 1) -> "Score":
        return cls(query_dim, key_dim, hidden_dim, heads)


def _project(x: Float[Tensor, "batch heads length dim"], weight: Float[Tensor, "heads_or_1 dim features"]) -> Tensor:
    """x W, with a W for each head or one for all."""
    if weight.shape[0] == 1:
        return x @ weight[0]  # one matrix product; a broadcast one would be as many small ones as the batch has rows
    return torch.einsum("bhld,hdf->bhlf", x, weight)


def _uniform(shape: tuple[int, ...], *, inputs: int) -> nn.Parameter:
    """Weights uniform in +-1/sqrt(inputs), as PyTorch's linear layers begin."""
    bound = 1.0 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def _finals(cls: type[Score]) -> list[type[Score]]:
    children = cls.__subclasses__()
    return [leaf for child in children for leaf in _finals(child)] if children else [cls]


SCORES = {re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower(): cls for cls in _finals(Score)}  # type: ignore[type-abstract]
