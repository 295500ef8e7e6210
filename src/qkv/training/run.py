"""A run is a folder: its manifest with the recipe, its log, and checkpoints that resume bit for bit."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv.config import build, override
from qkv.datasets.dataset import Dataset
from qkv.errors import CheckpointError, InputError
from qkv.hub.checkpoint_manifest import read_manifest, verify_manifest, write_manifest
from qkv.hub.model_folder import CHECKPOINT, Network, checkpoint_path, checkpoint_step, checkpoints_in, save_model
from qkv.hub.tensors import WEIGHTS, read_tensors, write_tensors
from qkv.runtime.device import random_state, restore_random_state
from qkv.runtime.files import (
    atomic_folder,
    check_output_file,
    check_output_folder,
    create_folder,
    exclusive_lock,
    is_leftover,
    name_output_errors,
    read_regular,
    remove_folder,
    remove_leftovers,
    write_atomically,
)
from qkv.tasks.task import Task
from qkv.tokenizers import Tokenizer, load_tokenizer
from qkv.training.ema import EMA
from qkv.training.environment import RunEnvironment
from qkv.training.recipe import Recipe
from qkv.training.run_manifest import MANIFEST, RECIPE, Manifest, Version
from qkv.types import Tensor

LOG, TRAINING = "log.jsonl", "training.safetensors"
RUN_FILES = (MANIFEST, RECIPE, LOG, "results.jsonl", "tensorboard")
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


@dataclass(frozen=True)
class Run:
    """The folder of a training run."""

    folder: Path
    recipe: Recipe
    manifest: Manifest
    opened: Manifest | None = None  # the manifest in the folder when it was opened; None for a new run
    overwrite: bool = False  # delete another run in the folder

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
                f"{self.folder}: holds another run; resume it with --resume {self.folder}, replace it with "
                "--overwrite, or choose another --output"
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
            create_folder(self.folder)
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
    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        return checkpoints_in(self.folder)

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
        self._verify(self.checkpoints[-1])
        return load_tokenizer(self.checkpoints[-1])

    def save(
        self,
        state: TrainState,
        task: Task,
        model: Network,
        optimizer: torch.optim.Optimizer,
        ema: EMA | None,
        data: str,
        environment: RunEnvironment,
    ) -> Path:
        """Write a checkpoint atomically, and remove the oldest beyond `train.keep`."""
        path = checkpoint_path(self.folder, state.step)
        if not (self.folder / MANIFEST).exists():  # the folder was removed or renamed while training
            self.manifest.write(self.folder)
        tensors = {f"random.{name}": value for name, value in random_state(model.device).items()}
        tensors |= {f"carried.{name}": value.contiguous() for name, value in task.carried_state().items()}
        tensors |= {f"buffer.{name}": value.contiguous() for name, value in _buffers(model).items()}
        for name, parameter in model.named_parameters():
            moments = optimizer.state[parameter]
            tensors |= {f"optimizer.{name}.{key}": value.detach().contiguous() for key, value in moments.items()}
        if ema is not None:
            tensors |= {f"weight.{name}": value for name, value in model.named_parameters()}
        with atomic_folder(path) as scratch:
            save_model(model if ema is None else ema.module, task.tokenizer, scratch)
            write_tensors(tensors, scratch / TRAINING)
            write_manifest(scratch, {"state": asdict(state), "data": data, **asdict(environment)})
        best = state.best and checkpoint_path(self.folder, state.best.step)
        for old in [old for old in self.checkpoints if old != best][: -self.recipe.train.keep]:
            remove_folder(old)
        return path

    def restore(
        self,
        task: Task,
        model: Network,
        optimizer: torch.optim.Optimizer,
        ema: EMA | None,
        data: str,
        environment: RunEnvironment,
    ) -> tuple[TrainState, tuple[str, ...]]:
        """Restore model, optimizer, EMA and random state from the newest checkpoint; return its state and notes."""
        if not self.checkpoints:
            return TrainState(devices=(environment.device,)), ()
        path = self.checkpoints[-1]
        record = self._verify(path)
        if record["data"] != data:
            raise InputError(f"{self.folder}: the data have changed since this run was started; start a new run")
        weights = read_tensors(path / WEIGHTS, {name: p.shape for name, p in model.named_parameters()})
        saved = read_tensors(path / TRAINING)
        raw_weights = weights if ema is None else _with_prefix("weight.", saved)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(raw_weights[name])
                optimizer.state[parameter] = _moments(saved, name, parameter)
            # In place: CUDA graphs will be captured with this memory.
            for name, buffer in _buffers(model).items():
                buffer.copy_(saved.get(f"buffer.{name}", buffer))  # missing from old checkpoints
        if ema is not None:
            ema.restore(weights)
        task.load_carried_state(model, _with_prefix("carried.", saved))
        restore_random_state(_with_prefix("random.", saved), model.device)
        state = build(TrainState, record["state"], str(path))
        if state.finished and self.manifest.extends_training(state.step):
            state = replace(state, finished=False)
        if environment.device not in state.devices and not state.finished:
            state = replace(state, devices=(*state.devices, environment.device))
        return state, environment.differences(record)

    def truncate_log(self, state: TrainState) -> None:
        """Remove the log entries after `state`: those steps will be run and logged again."""
        path = self.folder / LOG
        check_output_file(path)
        if path.exists():
            lines = read_regular(path).decode("utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _is_logged_by(state, line)]
            write_atomically(path, "".join(f"{line}\n" for line in kept).encode())

    @staticmethod
    def _verify(path: Path) -> dict[str, Any]:
        try:
            return verify_manifest(path)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; remove {path} to resume from the previous checkpoint") from None


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
        return int(record["step"]) <= (state.validated if record["kind"] == "valid" else state.step)
    except (ValueError, KeyError, TypeError):
        return False


def _buffers(model: Network) -> dict[str, Tensor]:
    """Return the persistent buffers of a model, such as the baseline of hard attention; used in training only."""
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in model.state_dict().items() if name not in weights}


def _moments(saved: dict[str, Tensor], name: str, parameter: Tensor) -> dict[str, Tensor]:
    """Return the optimizer state of one parameter, on its device."""
    moments = _with_prefix(f"optimizer.{name}.", saved)
    return {key: value.to(parameter.device) for key, value in moments.items() if "." not in key}


def _with_prefix(prefix: str, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, keyed by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}
