"""Recipes: data, model and training settings as short TOML files that hold only what differs from the defaults."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from qkv.config import build, merge, override, read_toml, require
from qkv.datasets.registry import DATASETS, DataConfig
from qkv.errors import InputError
from qkv.registry import nearest, registered
from qkv.runtime.files import absolute_path
from qkv.runtime.text import printable_repr
from qkv.tasks.algorithmic import TransductionTask
from qkv.tasks.bandit import BanditTask
from qkv.tasks.bilm import TwoWayLanguageModelTask
from qkv.tasks.captioning import CaptioningTask
from qkv.tasks.few_shot import FewShotTask
from qkv.tasks.image_classification import ImageClassificationTask
from qkv.tasks.language_modeling import LanguageModelTask
from qkv.tasks.masked_lm import MaskedWordsTask
from qkv.tasks.packed_lm import DocumentLanguageModelTask
from qkv.tasks.question_answering import AnsweringTask
from qkv.tasks.tagging import TaggingTask
from qkv.tasks.task import Task
from qkv.tasks.text_classification import ClassificationTask
from qkv.tasks.train_tokenizer import tokenizer_term
from qkv.tasks.translation import TranslationTask

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
    """Training settings."""

    epochs: int = 10
    batch_tokens: int = 4096  # tokens of the longer side with padding; language_model: rows x length; else examples
    length: int = 256  # language_model: tokens of truncated back-propagation; else of a row or sentence
    lr: float = 1e-3
    warmup: int = 100  # steps of linear learning rate warmup
    decay: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"
    weight_decay: float = 0.01
    clip: float = 1.0  # maximum gradient norm
    label_smoothing: float = 0.0
    bpe_dropout: float = 0.0  # translate: probability of dropping a merge, resampled per epoch (Provilkov et al. 2020)
    whole_words: bool = False  # masked_words: whole-word masking
    shift: int = 0  # images: maximum random shift in pixels
    mirror: bool = False  # classify_images: random horizontal flip
    cover: int = 0  # classify_images: side in pixels of a random black square (cutout)
    ema: float = 0.0  # decay of the weight average that is validated and saved; 0: no average
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on a GPU, float32 on the CPU
    graphs: bool = True  # on a GPU: capture training steps in CUDA graphs, one per batch shape
    validate_every: int = 500  # steps
    valid_size: int = 500  # maximum number of validation examples
    save_every: int = 500  # steps
    keep: int = 2  # number of checkpoints to keep, in addition to the best
    best_by: str = "loss"  # one of the task's metrics
    patience: int = 0  # stop after this many validations without improvement; 0: never

    def __post_init__(self) -> None:
        for name in ("epochs", "validate_every", "save_every", "keep"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("batch_tokens", "length", "valid_size"):  # these bound memory
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
    """Everything that defines a training run."""

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
    init: str | None = None  # folder of a pretrained model of the same name; its tokenizer is used
    data: DataConfig
    model: dict[str, Any]  # name, config keys, and optionally `preset`: a named set of sizes
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**31, "seed must lie between 0 and 2^31 - 1")
        require(
            not self.model.get("frozen") or self.init is not None,
            "model.frozen requires pretrained weights; set init to a folder",
        )
        task, best_by = TASKS[self.task], self.train.best_by
        require(best_by in task.metrics, f"train.best_by {best_by!r} is not known{nearest(best_by, task.metrics)}")
        fitting = _data_names(task)
        require(
            self.data.name in fitting,
            f"data.name {self.data.name!r} does not fit {task.title}, which needs {' or '.join(task.kinds())}; "
            f"use {' or '.join(fitting)}",
        )
        require(
            not self.train.bpe_dropout or task.kinds() == ("pairs",),
            f"train.bpe_dropout applies to sentence pairs only, not to {task.title}; remove it",
        )
        kinds = (self.data.vocabulary, self.data.target_vocabulary or self.data.vocabulary)
        names = [tokenizer_term(kind).name for kind in kinds]
        for name in names if self.init is None else ():  # init has its own tokenizer
            require(
                task.accepts_tokenizer(name),
                f"data.vocabulary {name!r} does not fit {task.title}; "
                f"use {' or '.join(filter(task.accepts_tokenizer, registered('tokenizer')))}",
            )
        require(
            not self.train.bpe_dropout or all(name == "bpe" for name in names),
            f"train.bpe_dropout needs subwords (data.vocabulary = bpe:N), not {' and '.join(dict.fromkeys(kinds))}",
        )

    def model_config(self, sizes: Mapping[str, Any] | None = None, where: str = "recipe") -> Any:
        """Return the model's config, with sizes from the data, or placeholders before the data are loaded."""
        table = dict(self.model)
        name = table.pop("name", None)
        task = TASKS[self.task]
        models = registered("model")
        if not isinstance(name, str) or name not in models:
            raise InputError(f"{where}: model.name {printable_repr(name)} is not known{nearest(str(name), models)}")
        network = models[name]
        config = network.config_class
        if not issubclass(network, task.model):
            fitting = " or ".join(_model_names(task))
            raise InputError(f"{where}: model.name {name!r} does not support {task.title}; use {fitting}")
        for key in task.from_data:
            if key in table:
                raise InputError(f"{where}: model.{key} is set by the data; remove it")
        preset, presets = table.pop("preset", None), getattr(network, "presets", {})
        if preset is not None:
            if not isinstance(preset, str) or preset not in presets:
                raise InputError(
                    f"{where}: model.preset {printable_repr(preset)} is not known{nearest(str(preset), presets)}"
                )
            table = {**presets[preset], **table}
        return build(config, {**table, **(sizes or task.placeholder_sizes(table))}, where, prefix="model.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_recipe(name: str, assignments: Iterable[str] = ()) -> Recipe:
    """Read a recipe by name or path and apply `a.b=value` assignments; every key is checked."""
    where = f"recipe {name}"
    table = override(recipe_table(name), assignments)
    _require_names(table, where)
    recipe = build(Recipe, table, where)
    init = None if recipe.init is None else str(absolute_path(recipe.init))
    recipe = replace(recipe, data=recipe.data.with_absolute_paths(), init=init)
    recipe.model_config(where=where)  # report a wrong key before any data are loaded
    return recipe


def _require_names(table: Mapping[str, Any], where: str) -> None:
    """Raise unless a recipe names its data and its model; the message lists the valid names for its task."""
    task = TASKS.get(str(table.get("task", Recipe.task)))
    if task is None:
        return  # `build` lists the known tasks
    fitting = {"data": _data_names(task), "model": _model_names(task)}
    for part, names in fitting.items():
        section = table.get(part, {})
        if isinstance(section, Mapping) and "name" not in section:
            raise InputError(f'{where}: {part}.name is missing: add [{part}] name = "..." with {" or ".join(names)}')


def _data_names(task: type[Task]) -> list[str]:
    return [name for name, entry in DATASETS.items() if entry.kind in task.kinds()]


def _model_names(task: type[Task]) -> list[str]:
    return sorted(name for name, network in registered("model").items() if issubclass(network, task.model))


def recipe_table(name: str) -> dict[str, Any]:
    """Read the TOML table of a recipe, merged into that of the built-in recipe that it `extends`."""
    table = read_toml(recipe_path(name))
    base = table.pop("extends", None)
    if base is None:
        return table
    names = recipe_names()
    if base not in names:
        close = nearest(str(base), names)
        raise InputError(f"recipe {name}: extends {printable_repr(base)}, which is not a built-in recipe{close}")
    return merge(recipe_table(base), table)


def recipe_path(name: str) -> Path:
    """Return the path of a built-in recipe, or of a user's own (a name that ends in .toml)."""
    if name.endswith(".toml"):
        return Path(name)
    names = recipe_names()
    if name not in names:
        raise InputError(f"unknown recipe {name}{nearest(name, names)}; or give the path of a .toml file")
    return Path(str(files("qkv") / "recipes" / f"{name}.toml"))


def recipe_names() -> list[str]:
    """Return the names of the built-in recipes."""
    return sorted(entry.name.removesuffix(".toml") for entry in (files("qkv") / "recipes").iterdir())
