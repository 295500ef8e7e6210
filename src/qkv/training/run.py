"""A run is a folder: its recipe, its log, and checkpoints from which it continues bit for bit."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv.config import build, read_toml, write_toml
from qkv.data.registry import Loaded, load_data
from qkv.errors import CheckpointError, InputError
from qkv.interop.folder import (
    WEIGHTS,
    Network,
    checkpoint_path,
    checkpoints_in,
    read_tensors,
    read_vocabulary,
    save_model,
    write_tensors,
)
from qkv.interop.seal import read_seal, seal, verify
from qkv.interop.vocabularies import TOKENIZER, AnyTokenizer
from qkv.runtime.files import (
    folder_written_atomically,
    only_one_process,
    remove_folder,
    remove_leftovers,
    write_atomically,
)
from qkv.runtime.randomness import random_state, restore_random_state
from qkv.tasks.task import Task
from qkv.training.average import Average
from qkv.training.circumstances import Circumstances
from qkv.training.recipe import Recipe
from qkv.types import Tensor

RECIPE, LOG, TRAINING = "recipe.toml", "log.jsonl", "training.safetensors"


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

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> "Run":
        """Begin a run in a folder that holds nothing yet."""
        require_free(folder)
        write_atomically(folder / RECIPE, write_toml(recipe.to_dict()).encode())
        return cls(folder, recipe)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Find a run again, to go on with it."""
        if not (folder / RECIPE).exists():
            raise InputError(f"{folder}: no run to go on with (no {RECIPE} there)")
        recipe = build(Recipe, read_toml(folder / RECIPE), str(folder / RECIPE))
        return cls(folder, replace(recipe, data=recipe.data.without_lost_folder()))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the run to this process, and clear away what one that was killed has left."""
        with only_one_process(self.folder):
            remove_leftovers(self.folder)
            yield

    @property
    def checkpoints(self) -> list[Path]:
        """The whole checkpoints, oldest first."""
        return checkpoints_in(self.folder)

    def data(self) -> Loaded:
        """The data that the run was trained on; an error if they are not the same any more."""
        loaded = load_data(self.recipe.data)
        if self.checkpoints and read_seal(self.checkpoints[-1]).get("data") != loaded.fingerprint:
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
        tensors = {f"random.{name}": state for name, state in random_state(model.device).items()}
        tensors |= {f"carried.{name}": value.contiguous() for name, value in task.carried().items()}
        tensors |= {f"buffer.{name}": value.contiguous() for name, value in _buffers(model).items()}
        for name, parameter in model.named_parameters():
            moments = optimizer.state[parameter]
            tensors |= {f"optimizer.{name}.{key}": value.detach().contiguous() for key, value in moments.items()}
        with folder_written_atomically(path) as scratch, average.used() as waiting:
            save_model(model, task.vocabulary, scratch)
            tensors |= {f"weight.{name}": value for name, value in waiting.items()}
            write_tensors(tensors, scratch / TRAINING)
            seal(scratch, {"place": asdict(place), "data": data, **asdict(circumstances)})
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
        if circumstances.device not in place.devices and not place.finished:
            place = replace(place, devices=(*place.devices, circumstances.device))
        return place, circumstances.differences(record)

    def truncate_log(self, place: Place) -> None:
        """Forget what was logged after `place`: those steps will be run, and logged, again."""
        path = self.folder / LOG
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _was_logged_by(place, line)]
            write_atomically(path, "".join(f"{line}\n" for line in kept).encode())

    @staticmethod
    def _verify(path: Path) -> dict[str, Any]:
        try:
            return verify(path)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; remove {path} to go on from the checkpoint before it") from None


def require_free(folder: Path) -> None:
    """Raise where a new run cannot begin."""
    if (folder / RECIPE).exists():
        raise InputError(f"{folder} holds another run: go on with --resume {folder}, or choose another --out")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder} is not empty: choose another --out")


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
