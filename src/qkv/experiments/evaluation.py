"""`qkv.evaluate`: the metrics of a model on a split of its data, or on files of the user."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from qkv.datasets.dataset import Dataset
from qkv.datasets.hugging_face import data_name, data_paths, is_dataset
from qkv.datasets.user_files import UserFiles, user_dataset
from qkv.errors import ConfigError, InputError
from qkv.experiments.results import Record, record_evaluation
from qkv.generation import GenerationConfig
from qkv.hub import load
from qkv.hub.model_folder import ModelFolder, locate, model_name
from qkv.nn.interfaces import EncoderDecoder, Model
from qkv.pipelines.pipeline import ModelSource
from qkv.registry import lookup, names_keywords, registered
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.task import Task
from qkv.tasks.base.train_config import TrainConfig
from qkv.training.recipe import Recipe
from qkv.training.run import Run, find_run, open_run

ALIGNMENT = ("alignment", "pointing")  # metrics of attention weights
ALL_TESTS = "all-tests"
Progress = Callable[[int], None]


@names_keywords
def evaluate(
    model: ModelSource,
    split: str | Sequence[str] | None = None,
    *,
    data: Any = None,
    limit: int | None = None,
    num_beams: int = 1,
    length_penalty: float = 1.0,
    record: bool = True,
    columns: Mapping[str, str] | None = None,
    strict: bool = False,
    device: str = "auto",
) -> Any:
    """Evaluate a run on a split of its data, by default the first test set, or a model on your own `data`.

        qkv.evaluate("runs/demo", num_beams=4).scores["bleu"]

    Args:
        model: A run, or with `data` any model: a folder, a name or a network.
        split: Name of a split such as "valid" or "test", a list of them, or "all-tests"; by default the first test set.
        data: Your own files in the format of the model's task, a DataFrame, a list of dicts or a dataset of `datasets`.
        limit: Maximum number of examples.
        num_beams: Number of beams, for tasks that generate text.
        length_penalty: Scores are log p / length ** length_penalty, for tasks that generate text.
        record: Append the results of a training run on whole splits to its results.jsonl, for `qkv.compare`.
        columns: Names of the columns of `data` by role.
        strict: Treat empty lines and header rows of `data` as errors.
        device: "auto", "cpu", "cuda", "cuda:N" or "mps".

    Returns:
        An `Evaluation`, or a list of them for a list of splits.
    """
    search = GenerationConfig(num_beams=num_beams, length_penalty=length_penalty)
    splits = [split] if isinstance(split, str) else split
    if is_dataset(data) and isinstance(data, Mapping):
        raise InputError(f"data has the splits {', '.join(data)}: pass one of them, e.g. data[{[*data][-1]!r}]")
    session = open_evaluation(
        model, splits, data_paths(data), columns, search=search, limit=limit, strict=strict, device=device
    )
    results = []
    for name in session.names:
        results.append(session.evaluate(name))
        if record and session.recordable:
            session.record(results[-1])
    return results if isinstance(split, Sequence) and not isinstance(split, str) else results[0]


@dataclass(frozen=True)
class EvaluationSession:
    """A model, its task and the data to evaluate it on."""

    name: str
    run: Run | None
    model: Any
    task: Task
    data: Dataset[Any]
    names: list[str]  # of the splits
    search: GenerationConfig
    recordable: bool  # whether the results are those of the run, on whole splits of its data
    reported: tuple[str, ...] = ()  # metrics that reports show; empty: all
    notes: tuple[str, ...] = ()  # for the user
    whole_sizes: Mapping[str, int] = field(default_factory=dict)  # of splits that `limit` shortens

    def evaluate(self, split: str, progress: Progress = lambda done: None) -> Evaluation:
        """Evaluate the model on a split; `progress` is called with the number of examples done, if it is known."""
        evaluation = evaluate_split(self.task, self.model, self.data, split, self.search, progress)
        whole = self.whole_sizes.get(split)
        if whole is not None and evaluation.size + evaluation.skipped != len(self.data.splits[split]):
            whole = None  # the unit of the evaluation is another one than that of the split
        return replace(evaluation, reported=self.reported, split_size=whole)

    def record(self, evaluation: Evaluation) -> Record:
        """Append an evaluation to the results of the run."""
        assert self.run is not None
        return record_evaluation(self.run, self.model, self.data, evaluation.split, evaluation, self.search)


def open_evaluation(
    model: ModelSource,
    splits: Sequence[str] | None = None,
    files: list[Path] | None = None,
    columns: Mapping[str, str] | None = None,
    *,
    search: GenerationConfig,
    limit: int | None = None,
    strict: bool = False,
    device: str = "auto",
) -> EvaluationSession:
    """Load a model and the splits, or the files, to evaluate it on; all options are checked before."""
    name = model_name(model, network=True)
    folder = None if isinstance(model, nn.Module) else Path(name)
    if files and splits is not None:
        raise InputError("split cannot be combined with data")
    if folder is None and not files:
        raise InputError(f"{name}: a network has no dataset: pass data, or the folder of its run")
    run, data = (find_run(folder) if folder is not None else None, None) if files else open_run(Path(name))
    task_class = run.recipe.task_class if run is not None else task_of_model(model)
    options = {"num_beams": search.num_beams != 1, "length_penalty": search.length_penalty != 1}
    if not task_class.searches and (used := [option for option, value in options.items() if value]):
        raise ConfigError(
            f"{used[0]} requires a model that generates text, but {name} is a model of {task_class.title}"
        )
    network: Any = model if isinstance(model, nn.Module) else load(name, device=device)
    if data is None:
        names = [" and ".join(map(data_name, files or []))]
        data = read_files(name, run, task_class, network.config, files or [], names[0], columns, strict=strict)
        data = replace(data, notes=(*data.notes, *_training_files(run, files or [])))
    else:
        names = select_splits(name, splits, task_class.splits(data))
    notes = data.notes if files else ()
    if splits is None and names == ["valid"]:
        notes = (f"{name} has no test split: the scores are those on valid, on which the checkpoint was chosen",)
    whole_sizes = {}
    if limit is not None:
        first = {split: _first(data.splits[split], limit, task_class) for split in names}
        whole_sizes = {split: size for split in names if (size := len(data.splits[split])) > limit}
        data = replace(data, splits={**data.splits, **first})
    settings = (
        (run.recipe.task, run.recipe.train, run.recipe.seed) if run else (task_class.config_class(), TrainConfig(), 0)
    )
    task = task_class.for_evaluation(data, network, *settings)
    if files:
        task.check_files(data, names[0])
    # Results on part of a split or for a single checkpoint must not be recorded as results of the run.
    recordable = run is not None and not files and folder == run.folder and limit is None and not run.is_packaged
    reported = () if files or run is None else reported_metrics(run.recipe)
    return EvaluationSession(name, run, network, task, data, names, search, recordable, reported, notes, whole_sizes)


def _first(examples: Any, limit: int, task: type[Task]) -> Any:
    """Return the first examples of a split; a text has none."""
    if isinstance(examples, str) or not hasattr(examples, "__getitem__"):
        raise InputError(f"limit requires a split of examples, but {task.title} is evaluated on a whole text")
    return examples[:limit]


def reported_metrics(recipe: Recipe) -> tuple[str, ...]:
    """Return the metrics of the result tables of a built-in dataset, and those of alignments; () for user files."""
    if isinstance(recipe.data, UserFiles):
        return ()
    columns = recipe.task_class.columns or recipe.data.columns
    lowercase = bool(getattr(recipe.data, "lowercase", False))
    names = [column.metric for column in columns if not (column.needs_case and lowercase)]
    return (*names, *ALIGNMENT)


def evaluate_split(
    task: Task,
    model: Any,
    data: Dataset[Any],
    split: str,
    search: GenerationConfig,
    progress: Progress = lambda done: None,
) -> Evaluation:
    """Evaluate a model on a split."""
    began = time.monotonic()
    arguments = {"search": search, "progress": progress} if task.searches else {}
    evaluation = task.evaluate(model, data, split, **arguments)
    metrics = {name: task.metric(name) for name in evaluation.scores}
    return replace(evaluation, seconds=time.monotonic() - began, split=split, metrics=metrics)


def task_of_model(model: ModelSource) -> type[Task]:
    """Return the task of a model that is not a training run: by its head, or that of pairs or recordings."""
    if isinstance(model, nn.Module):
        if not isinstance(model, Model):
            raise InputError(f"{type(model).__name__} is not a model of qkv: pass a run, a folder, a name or a network")
        network, config = type(model), getattr(model, "config", None)
        speech = getattr(model, "log_mel", None) is not None
    else:
        folder = ModelFolder(locate(model))
        network, speech = folder.network, folder.reads_speech
        config = folder.config if folder.is_own else None
    if not issubclass(network, EncoderDecoder) and config is not None:
        head = getattr(config, "head", None)
        tasks = (task for task in registered("task").values() if issubclass(network, task.model))
        for task in tasks if head else ():
            # A task that has the name of its command is the general one of a head.
            if task.model_options.get("head") == head and task.registered_name == task.cli_command:
                return task
    return lookup("task", "transcribe" if speech else "translate")


def read_files(
    model: str,
    run: Run | None,
    task: type[Task],
    config: Any,
    files: list[Path],
    name: str,
    columns: Mapping[str, str] | None = None,
    *,
    strict: bool,
) -> Dataset[Any]:
    """Load the user's files in the format of a task and of its model, as a split called `name`."""
    reader = user_dataset(task.datasets[0].kind)
    if reader is None or len(task.datasets) > 1 or task.datasets[0].kind == "text":
        hint = "; pass your own test text to qkv train (--test)" if task.datasets[0].kind == "text" else ""
        raise InputError(f"{model}: --data is not supported for {task.title}{hint}")
    column = getattr(run.recipe.data, "column", "upos") if run is not None else "upos"
    names = dict(columns or getattr(run and run.recipe.data, "column_names", {}))
    sizes = task.reader_options(config)
    return reader.read_files(files, name, strict=strict, column=column, column_names=names, **sizes)


def _training_files(run: Run | None, files: Sequence[Path]) -> list[str]:
    """Return a note if files are among those that a run was trained on."""
    if run is None or not isinstance(run.recipe.data, UserFiles):
        return []
    trained = run.recipe.data.split_files()["train"] if run.recipe.data.train else []
    paths = {path.resolve() for path in (*map(Path, run.recipe.data.train), *trained)}
    found = [str(path) for path in files if path.resolve() in paths]
    return [f"{' and '.join(found)}: the model was trained on this data; its scores are too high"] if found else []


def select_splits(run: str, requested: Sequence[str] | None, splits: list[str]) -> list[str]:
    """Return the requested splits without duplicates; default: the first test set, else the validation set."""
    tests = [name for name in splits if name.startswith("test")]
    if requested is None:
        return tests[:1] or ["valid"]
    if ALL_TESTS in requested and not tests:
        raise InputError(f"{run}: no test set (available: {', '.join(splits)})")
    names = list(chain.from_iterable(tests if name == ALL_TESTS else [name] for name in requested))
    for name in names:
        if name not in splits:
            raise InputError(f"{run}: no {name} split (available: {', '.join(splits)})")
    return list(dict.fromkeys(names))
