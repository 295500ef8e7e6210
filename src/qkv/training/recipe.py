"""Recipes: task, data, model and training settings in short TOML files with only what differs from the defaults."""

import difflib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, InstanceOf, model_validator

from qkv.config import Config, PositiveFloat, StringList, build, merge, override, read_toml, require
from qkv.datasets.dataset import DatasetConfig, TextDatasetConfig
from qkv.errors import InputError
from qkv.hub.huggingface import is_hub_name
from qkv.hub.model_folder import named_folder
from qkv.registry import lookup, nearest, registered, unknown
from qkv.runtime.files import absolute_path
from qkv.runtime.text import printable, printable_repr
from qkv.tasks.base.task import Task, TaskConfig
from qkv.tasks.base.train_config import TrainConfig

SETTABLE_KEYS = ("seed", "init")  # keys outside of the tables that --set and keywords can change
FILE_KEYS = ("requires_init", "from_scratch")  # keys outside of the tables that only files have
SECTIONS = {"task": "task", "data": "dataset", "model": "model"}  # sections of a recipe that name a registered class


def _model_path(path: str) -> str:
    """Return the name of a pretrained model, also of the Hugging Face Hub, or the absolute path of another folder."""
    on_hub = is_hub_name(path) and not Path(path).parent.exists()
    return path if on_hub or named_folder(path) != Path(path) else str(absolute_path(path))


ModelPath = Annotated[str, AfterValidator(_model_path)]


class Minutes(Config):
    """Measured training time of a recipe; unset: not measured."""

    cpu: PositiveFloat | None = None  # on one CPU core
    gpu: PositiveFloat | None = None  # on one NVIDIA H200


class RecipeInfo(NamedTuple):
    """One row of `qkv recipes`."""

    name: str
    task: str
    data: str
    model: str
    minutes: Minutes
    purpose: str  # the first line of the file, if it is a comment


class Recipe(Config):
    """Everything that defines a training run."""

    name: str = ""  # of the built-in recipe, or the path of a .toml file
    overrides: StringList = ()  # --set assignments applied to it
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0  # of weights, batches and dropout
    init: ModelPath | None = None  # folder or name of a pretrained model of the same class; its tokenizer is used
    requires_init: bool = False  # fine-tunes a pretrained model: training requires init
    from_scratch: str | None = None  # recipe that trains such a model from random weights
    task: InstanceOf[TaskConfig]
    data: InstanceOf[DatasetConfig]
    model: InstanceOf[Config]
    train: TrainConfig = TrainConfig()

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> "Recipe":
        """Build a recipe from plain data; every key is checked."""
        table = dict(table)
        _require_names(table, where)
        for section, kind in SECTIONS.items():
            if section in table:
                table[section] = _parse_section(table, section, kind, where)
        if "train" in table:
            table["train"] = build(TrainConfig, table["train"], where, prefix="train.")
        _check_top_keys(table, where)
        try:
            recipe = cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
            recipe.task_class.check_recipe(recipe.task, recipe.data, recipe.model)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return recipe

    @property
    def task_class(self) -> type[Task]:
        """The class of the task."""
        return lookup("task", self.task.registered_name)

    @property
    def model_class(self) -> type[Any]:
        """The class of the model."""
        return lookup("model", self.model.registered_name)

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        task, best_by, unit = self.task_class, self.train.best_by, self.train.batch_by
        require(
            not getattr(self.model, "frozen", False) or self.init is not None,
            "model.frozen requires pretrained weights; set init to a folder",
        )
        require(best_by in task.metrics, f"train.best_by {best_by!r} is not known{nearest(best_by, task.metrics)}")
        require(
            unit in task.batch_units,
            f"train.batch_by = {unit!r} does not fit {task.title}: use {task.batch_units[0]!r}",
        )
        _check_fits(task, "data", type(self.data))
        _check_fits(task, "model", self.model_class)
        if self.init is None and isinstance(self.data, TextDatasetConfig):  # init has its own tokenizer
            target = getattr(self.data, "target_tokenizer", None) or self.data.tokenizer
            for term in (self.data.tokenizer, target):
                names = filter(task.accepts_tokenizer, registered("tokenizer"))
                require(
                    task.accepts_tokenizer(term.name),
                    f"data.tokenizer {term.name!r} does not fit {task.title}; use {' or '.join(names)}",
                )
        return self

    def missing_init(self) -> str | None:
        """Return why the recipe cannot be trained without `init`; None if it can, or if `init` is set."""
        if not self.requires_init or self.init is not None:
            return None
        other = "" if self.from_scratch is None else f"; from scratch, use {self.from_scratch}"
        return (
            f"recipe {self.name} fine-tunes a pretrained model: pass --set init=FOLDER, the name of a model or "
            f"owner/name{other}"
        )

    def to_dict(self) -> dict[str, Any]:
        unset = self.init is not None  # keys that are not set have the values of the pretrained model
        sections = {
            section: {"name": config.registered_name, **config.model_dump(mode="json", exclude_unset=unset)}
            for section, config in (("task", self.task), ("data", self.data), ("model", self.model))
        }
        for key in self.task_class.from_data:  # part of the checkpoint's config.json
            sections["model"].pop(key, None)
        head = {key: getattr(self, key) for key in ("name", "overrides", "seed", "init")}
        head |= {key: getattr(self, key) for key in ("requires_init", "from_scratch") if getattr(self, key)}
        return {**head, "overrides": list(self.overrides), **sections, "train": self.train.to_dict()}


