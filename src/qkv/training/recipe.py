"""Recipes: what to train on what, as short TOML files that hold only what differs from the defaults."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from qkv.config import build, nearest, override, read_toml, require
from qkv.data.registry import DataConfig
from qkv.errors import InputError
from qkv.models import MODELS

FROM_DATA = ("source_size", "target_size")  # keys of a model's config that the vocabulary decides


@dataclass(frozen=True)
class TrainConfig:
    """How to train."""

    epochs: int = 10
    batch_tokens: int = 4096  # tokens of the longer side in a batch, padding counted
    lr: float = 1e-3
    warmup: int = 100  # steps in which the learning rate rises from 0 to lr
    decay: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"
    weight_decay: float = 0.01
    clip: float = 1.0  # the largest norm of the gradient
    label_smoothing: float = 0.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on a GPU, float32 on the CPU
    validate_every: int = 500  # steps
    valid_size: int = 500  # how many validation pairs to look at
    save_every: int = 500  # steps
    keep: int = 2  # how many checkpoints to keep, besides the best
    best_by: Literal["loss", "exact", "bleu", "chrf"] = "loss"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_tokens", "validate_every", "valid_size", "save_every", "keep"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        require(0 < self.lr < math.inf, "lr must be positive and finite")
        require(self.clip > 0, "clip must be positive")
        require(self.warmup >= 0, "warmup must not be negative")
        require(self.weight_decay >= 0, "weight_decay must not be negative")
        require(0 <= self.label_smoothing < 1, "label_smoothing must lie in [0, 1)")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run."""

    task: Literal["translate"] = "translate"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"name": "rnn_seq2seq"})
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**31, "seed must lie between 0 and 2^31 - 1")

    def model_config(self, vocabulary: int, where: str = "recipe") -> Any:
        """The model's own config, completed with the size of the vocabulary."""
        table = dict(self.model)
        name = table.pop("name", None)
        if not isinstance(name, str) or name not in MODELS:
            raise InputError(f"{where}: model.name {name!r} is not known{nearest(str(name), MODELS)}")
        for key in FROM_DATA:
            if key in table:
                raise InputError(f"{where}: model.{key} follows from the data; leave it out")
        return build(MODELS[name][1], table | dict.fromkeys(FROM_DATA, vocabulary), where, prefix="model.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_recipe(name: str, assignments: Iterable[str] = ()) -> Recipe:
    """Read a recipe by its name or its path, and apply `a.b=value` assignments; every key is checked."""
    path = recipe_path(name)
    where = f"recipe {name}"
    recipe = build(Recipe, override(read_toml(path), assignments), where)
    recipe = replace(recipe, data=recipe.data.with_whole_paths())
    recipe.model_config(1, where)  # a wrong key should be told before any data are loaded
    return recipe


def recipe_path(name: str) -> Path:
    """The file of a recipe that comes with qkv, or of the user's own (a path that ends in .toml)."""
    if name.endswith(".toml"):
        return Path(name)
    known = recipe_names()
    if name not in known:
        raise InputError(f"unknown recipe {name}{nearest(name, known)}; or give the path of a .toml file")
    return Path(str(files("qkv") / "recipes" / f"{name}.toml"))


def recipe_names() -> list[str]:
    """The recipes that come with qkv."""
    return sorted(entry.name.removesuffix(".toml") for entry in (files("qkv") / "recipes").iterdir())
