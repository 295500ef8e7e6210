"""`qkv.train`: train a recipe, as `qkv train` does, with Python values instead of options."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from json import dumps
from pathlib import Path
from typing import Any

from rich.console import Console

from qkv.datasets.hugging_face import data_paths, export_dataset, is_dataset
from qkv.datasets.user_files import user_dataset
from qkv.errors import InputError
from qkv.registry import keyword_names, registered, unexpected_keyword
from qkv.runtime.files import RUNS
from qkv.runtime.text import printable_repr
from qkv.training import job
from qkv.training.display import Display
from qkv.training.distributed import is_main, on_main, process_group
from qkv.training.log import DEFAULT_LOGGERS
from qkv.training.recipe import SECTIONS, SETTABLE_KEYS, Recipe, read_recipe, recipe_table, task_of
from qkv.training.run import Run

HINTS = {  # for arguments of trainers of other libraries
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulate",
    "max_grad_norm": "clip",
    "output_dir": "output",
    "train_dataset": "data",
    "eval_dataset": "valid",
}
SAMPLES = 3  # outputs shown at each validation


def train(
    recipe: str | os.PathLike[str] | None = None,
    data: Any = None,
    *,
    valid: Any = None,
    test: Any = None,
    columns: Mapping[str, str] | None = None,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume: str | os.PathLike[str] | None = None,
    device: str = "auto",
    force: bool = False,
    log: Sequence[str] = DEFAULT_LOGGERS,
    samples: int = SAMPLES,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train a recipe and return the run.

        run = qkv.train("pairs-gru", data="pairs.tsv", epochs=3, hidden_dim=128)
        run = qkv.train(resume=run, epochs=20)

    Args:
        recipe: Name of a built-in recipe (see `qkv recipes`), or path of a .toml file.
        data: Your files, a DataFrame, a list of dicts, a dataset of the library `datasets`, the name of a dataset of
            qkv, or a dict of the keys of the recipe's table `data`; by default the data of the recipe.
        valid: Validation set, files or rows like `data`; by default a part of `data`.
        test: Test set, files or rows like `data`.
        columns: Names of the columns of your data by role, such as {"source": "en", "target": "de"}.
        output: Folder of the run; by default runs/RECIPE-N.
        overwrite: Delete another run in the folder.
        resume: A run, or its folder, to continue; overrides such as `epochs` train it longer.
        device: "auto", "cpu", "cuda", "cuda:N" or "mps".
        force: Train even if the memory estimate exceeds the available memory.
        log: Loggers: "tensorboard", "jsonl", "mlflow", "wandb".
        samples: Number of sample outputs to print at each validation.
        quiet: Print nothing.
        **overrides: Keys of the recipe: a key of one of its tables (`lr=1e-3`), a table (`model={"cell": "lstm"}`),
            `seed`, or `init` (the model to start from).

    Returns:
        The run, which `qkv.evaluate`, `qkv.view`, `qkv.load` and the pipelines take.
    """

    def watching() -> dict[str, Any]:
        console = Console(stderr=True, quiet=quiet or not is_main())
        return {"display": Display(console, samples=samples), "loggers": list(log)}

    if resume is not None:
        if recipe is not None or any(option is not None for option in (data, valid, test, output)):
            raise InputError("resume cannot be combined with a recipe, data or an output: the run has them")
        changes = recipe_assignments(Run.open(Path(resume)).recipe, overrides)
        with process_group(device) as device:
            return _finished(job.resume(Path(resume), device, changes, force=force, **watching()))
    if recipe is None:
        raise InputError("missing recipe: pass the name of a recipe (see qkv recipes) or the path of a .toml file")
    if not isinstance(recipe, str | os.PathLike):
        raise InputError(f"recipe must be a name or the path of a .toml file, not {type(recipe).__name__}")
    name = os.fspath(recipe)
    tables, files = _data_source(data)
    changes = [
        *data_overrides(name, data_paths(files), data_paths(valid), data_paths(test), columns),
        *assignments_of({"data": tables} if tables else {}),
    ]
    changes += recipe_assignments(read_recipe(name, changes), overrides)
    folder = None if output is None else Path(output)
    config = read_recipe(name, changes)
    return _finished(train_recipe(config, folder, device, watching, overwrite=overwrite, force=force))


