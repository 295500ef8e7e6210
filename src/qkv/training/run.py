"""A run is a folder: its manifest with the recipe, its log, and checkpoints that resume bit for bit."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkv.config import override
from qkv.datasets.dataset import Dataset
from qkv.errors import CheckpointError, InputError, ModelNotFoundError
from qkv.hub.checkpoint_manifest import MANIFEST_FILE, read_manifest, verify_manifest
from qkv.hub.model_folder import CHECKPOINT, checkpoint_step, checkpoints_in, named_folder
from qkv.hub.pretrained import unknown_model
from qkv.runtime.files import (
    check_output_file,
    check_output_folder,
    exclusive_lock,
    is_leftover,
    name_output_errors,
    read_regular,
    remove_folder,
    remove_leftovers,
    write_atomically,
)
from qkv.runtime.notebook import Drawable, quoted
from qkv.tokenizers import Tokenizer, load_tokenizer
from qkv.training.recipe import Recipe
from qkv.training.run_manifest import MANIFEST, RECIPE, Manifest, Version

LOG = "log.jsonl"
MAX_LOG_BYTES = 2**28
RUN_FILES = (MANIFEST, RECIPE, LOG, "results.jsonl", "loggers.json", "tensorboard", "wandb", "profile")
# Keys that can change on resume. The others define the model, the data or how an epoch is divided into batches.
CHANGEABLE = (
    "task.label_smoothing",
    "train.epochs",
    "train.lr",
    "train.warmup",
    "train.decay",
    "train.weight_decay",
    "train.clip",
    "train.precision",
    "train.accumulate",
    "train.parallel",
    "train.graphs",
    "train.validate_every",
    "train.valid_size",
    "train.save_every",
    "train.keep",
    "train.patience",
)


@dataclass(frozen=True)
class Best:
    """Step and value of the best validation so far."""

    step: int
    value: float


@dataclass(frozen=True)
class TrainState:
    """Progress of a run."""

    step: int = 0  # optimizer steps
    epoch: int = 0
    batch: int = 0  # batches of this epoch completed
    seconds: float = 0.0  # of training, summed over resumes
    validated: int = 0  # step of the last validation
    best: Best | None = None
    evals_since_best: int = 0
    finished: bool = False
    devices: tuple[str, ...] = ()  # it was trained on, in order


@dataclass(frozen=True, repr=False)
class Run(Drawable):
    """The folder of a training run, which can be passed to pipelines, `qkv.load`, `qkv.evaluate` and `qkv.view`."""

    folder: Path
    recipe: Recipe
    manifest: Manifest
    opened: Manifest | None = None  # the manifest in the folder when it was opened; None for a new run
    overwrite: bool = False  # delete another run in the folder

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Run({quoted(str(self.folder))}: {', '.join(filter(None, [self.title, self.progress]))})"

    @property
    def title(self) -> str:
        """The recipe, the model and the data: "pairs-gru: rnn_seq2seq on pairs"."""
        return f"{self.recipe.name}: {self.recipe.model.registered_name} on {self.recipe.data.registered_name}"

    @property
    def progress(self) -> str:
        """Steps and best validation so far: "540 steps in 61 s, best valid exact 88.00%"."""
        if not self.checkpoints:
            return "no checkpoint"
        state = read_manifest(self.checkpoints[-1]).get("state", {})
        metric, best = self.recipe.task_class.metrics[self.recipe.train.best_by], state.get("best")
        steps = f"{state.get('step', 0):,} steps in {state.get('seconds', 0):.0f} s"
        parts = [steps, "" if self.finished else "not finished"]
        parts += [f"best valid {metric.name} {metric.shown(best['value'])}"] if best else []
        return ", ".join(filter(None, parts))

    @property
    def log(self) -> list[dict[str, Any]]:
        """Loss and metrics by step, as dicts with the keys "kind" ("train" or "valid") and "step"."""
        return read_log(self.folder)

    @classmethod
    def new(cls, folder: Path, recipe: Recipe, *, overwrite: bool = False) -> "Run":
        """Return a run that `lock` will create in a folder."""
        return cls(folder, recipe, Manifest((Version(recipe),)), overwrite=overwrite)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Open the run in a folder."""
        if not (folder / MANIFEST).exists():
            raise InputError(f"{folder}: not a training run (no {MANIFEST} there)")
        manifest = Manifest.read(folder)
        recipe = manifest.recipe
        if recipe.data.folder is not None and not Path(recipe.data.folder).is_dir():
            # The files are identified by hash and may be elsewhere.
            recipe = recipe.replace(data=recipe.data.replace(folder=None))
        return cls(folder, recipe, manifest, manifest)

    def with_overrides(self, assignments: Sequence[str]) -> "Run":
        """Return the run with keys of `train` changed from the newest checkpoint on."""
        for assignment in assignments:
            if assignment.partition("=")[0].strip() not in CHANGEABLE:
                raise InputError(
                    f"--set {assignment}: cannot be changed on resume ({', '.join(CHANGEABLE)} can); "
                    f"a new run can start from these weights with --set init={self.folder}"
                )
        recipe = self.manifest.recipe
        table = {**override(recipe.to_dict(), assignments), "overrides": (*recipe.overrides, *assignments)}
        recipe = Recipe.from_table(table, "--set")
        step = checkpoint_step(self.checkpoints[-1]) if self.checkpoints else 0
        versions = (*self.manifest.versions, Version(recipe, step, tuple(assignments)))
        return replace(self, recipe=recipe, manifest=Manifest(versions))

    def check_folder(self) -> None:
        """Raise if a new run cannot be started in the folder."""
        if self.opened is not None:
            return
        if not (self.folder / MANIFEST).exists():
            check_output_folder(self.folder, ignore=is_leftover)  # left by a killed process
            return
        if not self.overwrite:
            raise InputError(
                f"{self.folder}: holds another run: resume it (--resume, in Python resume={str(self.folder)!r}), "
                "replace it (--overwrite, overwrite=True), or choose another folder (--output, output=...)"
            )
        others = [path.name for path in self.folder.iterdir() if not _is_part_of_run(path.name)]
        if others:
            raise InputError(f"{self.folder}: --overwrite deletes a run only, but there is also {sorted(others)[0]}")
        if self.recipe.init is not None and Path(self.recipe.init).resolve().is_relative_to(self.folder.resolve()):
            raise InputError(f"{self.folder}: --overwrite would delete init = {self.recipe.init}")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process, write the manifest and remove leftovers of a killed process."""
        self.check_folder()
        with name_output_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(self.folder):
            # Another process may have changed the folder since it was checked.
            if self.opened is None:
                self.check_folder()
                remove_run(self.folder)
            elif Manifest.read(self.folder) != self.opened:
                raise InputError(f"{self.folder}: its recipe was changed by another process: try again")
            remove_leftovers(self.folder)
            self.manifest.write(self.folder)
            yield

    @property
    def is_packaged(self) -> bool:
        """Whether the folder is that of a packaged model: its only checkpoint, without the state of training."""
        return (self.folder / MANIFEST_FILE).exists()

    @property
    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        return [self.folder] if self.is_packaged else checkpoints_in(self.folder)

    @property
    def finished(self) -> bool:
        """Whether the newest checkpoint is that of the end of training."""
        return bool(self.checkpoints) and bool(read_manifest(self.checkpoints[-1]).get("state", {}).get("finished"))

    def data(self) -> Dataset[Any]:
        """Load the data that the run was trained on; raise if they have changed."""
        loaded = self.recipe.data.load()
        if self.checkpoints and read_manifest(self.checkpoints[-1]).get("data") != loaded.fingerprint:
            raise InputError(f"{self.folder}: its data have changed since it was trained: give --data")
        return loaded

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of the newest checkpoint; None if it has none."""
        if not self.checkpoints:
            return None
        self.verify(self.checkpoints[-1])
        return load_tokenizer(self.checkpoints[-1])

    def truncate_log(self, state: TrainState) -> None:
        """Remove the log entries after `state`: those steps will be run and logged again."""
        path = self.folder / LOG
        check_output_file(path)
        if path.exists():
            lines = read_regular(path).decode("utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _is_logged_by(state, line)]
            write_atomically(path, "".join(f"{line}\n" for line in kept).encode())

    @staticmethod
    def verify(path: Path) -> dict[str, Any]:
        """Check the files of a checkpoint against its manifest, and return what it records."""
        try:
            return verify_manifest(path)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; remove {path} to resume from the previous checkpoint") from None


def open_run(run: Path) -> tuple[Run, Dataset[Any]]:
    """Return the training run of a run or checkpoint directory, and its data."""
    training_run = find_run(run)
    if training_run is None:
        runs = sorted(path.parent.name for path in run.glob("*/manifest.json"))
        hint = f"pass one of the runs in it, e.g. {run / runs[0]}" if runs else "pass --data"
        raise InputError(f"{run}: not a training run, so it has no dataset: {hint}")
    return training_run, training_run.data()


def find_run(run: Path) -> Run | None:
    """Return the training run of a run or checkpoint directory; None for other model folders."""
    run = named_folder(run)
    if not run.exists():
        raise ModelNotFoundError(unknown_model(str(run)))
    folder = next((folder for folder in (run, run.parent) if (folder / MANIFEST).exists()), None)
    return None if folder is None else Run.open(folder)


def read_log(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's log; a run without a log has none, and malformed lines are left out."""
    path = run / LOG
    if not path.is_file():
        return []
    records = []
    for line in read_regular(path, MAX_LOG_BYTES).decode("utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def _is_part_of_run(name: str) -> bool:
    """Return whether a file of a run's folder was written by training or evaluation."""
    return name in RUN_FILES or CHECKPOINT.fullmatch(name) is not None or is_leftover(name)


def remove_run(folder: Path) -> None:
    """Delete the run in a folder, if there is one; the manifest goes last, so that it can be done again if killed."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
        if path.is_dir() and not path.is_symlink():
            remove_folder(path)
        elif not is_leftover(path.name):
            path.unlink()


def _is_logged_by(state: TrainState, line: str) -> bool:
    """Return whether a log line belongs to a step up to `state`; False for a malformed line."""
    try:
        record = json.loads(line)
        return int(record["step"]) <= (state.step if record["kind"] == "train" else state.validated)
    except (ValueError, KeyError, TypeError):
        return False
