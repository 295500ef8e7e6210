"""Maps between our parameter names and those of released models, used for loading and saving."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from qkv.types import Tensor


@dataclass(frozen=True)
class Weight:
    """One of our parameters and the released tensors it consists of."""

    ours: str  # name in named_parameters()
    theirs: tuple[str | None, ...]  # several are concatenated along dim 0, e.g. W_Q, W_K, W_V; None: zeros, not stored
    transposed: bool = False  # the file stores [in, out]
    batched: bool = False  # the file stores [1, ...]
    rows: tuple[int, ...] = ()  # of each released tensor; by default equal parts

    @property
    def names(self) -> list[str]:
        """The released tensors."""
        return [name for name in self.theirs if name is not None]


def pair(ours: str, *theirs: str, transposed: bool = False) -> list[Weight]:
    """Map the weight and bias of one of our layers to one or more released layers; biases are never transposed."""
    return [
        Weight(f"{ours}.weight", tuple(f"{layer}.weight" for layer in theirs), transposed),
        Weight(f"{ours}.bias", tuple(f"{layer}.bias" for layer in theirs)),
    ]


def bart_ffn(ours: str, theirs: str) -> list[Weight]:
    """Map a feed-forward network and its normalization, with the names of BART and of the models derived from it."""
    network = pair(f"{ours}.ffn.up_proj", f"{theirs}.fc1") + pair(f"{ours}.ffn.down_proj", f"{theirs}.fc2")
    return network + pair(f"{ours}.ffn_norm", f"{theirs}.final_layer_norm")


@dataclass(frozen=True)
class WeightMap:
    """All weights of a model; each name occurs once on either side."""

    weights: tuple[Weight, ...]
    copies: Mapping[str, str] = field(default_factory=dict)  # optional duplicates: name -> original
    ignored: tuple[str, ...] = ()  # regular expressions (full match) of tensors to skip
    prefix: str = ""  # missing in files that contain only the base model
    spellings: Mapping[str, str] = field(default_factory=dict)  # suffixes in old files -> current suffixes


@dataclass(frozen=True)
class Family:
    """A released model type: config conversion and weight map."""

    model_type: str  # in config.json
    network: type[nn.Module]
    read_config: Callable[[Mapping[str, Any], Collection[str]], Any]  # (config.json, tensor names) -> config
    write_config: Callable[[Any], dict[str, Any]]
    weights: Callable[[Any], WeightMap]  # config -> weight map
    constants: Callable[[Any], dict[str, Tensor]] = lambda model: {}  # other tensors to write, ignored when reading
    accepts: Callable[[Any], bool] = lambda config: True  # whether a model with this config is written as this family


@dataclass(frozen=True)
class OriginalRelease:
    """A model in files of another format, without a model_type in config.json."""

    network: type[nn.Module]
    load: Callable[[torch.device, torch.dtype | None], Any]