def _check_top_keys(table: Mapping[str, Any], where: str) -> None:
    """Raise for an unknown key at the top level; a key of a section is suggested with its section: lr, train.lr."""
    configs = {section: table.get(section) for section in SECTIONS} | {"train": table.get("train", TrainConfig())}
    names = {key: [key] for key in (*SETTABLE_KEYS, *FILE_KEYS, *configs)}
    for section, config in configs.items():
        for key in type(config).model_fields if isinstance(config, Config) else ():
            names.setdefault(key, []).append(f"{section}.{key}")
    for key in table:
        if key not in Recipe.model_fields:
            close = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
            known = ", ".join((*configs, *SETTABLE_KEYS, *FILE_KEYS))
            hint = f"did you mean {' or '.join(names[close[0]])}?" if close else f"known: {known}"
            raise InputError(f"{where}: unknown key {printable(key)} ({hint})")


def _parse_section(table: Mapping[str, Any], section: str, kind: str, where: str) -> Config:
    """Build the config of the registered class that a section names."""
    data = table[section]
    if isinstance(data, Config):
        return data
    if isinstance(data, str):
        data = {"name": data}
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: {section} must be a table of keys and values")
    values = dict(data)
    name, classes = values.pop("name", None), registered(kind)
    if not isinstance(name, str) or name not in classes:
        key = section if isinstance(table[section], str) else f"{section}.name"
        if not isinstance(name, str):
            raise InputError(f"{where}: {key} must be a string, not {printable_repr(name)}")
        raise InputError(f"{where}: {key}: {unknown(kind, name)}")
    cls, task = classes[name], task_of(table)
    if task is not None and section != "task":
        try:
            _check_fits(task, section, cls)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    config_class = getattr(cls, "config_class", cls)
    valid = ("name", *(["preset"] if getattr(cls, "presets", None) else []), *config_class.model_fields)
    for key in values:
        if key not in valid:
            hint = nearest(key, valid, f"{section}.")
            raise InputError(f"{where}: unknown key {section}.{printable(key)}{hint}")
    if section == "model":
        values = _with_preset(cls, values, where)
        if task is not None:
            for key in (*task.from_data, *task.model_options):
                if key in values and values[key] != task.model_options.get(key, values):
                    raise InputError(f"{where}: model.{key} is set by the data; remove it")
            fixed = {key: value for key, value in task.model_options.items() if key in config_class.model_fields}
            values = {**values, **fixed}
    return build(config_class, values, where, prefix=f"{section}.")


def _check_fits(task: type[Task], section: str, cls: type[Any]) -> None:
    """Raise ConfigError if a task cannot be trained on a dataset (section "data"), or with a model."""
    name = cls.registered_name
    if section == "data":
        require(
            cls.dataset_class in task.datasets,
            f"data.name {name!r} does not fit {task.title}, which needs "
            f"{' or '.join(dataset.kind for dataset in task.datasets)}; use {' or '.join(_dataset_names(task))}",
        )
    else:
        require(
            issubclass(cls, task.model),
            f"model.name {name!r} does not support {task.title}; use {' or '.join(_model_names(task))}",
        )


