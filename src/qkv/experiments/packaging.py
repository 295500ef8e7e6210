"""Package a training run as a pretrained model: quantize it, evaluate the quantized weights, write its model card."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from qkv.config import read_toml
from qkv.datasets.columns import Column
from qkv.datasets.dataset import Dataset
from qkv.errors import InputError
from qkv.experiments.evaluation import evaluate_split
from qkv.experiments.model_card import model_card, result_columns
from qkv.experiments.results import Record, read_records, record_evaluation
from qkv.generation import GenerationConfig
from qkv.hub import convert, load
from qkv.hub.checkpoint_manifest import MANIFEST_FILE, read_manifest, write_manifest
from qkv.hub.conversion import DTYPES
from qkv.hub.pretrained import CARD, EXAMPLE, NAME, SIZES, CatalogEntry, package_size
from qkv.runtime.files import atomic_folder, check_output_folder, sha256
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.task import Task
from qkv.training.recipe import Recipe, recipe_info
from qkv.training.run import Run
from qkv.training.run_manifest import MANIFEST, RECIPE, Manifest, Version

MAX_BYTES = 40e6  # of all models in the package
FOLDER_KEY = "data.folder"  # override with a path of the machine that trained the model


class Evaluator(Protocol):
    """Evaluates a model on a split."""

    def __call__(
        self, task: Task, model: Any, data: Dataset[Any], split: str, search: GenerationConfig, /
    ) -> Evaluation: ...


@dataclass(frozen=True)
class Package:
    """A packaged model."""

    folder: Path
    size: int  # bytes of all files
    parameters: int
    records: tuple[Record, ...]  # evaluations of the packaged weights

    def catalog_entry(self) -> CatalogEntry:
        """Return the entry of the model in the catalog of models to download."""
        summary = summarize(self.folder)
        manifest = self.folder / MANIFEST_FILE
        return CatalogEntry(
            sha256=sha256(manifest), manifest_bytes=manifest.stat().st_size, task=summary.task, size=self.size,
            score=summary.score, purpose=summary.purpose,
        )  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """A line of the list of pretrained models."""

    name: str
    task: str
    command: str  # CLI command that runs it
    data: str
    size: int  # bytes
    score: str  # first metric of the first recorded evaluation
    purpose: str


def package_run(
    folder: Path,
    out: Path,
    dtype: str = "int8",
    beams: Sequence[int] = (1,),
    notes: Sequence[str] = (),
    max_bytes: float = MAX_BYTES,
    evaluator: Evaluator = evaluate_split,
    example: str = "",
) -> Package:
    """Package a training run as `out`, whose name becomes that of the model; the write is atomic.

    `folder` is a run, or a saved model with the recipe.toml and the results.jsonl of its run. The packaged weights are
    evaluated on the first test split, else on the validation data, with each of these beam sizes if the task searches.
    The card has the results of these recorded evaluations, and `notes` on the use of the model. `example` is an input
    with which pages start.
    """
    if not NAME.fullmatch(out.name):
        raise InputError(f"{out}: {out.name!r} is not the name of a model: use lowercase letters, digits, . _ and -")
    check_output_folder(out)
    recipe, trained = _training(folder)
    data = recipe.data.load()
    if data.fingerprint != trained["data"]:
        raise InputError(f"{folder}: its data have changed since it was trained")
    with atomic_folder(out) as scratch:
        converted = convert(folder, scratch, "qkv", DTYPES[dtype])
        if (size := package_size(scratch)) > max_bytes:
            raise InputError(f"{out}: has {size / 1e6:.1f} MB, more than {max_bytes / 1e6:g} (see --max-size)")
        Manifest((Version(_portable(recipe, folder)),)).write(scratch)
        write_manifest(scratch, trained)
        records = tuple(_evaluate(scratch, data, beams, evaluator))
        card = model_card(out.name, recipe, converted, records, _records(folder), notes, scratch)
        (scratch / CARD).write_text(card, encoding="utf-8")
        (scratch / MANIFEST_FILE).unlink()
        sizes = {path.name: path.stat().st_size for path in sorted(scratch.iterdir())}
        write_manifest(scratch, trained | {SIZES: sizes} | ({EXAMPLE: example} if example else {}))
        size = package_size(scratch)
    return Package(out, size, converted.parameters, records)


def summarize(folder: Path) -> Summary:
    """Return the summary of a packaged model from its recorded recipe and evaluations."""
    run = Run.open(folder)
    record = next(iter(_records(folder)), None)
    purpose = recipe_info(run.recipe.name).purpose
    task = run.recipe.task_class
    data = run.recipe.data.registered_name
    score = "" if record is None else score_text(record, result_columns(run.recipe)[0])
    return Summary(folder.name, task.title, task.cli_command, data, package_size(folder), score, purpose)


def score_text(record: Record, column: Column) -> str:
    """Return a metric of a record with its title: "BLEU 41.30"."""
    measure = record.score(column.metric)
    if measure is None or measure.value is None:
        return ""
    title, percent, _ = column.title.partition(", %")
    return f"{title} {measure.value * column.unit:.{column.digits}f}{'%' if percent else ''}"


def _training(folder: Path) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe of a run, and what its checkpoint, or else its recorded evaluation, states about training."""
    if (folder / MANIFEST).exists():
        run = Run.open(folder)
        if not run.checkpoints:
            raise InputError(f"{folder}: no checkpoints")
        return run.recipe, {key: value for key, value in read_manifest(run.checkpoints[-1]).items() if key != "sha256"}
    if not (folder / RECIPE).exists():
        raise InputError(f"{folder}: neither a training run nor a saved model with the {RECIPE} of its run")
    recipe, record = Recipe.from_table(read_toml(folder / RECIPE), str(folder / RECIPE)), read_records(folder)[-1]
    state = {
        "step": record.steps, "seconds": 60 * record.minutes, "finished": record.finished,
        "devices": [record.trained_on] if record.trained_on else [],
    }  # fmt: skip
    return recipe, {
        "state": state,
        "data": record.data_hash,
        "precision": record.precision,
        "graphs": record.graphs,
        "torch": record.trained_torch,
        "commit": record.trained_commit,
        "source_hash": record.trained_source_hash,
    }


def _portable(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe without the folders of the machine that trained it."""
    if recipe.init is not None and Path(recipe.init).is_absolute():
        raise InputError(f"{folder}: fine-tuned from {recipe.init}, which has no name: package that model first")
    overrides = tuple(item for item in recipe.overrides if item.partition("=")[0].strip() != FOLDER_KEY)
    return recipe.replace(data=recipe.data.replace(folder=None), overrides=overrides)


def _evaluate(folder: Path, data: Dataset[Any], beams: Sequence[int], evaluator: Evaluator) -> Iterator[Record]:
    """Evaluate a model folder with its recipe, and record the results in it."""
    run = Run.open(folder)
    model = load(folder)
    task_class = run.recipe.task_class
    task = task_class.for_evaluation(data, model, run.recipe.task, run.recipe.train, run.recipe.seed)
    splits = task_class.splits(data)
    split = next((name for name in splits if name.startswith("test")), "valid")
    for beam in beams if task_class.searches else (1,):
        search = GenerationConfig(num_beams=beam)
        with torch.inference_mode():
            evaluation = evaluator(task, model, data, split, search)
        yield record_evaluation(run, model, data, split, evaluation, search)


def _records(folder: Path) -> list[Record]:
    """Return the records of a folder; none if it was not evaluated."""
    try:
        return read_records(folder)
    except InputError:
        return []