def train_recipe(
    recipe: Recipe,
    output: Path | None,
    device: str,
    watching: Callable[[], dict[str, Any]],
    *,
    overwrite: bool = False,
    resume_unfinished: bool = False,
    force: bool = False,
    strict: bool = False,
) -> job.Job:
    """Train a recipe in `output`, by default runs/RECIPE-N; `watching` returns the display and the loggers.

    With `resume_unfinished`, or if torchrun has restarted the process, the newest unfinished run of the recipe is
    continued if there is one.
    """
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0  # by torchrun, with the same command
    with process_group(device) as device:
        folders = [output] if output is not None else sorted(RUNS.glob("*"))
        found = on_main(lambda: job.unfinished(recipe, folders)) if resume_unfinished or restarted else None
        if found is not None:
            return job.resume(found, device, force=force, strict=strict, **watching())
        folder = output or on_main(lambda: default_folder(recipe, overwrite=overwrite))
        return job.begin(recipe, folder, device, force=force, overwrite=overwrite, **watching())


def _finished(done: job.Job) -> Run:
    """Return the run of a job; raise if it was interrupted."""
    if not done.state.finished:
        folder = str(done.run.folder)
        raise KeyboardInterrupt(
            f"training was interrupted; {done.run.checkpoints[-1]} is saved: continue with qkv.train(resume={folder!r})"
        )
    return Run.open(done.run.folder)


def default_folder(recipe: Recipe, *, overwrite: bool) -> Path:
    """Return runs/RECIPE-N with the first free N, from the seed on; with `overwrite`, N is the seed."""
    numbered = (RUNS / f"{Path(recipe.name).stem}-{number}" for number in count(recipe.seed))
    return next(folder for folder in numbered if overwrite or not os.path.lexists(folder))


def data_overrides(
    recipe: str,
    data: list[Path] | None,
    valid: list[Path] | None = None,
    test: list[Path] | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[str]:
    """Return recipe overrides that train on the user's files, read in the format of the recipe's task."""
    files = {"train": data, "valid": valid, "test": test}
    overrides = [f"data.{split}={dumps([str(path) for path in paths])}" for split, paths in files.items() if paths]
    if not overrides:
        if columns:
            raise InputError("--column requires --data")
        return []
    task = task_of(recipe_table(recipe))
    if task is None:
        return overrides  # read_recipe reports the unknown task
    reader = next(filter(None, (user_dataset(dataset.kind) for dataset in task.datasets)), None)
    if reader is None:
        raise InputError(f"--data is not supported for {task.title}: use a built-in dataset (see qkv data list)")
    named = [f"{key}={dumps(name)}" for key, name in reader.column_overrides(dict(columns or {})).items()]
    return [*overrides, f'data.name="{reader.registered_name}"', *named]


def recipe_assignments(recipe: Recipe, overrides: Mapping[str, Any]) -> list[str]:
    """Return `a.b=value` assignments for keywords: tables, dotted keys, and keys of one of the tables of a recipe.

    An unknown keyword raises KeywordError with the nearest one.
    """
    sections = (*SECTIONS, "train")
    owners: dict[str, list[str]] = {}
    for section in sections:
        config = getattr(recipe, section)
        keys = set(type(config).model_fields) - set(recipe.task_class.from_data if section == "model" else ())
        for key in (*keys, *(["preset"] if section == "model" else [])):
            owners.setdefault(key, []).append(section)
    top = {*sections, *SETTABLE_KEYS}
    nested: dict[str, Any] = {}
    for key, value in overrides.items():
        if key in top or "." in key:
            nested[key] = value
        elif key not in owners:
            known = {*owners, *top, *keyword_names(train)}
            raise unexpected_keyword(key, known, HINTS)
        elif len(owners[key]) > 1:
            first = owners[key][0]
            tables = " or ".join(owners[key])
            raise InputError(f"option {key!r} is a key of {tables}: choose one, e.g. {first}={{{key!r}: ...}}")
        else:
            nested[f"{owners[key][0]}.{key}"] = value
    return assignments_of(nested)


def assignments_of(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return nested values as `a.b=value` assignments, the form of --set."""
    return [f"{key}={_toml(value, key)}" for key, value in _flat(values, prefix)]


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    # The name of a term comes before its options, which another name would reset.
    for key, value in sorted(values.items(), key=lambda item: item[0] != "name"):
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _toml(value: Any, key: str) -> str:
    value = value.item() if hasattr(value, "item") else value  # a number of NumPy
    if isinstance(value, bool | int | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value)  # JSON has no inf
    if isinstance(value, os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
        return f"[{', '.join(_toml(item, key) for item in value)}]"
    raise InputError(f"{key} must be a number, a string, a boolean, a list or a dict, not {printable_repr(value)}")


def _data_source(data: Any) -> tuple[Mapping[str, Any] | None, Any]:
    """Return the keys of the table `data`, or else the files; an object of `datasets` is written to files."""
    if is_dataset(data):
        return None, export_dataset(data)
    if isinstance(data, Mapping):
        return data, None
    if isinstance(data, str) and not Path(data).exists() and data in registered("dataset"):
        return {"name": data}, None
    return None, data