def _with_preset(cls: type[Any], values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a model table with its `preset`, a named set of sizes, replaced by the sizes."""
    preset, presets = values.pop("preset", None), getattr(cls, "presets", {})
    if preset is None:
        return values
    if not isinstance(preset, str) or preset not in presets:
        raise InputError(f"{where}: model.preset {printable_repr(preset)} is not known{nearest(str(preset), presets)}")
    return {**presets[preset], **values}


def task_of(table: Mapping[str, Any]) -> type[Task] | None:
    """Return the task that a recipe table names; None if it is missing or unknown."""
    task = table.get("task")
    if isinstance(task, TaskConfig):
        return lookup("task", task.registered_name)
    name = task.get("name") if isinstance(task, Mapping) else task
    return registered("task").get(str(name))


def read_recipe(name: str, assignments: Iterable[str] = ()) -> Recipe:
    """Read a recipe by name or path and apply `a.b=value` assignments; every key is checked."""
    assignments = tuple(assignments)
    for assignment in assignments:
        if (key := assignment.partition("=")[0].strip()) in FILE_KEYS:
            raise InputError(
                f'--set {printable(assignment)}: only a file can change {key}: write one with extends = "{name}"'
            )
    base = recipe_table(name)
    table = _without_other_data(base, override(base, assignments))
    return Recipe.from_table({**table, "name": name, "overrides": assignments}, f"recipe {name}")


def _without_other_data(base: Mapping[str, Any], table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a table without the data keys that only apply to the dataset of the recipe, if another was chosen."""
    old, new = base.get("data"), table.get("data")
    if not isinstance(old, Mapping) or not isinstance(new, Mapping) or old.get("name") == new.get("name"):
        return table
    dataset = registered("dataset").get(str(new.get("name")))
    if dataset is None:
        return table
    valid = {"name", *dataset.model_fields}
    return {**table, "data": {key: new[key] for key in new if key in valid or new[key] != old.get(key)}}


def _require_names(table: Mapping[str, Any], where: str) -> None:
    """Raise unless a recipe names its task, data and model; the message lists the valid names."""
    if not table.get("task"):
        raise InputError(f'{where}: task is missing: add task = "..." with {" or ".join(sorted(registered("task")))}')
    task = task_of(table)
    if task is None:
        return  # `_parse_section` lists the known tasks
    for section, names in {"data": _dataset_names(task), "model": _model_names(task)}.items():
        data = table.get(section, {})
        if isinstance(data, Mapping) and "name" not in data:
            raise InputError(
                f'{where}: {section}.name is missing: add [{section}] name = "..." with {" or ".join(names)}'
            )


def _dataset_names(task: type[Task]) -> list[str]:
    return [name for name, dataset in registered("dataset").items() if dataset.dataset_class in task.datasets]


def _model_names(task: type[Task]) -> list[str]:
    return sorted(name for name, model in registered("model").items() if issubclass(model, task.model))


def recipe_table(name: str) -> dict[str, Any]:
    """Read the TOML table of a recipe, merged into that of the built-in recipe that it `extends`."""
    table = read_toml(recipe_path(name))
    table.pop("minutes", None)  # of `recipe_info`; it does not define the run
    base = table.pop("extends", None)
    if base is None:
        return table
    names = recipe_names()
    if base not in names:
        close = nearest(str(base), names)
        raise InputError(f"recipe {name}: extends {printable_repr(base)}, which is not a built-in recipe{close}")
    return merge(recipe_table(base), table)


def recipe_info(name: str) -> RecipeInfo:
    """Return the purpose of a recipe and the names in it, without checking its other keys."""
    path, table = recipe_path(name), recipe_table(name)
    sections = (table.get(section, "") for section in SECTIONS)
    task, data, model = (str(value.get("name", "") if isinstance(value, Mapping) else value) for value in sections)
    minutes = build(Minutes, read_toml(path).get("minutes", {}), f"recipe {name}", prefix="minutes.")
    first, _, _ = path.read_text(encoding="utf-8").partition("\n")
    purpose = first.strip("# .") if first.startswith("#") else ""
    return RecipeInfo(name, task, data, model, minutes, purpose)


def recipe_path(name: str) -> Path:
    """Return the path of a built-in recipe, or of a user's own (a name that ends in .toml)."""
    if name.endswith(".toml"):
        return Path(name)
    paths = _builtin_paths()
    if name not in paths:
        raise InputError(
            f"unknown recipe {name}{nearest(name, paths)}; qkv recipes lists them; or give the path of a .toml file"
        )
    return paths[name]


def recipe_names() -> list[str]:
    """Return the names of the built-in recipes."""
    return sorted(_builtin_paths())


def _builtin_paths() -> dict[str, Path]:
    folder = Path(str(files("qkv") / "recipes"))
    return {path.stem: path for path in folder.rglob("*.toml")}
