"""A family of released models that is small, and has one of everything that a map of weights can say."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.config import build, require
from qkv.hub.weight_map import Family, Weight, WeightMap
from qkv.runtime.documents import read_text
from qkv.tokenizers import CharTokenizer


@dataclass(frozen=True)
class Config:
    """Two sizes, and whether there is a head."""

    vocab_size: int
    dim: int
    positions: int = 4
    head: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "positions"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")


class Toy(nn.Module):
    """Weights of all kinds; what they compute is not the point."""

    tokenizer: Any = None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.project = nn.Linear(config.dim, 3 * config.dim)
        self.norm = nn.LayerNorm(config.dim)
        self.gain = nn.Parameter(torch.ones(()))
        self.register_buffer("table", torch.arange(config.positions), persistent=False)
        if config.head:
            self.head = nn.Linear(config.dim, config.vocab_size)
            self.head.weight = self.embed.weight


def read_config(data: Mapping[str, Any], names: Collection[str]) -> Config:
    known = {"vocab_size": "vocab_size", "hidden_size": "dim", "max_position_embeddings": "positions"}
    values = {ours: data[theirs] for theirs, ours in known.items() if theirs in data}
    return build(Config, {**values, "head": any(name.endswith("head.bias") for name in names)}, "toy")


def write_config(config: Config) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "max_position_embeddings": config.positions,
    }


def weights(config: Config) -> WeightMap:
    body = (
        Weight("embed.weight", ("toy.words.weight",)),
        Weight("project.weight", ("toy.query.weight", "toy.key.weight", "toy.value.weight"), transposed=True),
        Weight("project.bias", ("toy.query.bias", "toy.key.bias", "toy.value.bias")),
        Weight("norm.weight", ("toy.norm.weight",)),
        Weight("norm.bias", ("toy.norm.bias",)),
        Weight("gain", ("toy.gain",)),
    )
    return WeightMap(
        (*body, Weight("head.bias", ("head.bias",))) if config.head else body,
        copies={"head.weight": "toy.words.weight"},
        ignored=(r"toy\.position_ids",),
        prefix="toy.",
        spellings={"norm.gamma": "norm.weight", "norm.beta": "norm.bias"},
    )


def read_tokenizer(folder: Path, path: Path) -> Any:
    return CharTokenizer.train([read_text(path, 2**10)])


TOY = Family("toy", Toy, read_config, write_config, weights)


def made(**options: Any) -> Toy:
    torch.manual_seed(5)
    model = Toy(Config(**{"vocab_size": 7, "dim": 4} | options)).eval()
    for weight in model.parameters():
        nn.init.normal_(weight)
    return model


def theirs(model: Toy) -> dict[str, torch.Tensor]:
    """The tensors of a released file, by hand: what the map must come to."""
    query, key, value = model.project.weight.detach().split(model.config.dim)
    tensors = {
        "toy.words.weight": model.embed.weight,
        "toy.query.weight": query.t().contiguous(),
        "toy.key.weight": key.t().contiguous(),
        "toy.value.weight": value.t().contiguous(),
        "toy.norm.weight": model.norm.weight,
        "toy.norm.bias": model.norm.bias,
        "toy.gain": model.gain,
    }
    names = ("toy.query.bias", "toy.key.bias", "toy.value.bias")
    tensors |= dict(zip(names, model.project.bias.split(model.config.dim), strict=True))
    if model.config.head:
        tensors["head.bias"] = model.head.bias
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def config_json(model: Toy) -> dict[str, Any]:
    return {"model_type": "toy", **write_config(model.config), "architectures": ["ToyModel"]}


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, its = dict(one.named_parameters()), dict(other.named_parameters())
    return mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in mine)
