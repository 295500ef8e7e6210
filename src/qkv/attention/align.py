"""Alignments: from the scores of a query to the weights of its keys."""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch

from qkv.attention.extent import Extent
from qkv.attention.mask import Mask
from qkv.errors import InputError
from qkv.types import Bool, Float, Tensor


class SoftmaxForm(NamedTuple):
    """An alignment as the fused kernels can compute it: a softmax of scores / temperature, over the keys of a mask."""

    temperature: float = 1.0
    mask: Mask | None = None


class Align(ABC):
    """Turns scores into weights."""

    @abstractmethod
    def weigh(
        self,
        scores: Float[Tensor, "batch heads query key"],
        allowed: Bool[Tensor, "#batch #heads #query #key"] | None,
        query: Float[Tensor, "batch heads query dim"],
        extent: Extent,
    ) -> Float[Tensor, "batch heads query key"]:
        """The weights of each query.

        Keys that the mask forbids come with the lowest finite score, and their weights are set to zero afterwards.
        """

    def as_softmax(self) -> SoftmaxForm | None:
        """How a fused softmax computes these weights; None where it cannot."""
        return None


@final
class Softmax(Align):
    """exp(s / T) / sum exp(s / T): every key gets a share (soft attention)."""

    def __init__(self, temperature: float = 1.0) -> None:
        if not temperature > 0:
            raise InputError(f"temperature must be positive, not {temperature}")
        self.temperature = temperature

    def weigh(
        self,
        scores: Float[Tensor, "batch heads query key"],
        allowed: Bool[Tensor, "#batch #heads #query #key"] | None,
        query: Float[Tensor, "batch heads query dim"],
        extent: Extent,
    ) -> Float[Tensor, "batch heads query key"]:
        return torch.softmax(cooled(scores, self.temperature, allowed), dim=-1)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(self.temperature)


@final
class Uniform(Align):
    """1 / n for each of the n keys that are seen, whatever they score: mean pooling."""

    def weigh(
        self,
        scores: Float[Tensor, "batch heads query key"],
        allowed: Bool[Tensor, "#batch #heads #query #key"] | None,
        query: Float[Tensor, "batch heads query dim"],
        extent: Extent,
    ) -> Float[Tensor, "batch heads query key"]:
        return torch.softmax(cooled(scores, math.inf, allowed), dim=-1)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(temperature=math.inf)


def cooled(
    scores: Float[Tensor, "batch heads query key"],
    temperature: float,
    allowed: Bool[Tensor, "#batch #heads #query #key"] | None,
) -> Float[Tensor, "batch heads query key"]:
    """scores / T, forbidden ones still at the lowest finite number: a row of nothing but -inf has no softmax."""
    if temperature == 1.0:
        return scores
    scores = scores / temperature
    return scores if allowed is None else scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
