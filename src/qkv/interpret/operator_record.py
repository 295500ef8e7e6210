"""The operands and results of attention in single heads: queries, keys, scores, mask, weights, values and outputs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float

from qkv.attention import Attend
from qkv.attention.backends.reference import REFERENCE, repeat_kv
from qkv.attention.score import DotProduct
from qkv.attention.spec import AttentionRequest
from qkv.types import Tensor

MATRICES = 3  # of a head with a number for each query and key: scores, allowed, weights


class HeadOperator(NamedTuple):
    """One head of a layer on one input: scores = score(query, key), weights = align(mask(scores))."""

    layer: str
    head: int
    score: str  # formula of the score
    align: str  # formula of the align function
    scale: float | None  # scores are scale * query . key (plus a bias of the position); None: not a dot product
    biased: bool  # whether a position adds a bias to the scores
    adds_to_output: bool  # whether a position adds to the output
    query: Float[np.ndarray, "queries features"]  # transformed by the position and the score
    key: Float[np.ndarray, "keys key_features"]
    value: Float[np.ndarray, "keys value_features"]
    scores: Float[np.ndarray, "queries keys"]  # before the mask
    allowed: Bool[np.ndarray, "queries keys"]
    weights: Float[np.ndarray, "queries keys"]
    output: Float[np.ndarray, "queries value_features"]


class OperatorRecording:
    """Heads of the layers of a model, recorded by `record_operator`."""

    def __init__(self) -> None:
        self._calls: dict[str, list[tuple[AttentionRequest, Tensor | None]]] = {}

    def add(self, layer: str, request: AttentionRequest, weights: Tensor | None) -> None:
        """Record a call of a layer."""
        self._calls.setdefault(layer, []).append((request, weights))

    def heads(self, max_numbers: int) -> tuple[HeadOperator, ...]:
        """Return the heads of the layers called once, for the first batch row, as many as fit into `max_numbers`."""
        heads: list[HeadOperator] = []
        for layer, calls in self._calls.items():
            if len(calls) > 1:  # a recurrent model, which attends token by token
                continue
            request, weights = calls[0]
            numbers = _numbers(request)
            for head in range(request.shape.heads):
                max_numbers -= numbers
                if max_numbers < 0:
                    return tuple(heads)
                heads.append(_head(layer, head, request, weights))
        return tuple(heads)

    def masks(self) -> dict[str, Bool[np.ndarray, "queries keys"]]:
        """Return which keys the queries of a layer may attend to in any head, of masked layers called once."""
        return {
            layer: request.mask.to_dense(request.shape)[0].any(dim=0).expand(request.shape[2:4]).cpu().numpy()
            for layer, [(request, _), *others] in self._calls.items()
            if request.mask is not None and not others
        }


@contextmanager
def record_operator(layers: Mapping[str, Attend], names: Sequence[str]) -> Iterator[OperatorRecording]:
    """Record the calls of some of a model's attention layers inside a `with` block."""
    recording = OperatorRecording()
    before = {name: layers[name].watchers for name in names}
    for name, watchers in before.items():
        layers[name].watchers = (
            *watchers,
            lambda request, weights, name=name: recording.add(name, request, weights),  # type: ignore[misc]
        )
    try:
        yield recording
    finally:
        for name, watchers in before.items():
            layers[name].watchers = watchers


def _numbers(request: AttentionRequest) -> int:
    """Return the size of the record of one head."""
    shape, features = request.shape, request.query.shape[-1]
    values = request.value.shape[-1]
    return (shape.queries + shape.keys) * (features + values) + MATRICES * shape.queries * shape.keys


@torch.no_grad()
def _head(layer: str, head: int, request: AttentionRequest, weights: Tensor | None) -> HeadOperator:
    selected = request.subset((head,), None)
    query, key = selected.features()
    position = selected.position
    scores = REFERENCE.align_input(replace(selected, mask=None)).scores
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if selected.mask is not None:
        allowed = selected.mask.to_dense(selected.shape).expand_as(scores)
    seen = REFERENCE.weights(selected) if weights is None else weights[:, head : head + 1]
    output = seen.to(selected.value.dtype) @ repeat_kv(selected.value, selected.groups)
    if position is not None and position.adds_to_output:
        output = output + position.add_to_output(seen.to(selected.value.dtype), selected.shape)
    arrays = (query, key, selected.value, scores, allowed, seen, output)
    return HeadOperator(
        layer,
        head,
        _formula(selected.score),
        _formula(selected.align),
        selected.score.checked_scale(query, key) if isinstance(selected.score, DotProduct) else None,
        position is not None and position.adds_bias,
        position is not None and position.adds_to_output,
        *(_array(values) for values in arrays),
    )


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = (values if values.dtype == torch.bool else values.float())[0, 0].cpu().numpy()
    return array


def _formula(term: object) -> str:
    """Return the formula of a term, with which its docstring begins."""
    first = (type(term).__doc__ or type(term).__name__).splitlines()[0].rstrip(".")
    return re.split(r", | with |: | \((?=[A-Z][a-z])", first)[0]
