"""How a family of released models names its weights, there and here: one table, read in both directions."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Weight:
    """One of our parameters, and the tensors of the released file that it is made of."""

    ours: str  # as in named_parameters()
    theirs: tuple[str, ...]  # several are parts of ours, one below the other: W_Q, W_K and W_V are one matrix here
    transposed: bool = False  # the file has each of them as [in, out]


def pair(ours: str, *theirs: str, transposed: bool = False) -> list[Weight]:
    """The weight and the bias of a layer, which is one of theirs or several; only weights are ever transposed."""
    return [
        Weight(f"{ours}.weight", tuple(f"{layer}.weight" for layer in theirs), transposed),
        Weight(f"{ours}.bias", tuple(f"{layer}.bias" for layer in theirs)),
    ]


@dataclass(frozen=True)
class WeightMap:
    """All weights of a model, each named once on both sides."""

    weights: tuple[Weight, ...]
    copies: Mapping[str, str] = field(default_factory=dict)  # what a file may hold besides: the same tensor as another
    ignored: tuple[str, ...] = ()  # whole names, as regular expressions, of what a file may hold and is no weight
    prefix: str = ""  # which a file may leave out in front of every name that has it: it holds the body alone
    spellings: Mapping[str, str] = field(default_factory=dict)  # endings of names as old files spell them, and as here


@dataclass(frozen=True)
class Family:
    """A kind of released model: how its config.json is read and written, and its map of weights."""

    model_type: str  # as config.json has it
    network: type[nn.Module]
    read_config: Callable[[Mapping[str, Any], Collection[str]], Any]  # config.json and the tensors' names: our config
    write_config: Callable[[Any], dict[str, Any]]
    weights: Callable[[Any], WeightMap]  # for a config
    # From the folder's files; None: it has none.
    read_tokenizer: Callable[[Path, Any], Any] = lambda folder, config: None
