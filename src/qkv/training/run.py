"""A run is a folder: its manifest with the recipe, its log, and checkpoints from which it continues bit for bit."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv.config import build, override
from qkv.data.registry import Loaded, load_data
from qkv.errors import CheckpointError, InputError
from qkv.interop.folder import (
    WEIGHTS,
    Network,
    checkpoint_path,
    checkpoint_step,
    checkpoints_in,
    read_tensors,
    read_vocabulary,
    save_model,
    write_tensors,
)
from qkv.interop.manifest import read_manifest, verify_manifest, write_manifest
from qkv.interop.vocabularies import TOKENIZER, AnyTokenizer
from qkv.runtime.files import (
    atomic_folder,
    check_output_file,
    check_output_folder,
    exclusive_lock,
    is_leftover,
    read_regular,
    remove_folder,
    remove_leftovers,
    write_atomically,
)
from qkv.runtime.randomness import random_state, restore_random_state
from qkv.tasks.task import Task
from qkv.training.average import Average
from qkv.training.circumstances import Circumstances
from qkv.training.manifest import MANIFEST, Manifest
from qkv.training.recipe import Recipe
from qkv.types import Tensor

LOG, TRAINING = "log.jsonl", "training.safetensors"
# The keys that a resumed run can change. The others decide the model, the data or how an epoch is divided into batches.
CHANGEABLE = (
    "epochs",
    "lr",
    "warmup",
    "decay",
    "weight_decay",
    "clip",
    "label_smoothing",
    "precision",
    "graphs",
    "validate_every",
    "valid_size",
    "save_every",
    "keep",
    "patience",
)


@dataclass(frozen=True)
class Best:
    """The best validation so far."""

    step: int
    value: float


@dataclass(frozen=True)
class Place:
    """How far a run has come."""

    step: int = 0  # updates made
    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    seconds: float = 0.0  # of training, over all parts of an interrupted run
    validated: int = 0  # the last step whose model was validated
    best: Best | None = None
    stale: int = 0  # validations since the best one
    finished: bool = False
    devices: tuple[str, ...] = ()  # it was trained on, one after another


@dataclass(frozen=True)
class Run:
    """The folder of a training run."""

    folder: Path
    recipe: Recipe
    manifest: Manifest
    opened: Manifest | None = None  # what the folder held when it was opened; None: there was no run

    @classmethod
    def new(cls, folder: Path, recipe: Recipe) -> "Run":
        """A run that has no folder yet."""
        require_free(folder)
        return cls(folder, recipe, Manifest.of(recipe))

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """The run that a folder holds."""
        if not (folder / MANIFEST).exists():
            raise InputError(f"{folder}: not a training run (no {MANIFEST} there)")
        manifest = Manifest.read(folder)
        recipe = replace(manifest.recipe, data=manifest.recipe.data.without_lost_folder())
        return cls(folder, recipe, manifest, manifest)

    def changed(self, assignments: Sequence[str]) -> "Run":
        """The run with keys of `train` set to other values from here on."""
        for assignment in assignments:
            table, _, key = assignment.partition("=")[0].strip().partition(".")
            if table != "train" or key not in CHANGEABLE:
                raise InputError(
                    f"--set {assignment}: cannot be changed on resume (train.{', train.'.join(CHANGEABLE)} can); "
                    f"a new run can start from these weights with --set init={self.folder}"
                )
        recipe = build(Recipe, override(self.manifest.recipe.to_dict(), assignments), "--set")
        step = checkpoint_step(self.checkpoints[-1]) if self.checkpoints else 0
        return replace(self, recipe=recipe, manifest=self.manifest.changed(recipe, step, assignments))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the folder to this process; the manifest is written, and leftovers of a killed process are removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(self.folder):
            # Another process may have been here since the folder was looked at.
            if self.opened is None:
                require_free(self.folder)
            elif Manifest.read(self.folder) != self.opened:
                raise InputError(f"{self.folder}: its recipe was changed by another process: try again")
            remove_leftovers(self.folder)
            self.manifest.write(self.folder)
            yield

    @property
    def checkpoints(self) -> list[Path]:
        """The whole checkpoints, oldest first."""
        return checkpoints_in(self.folder)

    def data(self) -> Loaded:
        """The data that the run was trained on; an error if they are not the same any more."""
        loaded = load_data(self.recipe.data)
        if self.checkpoints and read_manifest(self.checkpoints[-1]).get("data") != loaded.fingerprint:
            raise InputError(f"{self.folder}: its data have changed since it was trained: give --data")
        return loaded

    @property
    def vocabulary(self) -> AnyTokenizer | None:
        """The vocabulary that the run's checkpoints carry; None where there is no text."""
        if not self.checkpoints:
            return None
        self._verify(self.checkpoints[-1])
        return read_vocabulary(self.checkpoints[-1]) if (self.checkpoints[-1] / TOKENIZER).exists() else None

    def save(
        self,
        place: Place,
        task: Task,
        model: Network,
        optimizer: torch.optim.Optimizer,
        average: Average,
        data: str,
        circumstances: Circumstances,
    ) -> Path:
        """Write a checkpoint, whole or not at all, and drop the oldest beyond those to keep."""
        path = checkpoint_path(self.folder, place.step)
        if not (self.folder / MANIFEST).exists():  # the folder was removed or renamed while training
            self.manifest.write(self.folder)
        tensors = {f"random.{name}": state for name, state in random_state(model.device).items()}
        tensors |= {f"carried.{name}": value.contiguous() for name, value in task.carried().items()}
        tensors |= {f"buffer.{name}": value.contiguous() for name, value in _buffers(model).items()}
        for name, parameter in model.named_parameters():
            moments = optimizer.state[parameter]
            tensors |= {f"optimizer.{name}.{key}": value.detach().contiguous() for key, value in moments.items()}
        with atomic_folder(path) as scratch, average.used() as waiting:
            save_model(model, task.vocabulary, scratch)
            tensors |= {f"weight.{name}": value for name, value in waiting.items()}
            write_tensors(tensors, scratch / TRAINING)
            write_manifest(scratch, {"place": asdict(place), "data": data, **asdict(circumstances)})
        best = place.best and checkpoint_path(self.folder, place.best.step)
        for old in [old for old in self.checkpoints if old != best][: -self.recipe.train.keep]:
            remove_folder(old)
        return path

    def restore(
        self,
        task: Task,
        model: Network,
        optimizer: torch.optim.Optimizer,
        average: Average,
        data: str,
        circumstances: Circumstances,
    ) -> tuple[Place, tuple[str, ...]]:
        """Put everything that training changes back to the newest checkpoint; gives its place, and notes."""
        if not self.checkpoints:
            return Place(devices=(circumstances.device,)), ()
        path = self.checkpoints[-1]
        record = self._verify(path)
        if record["data"] != data:
            raise InputError(f"{self.folder}: the data have changed since this run began; start a new run")
        weights = read_tensors(path / WEIGHTS, {name: p.shape for name, p in model.named_parameters()})
        saved = read_tensors(path / TRAINING)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
                optimizer.state[parameter] = _moments(saved, name, parameter)
            # In place: a graph that will be captured looks at this memory.
            for name, buffer in _buffers(model).items():
                buffer.copy_(saved.get(f"buffer.{name}", buffer))  # checkpoints of before they were kept have none
        average.restore(_under("weight.", saved))
        task.carry(model, _under("carried.", saved))
        restore_random_state(_under("random.", saved), model.device)
        place = build(Place, record["place"], str(path))
        if place.finished and self.manifest.extends_training(place.step):
            place = replace(place, finished=False)
        if circumstances.device not in place.devices and not place.finished:
            place = replace(place, devices=(*place.devices, circumstances.device))
        return place, circumstances.differences(record)

    def truncate_log(self, place: Place) -> None:
        """Forget what was logged after `place`: those steps will be run, and logged, again."""
        path = self.folder / LOG
        check_output_file(path)
        if path.exists():
            lines = read_regular(path).decode("utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _was_logged_by(place, line)]
            write_atomically(path, "".join(f"{line}\n" for line in kept).encode())

    @staticmethod
    def _verify(path: Path) -> dict[str, Any]:
        try:
            return verify_manifest(path)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; remove {path} to go on from the checkpoint before it") from None


def require_free(folder: Path) -> None:
    """Raise where a new run cannot be started; what a killed process left in its folder does not matter."""
    if (folder / MANIFEST).exists():
        raise InputError(f"{folder}: holds another run; resume it with --resume {folder}, or choose another --out")
    check_output_folder(folder, ignore=is_leftover)


def _was_logged_by(place: Place, line: str) -> bool:
    """Whether a line of the log is about something that lay behind at `place`; one cut short, or not ours, is not."""
    try:
        record = json.loads(line)
        return int(record["step"]) <= (place.validated if record["kind"] == "valid" else place.step)
    except (ValueError, KeyError, TypeError):
        return False


def _buffers(model: Network) -> dict[str, Tensor]:
    """What a model keeps besides its weights, such as the baseline of hard attention; training alone looks at it."""
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in model.state_dict().items() if name not in weights}


def _moments(saved: dict[str, Tensor], name: str, parameter: Tensor) -> dict[str, Tensor]:
    """The optimizer's state of one parameter, on the parameter's device."""
    found = _under(f"optimizer.{name}.", saved)
    return {key: value.to(parameter.device) for key, value in found.items() if "." not in key}


def _under(prefix: str, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}
