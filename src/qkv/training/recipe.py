"""Recipes: what to train on what, as short TOML files that hold only what differs from the defaults."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from qkv.config import build, merge, nearest, override, read_toml, require, shown_value
from qkv.data.kinds import KINDS
from qkv.data.registry import DATA_SETS, DataConfig
from qkv.errors import InputError
from qkv.models import MODELS, PRESETS
from qkv.runtime.files import absolute_path
from qkv.tasks.answering import AnsweringTask
from qkv.tasks.bandit import BanditTask
from qkv.tasks.captioning import CaptioningTask
from qkv.tasks.classification import ClassificationTask
from qkv.tasks.document_language_model import DocumentLanguageModelTask
from qkv.tasks.few_shot import FewShotTask
from qkv.tasks.image_classification import ImageClassificationTask
from qkv.tasks.language_model import LanguageModelTask
from qkv.tasks.masked_words import MaskedWordsTask
from qkv.tasks.tagging import TaggingTask
from qkv.tasks.task import Task
from qkv.tasks.transduction import TransductionTask
from qkv.tasks.translation import TranslationTask
from qkv.tasks.two_way_language_model import TwoWayLanguageModelTask

TASKS: dict[str, type[Task]] = {
    "translate": TranslationTask,
    "language_model": LanguageModelTask,
    "document_language_model": DocumentLanguageModelTask,
    "classify": ClassificationTask,
    "tag": TaggingTask,
    "answer": AnsweringTask,
    "masked_words": MaskedWordsTask,
    "two_way_language_model": TwoWayLanguageModelTask,
    "classify_images": ImageClassificationTask,
    "caption": CaptioningTask,
    "few_shot": FewShotTask,
    "bandit": BanditTask,
    "transduce": TransductionTask,
}


@dataclass(frozen=True)
class TrainConfig:
    """How to train."""

    epochs: int = 10
    batch_tokens: int = 4096  # of the longer side, padding counted; language_model: rows x length; pictures: how many
    length: int = 256  # language_model: how many tokens back-propagation reaches back; else of a row, or a sentence
    lr: float = 1e-3
    warmup: int = 100  # steps in which the learning rate rises from 0 to lr
    decay: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"
    weight_decay: float = 0.01
    clip: float = 1.0  # the largest norm of the gradient
    label_smoothing: float = 0.0
    bpe_dropout: float = 0.0  # translate: how often a merge is left out, anew in each epoch (Provilkov et al. 2020)
    whole_words: bool = False  # masked_words: whether all pieces of a word are masked, or none
    shift: int = 0  # of pictures: by how many pixels each is moved at most, anew in each epoch
    mirror: bool = False  # classify_images: whether half of the pictures are mirrored, anew in each epoch
    cover: int = 0  # classify_images: how many pixels a side a black square has that covers a part of each picture
    ema: float = 0.0  # the decay of the moving average of the weights that is validated and saved; 0: no average
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on a GPU, float32 on the CPU
    graphs: bool = True  # on a GPU: capture the steps of training in CUDA graphs, one for each shape of batch
    validate_every: int = 500  # steps
    valid_size: int = (
        500  # how many validation examples to look at, of those that are there (or drawn: episodes, games)
    )
    save_every: int = 500  # steps
    keep: int = 2  # how many checkpoints to keep, besides the best
    best_by: str = "loss"  # one of the task's metrics
    patience: int = 0  # stop after so many validations without a better one; 0: never

    def __post_init__(self) -> None:
        for name in ("epochs", "validate_every", "save_every", "keep"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("batch_tokens", "length", "valid_size"):  # sizes of what is held in memory at a time
            require(1 <= getattr(self, name) <= 2**30, f"{name} must lie between 1 and 2^30")
        require(0 < self.lr < math.inf, "lr must be positive and finite")
        require(self.clip > 0, "clip must be positive")
        require(self.warmup >= 0, "warmup must not be negative")
        require(0 <= self.weight_decay < math.inf, "weight_decay must be finite and not negative")
        require(self.patience >= 0, "patience must not be negative")
        for name in ("shift", "cover"):
            require(0 <= getattr(self, name) <= 2**10, f"{name} must lie between 0 and 1,024")
        for name in ("label_smoothing", "bpe_dropout", "ema"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a training run."""

    task: Literal[
        "translate",
        "language_model",
        "classify",
        "tag",
        "answer",
        "masked_words",
        "two_way_language_model",
        "document_language_model",
        "classify_images",
        "caption",
        "few_shot",
        "bandit",
        "transduce",
    ] = "translate"
    seed: int = 0
    init: str | None = None  # the folder of a model of the same name, whose weights and tokenizer training begins with
    data: DataConfig
    model: dict[str, Any]  # its name, its config, and `preset`: named sizes
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**31, "seed must lie between 0 and 2^31 - 1")
        require(
            not self.model.get("frozen") or self.init is not None,
            "model.frozen: weights that nothing has trained would stay as they are drawn; set init to a folder",
        )
        task, best_by = TASKS[self.task], self.train.best_by
        require(best_by in task.metrics, f"train.best_by {best_by!r} is not known{nearest(best_by, task.metrics)}")
        fitting = _data_names(task)
        require(
            self.data.name in fitting,
            f"data.name {self.data.name!r} is not {' or '.join(task.kinds())}, from which {task.title} is learned; "
            f"use {' or '.join(fitting)}",
        )
        require(
            not self.train.bpe_dropout or task.kinds() == ("pairs",),
            f"train.bpe_dropout cuts pairs anew in every epoch; {task.title} learns from one text: leave it out",
        )
        kinds = (self.data.vocabulary, self.data.target_vocabulary or self.data.vocabulary)
        for kind in kinds if self.init is None else ():  # what a run begins with brings its own
            require(
                task.reads(kind.partition(":")[0]),
                f"data.vocabulary {kind!r} is not for {task.title}; use {' or '.join(filter(task.reads, KINDS))}",
            )
        require(
            not self.train.bpe_dropout or all(kind.startswith("bpe:") for kind in kinds),
            f"train.bpe_dropout needs subwords (data.vocabulary = bpe:N), not {' and '.join(dict.fromkeys(kinds))}",
        )

    def model_config(self, sizes: Mapping[str, Any] | None = None, where: str = "recipe") -> Any:
        """The model's own config, completed with what the data decide, or before they are known with what would do."""
        table = dict(self.model)
        name = table.pop("name", None)
        task = TASKS[self.task]
        if not isinstance(name, str) or name not in MODELS:
            raise InputError(f"{where}: model.name {shown_value(name)} is not known{nearest(str(name), MODELS)}")
        network, config = MODELS[name]
        if not issubclass(network, task.model):
            fitting = " or ".join(_model_names(task))
            raise InputError(f"{where}: model.name {name!r} cannot learn {task.title}; use {fitting}")
        for key in task.from_data:
            if key in table:
                raise InputError(f"{where}: model.{key} follows from the data; leave it out")
        preset, known = table.pop("preset", None), PRESETS.get(name, {})
        if preset is not None:
            if not isinstance(preset, str) or preset not in known:
                raise InputError(
                    f"{where}: model.preset {shown_value(preset)} is not known{nearest(str(preset), known)}"
                )
            table = {**known[preset], **table}
        return build(config, {**table, **(sizes or task.provisional(table))}, where, prefix="model.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_recipe(name: str, assignments: Iterable[str] = ()) -> Recipe:
    """Read a recipe by its name or its path, and apply `a.b=value` assignments; every key is checked."""
    where = f"recipe {name}"
    table = override(recipe_table(name), assignments)
    _require_names(table, where)
    recipe = build(Recipe, table, where)
    init = None if recipe.init is None else str(absolute_path(recipe.init))
    recipe = replace(recipe, data=recipe.data.with_whole_paths(), init=init)
    recipe.model_config(where=where)  # a wrong key should be told before any data are loaded
    return recipe


def _require_names(table: Mapping[str, Any], where: str) -> None:
    """Raise unless a recipe names its data and its model; the message lists those that fit its task."""
    task = TASKS.get(str(table.get("task", Recipe.task)))
    if task is None:
        return  # `build` says which tasks there are
    fitting = {"data": _data_names(task), "model": _model_names(task)}
    for part, names in fitting.items():
        section = table.get(part, {})
        if isinstance(section, Mapping) and "name" not in section:
            raise InputError(f'{where}: {part}.name is missing: add [{part}] name = "..." with {" or ".join(names)}')


def _data_names(task: type[Task]) -> list[str]:
    return [name for name, entry in DATA_SETS.items() if entry.kind in task.kinds()]


def _model_names(task: type[Task]) -> list[str]:
    return sorted(name for name, (network, _) in MODELS.items() if issubclass(network, task.model))


def recipe_table(name: str) -> dict[str, Any]:
    """What a recipe's file holds, on top of what the recipe holds that it `extends`: one that comes with qkv."""
    table = read_toml(recipe_path(name))
    base = table.pop("extends", None)
    if base is None:
        return table
    known = recipe_names()
    if base not in known:
        close = nearest(str(base), known)
        raise InputError(f"recipe {name}: extends {shown_value(base)}, which does not come with qkv{close}")
    return merge(recipe_table(base), table)


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
