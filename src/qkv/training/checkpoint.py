"""Checkpoints: a saved model, and beside it all that is needed to resume training bit for bit.

    config.json, model.safetensors, tokenizer.json    the model, whole
    training.safetensors                              optimizer state, random state, state carried between steps
    shard-00001-model-00001-of-00001.safetensors, ... with several processes: the optimizer state, by
                                                      torch.distributed.checkpoint
    checkpoint.json                                   progress, environment and the SHA-256 of every file

The tensors are copied, and a thread writes the copies while training continues. torch.distributed.checkpoint is slow to
import, and is imported where it is used.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qkv.errors import CheckpointError, InputError
from qkv.hub import Network
from qkv.hub.checkpoint_manifest import write_manifest
from qkv.hub.model_folder import save_model
from qkv.hub.tensors import write_tensors
from qkv.runtime.files import atomic_folder
from qkv.runtime.text import printable
from qkv.tokenizers import Tokenizer
from qkv.training.distributed import background, messages, on_main, world_size
from qkv.types import Tensor

TRAINING = "training.safetensors"  # all that is not part of the model
SHARDS = "shard-*.safetensors"
ATTEMPTS = 3  # to write a checkpoint
PAUSE_S = 0.1  # between them


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint; with several processes, `weights`, `training` and `record` of the first are written."""

    path: Path
    model: Network  # of which the config is saved
    tokenizer: Tokenizer | None
    weights: Mapping[str, Tensor]
    training: Mapping[str, Tensor]
    sharded: Mapping[str, Tensor]  # with several processes, each writes its part
    record: dict[str, Any]


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread; an error is raised by the next call of any method."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def submit(self, checkpoint: Checkpoint, then: Callable[[], None]) -> None:
        """Copy the tensors, and write them in the background; `then` runs on the first process afterwards."""
        self.wait()
        several = world_size() > 1
        weights = copy_to_cpu(checkpoint.weights)
        training = copy_to_cpu(checkpoint.training if several else {**checkpoint.training, **checkpoint.sharded})
        copied = replace(checkpoint, weights=weights, training=training)
        write = self._write_shards(copied, then) if several else partial(_write_alone, copied, then)
        self._pending = self._threads.submit(write)

    def _write_shards(self, checkpoint: Checkpoint, then: Callable[[], None]) -> Callable[[], None]:
        """Begin to write the parts of all processes; return the function that waits for them and writes the rest."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        stack = ExitStack()
        scratch = on_main(lambda: stack.enter_context(atomic_folder(checkpoint.path)))
        storage = HuggingFaceStorageWriter(str(scratch), save_distributed=True)
        written = async_save(dict(checkpoint.sharded), storage_writer=storage, process_group=background())

        def finish(failure: InputError | None) -> None:
            with stack:
                if failure is not None:
                    raise failure
                _write_files(checkpoint, scratch)
            then()

        return lambda: on_main(partial(finish, _failure(written, checkpoint.path)), background)

    def check(self) -> None:
        """Raise the error of the last checkpoint, if it could not be written."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the last checkpoint; its error is raised unless another one ended training."""
        self._threads.shutdown()
        if kind is None:
            self.wait()


def _write_alone(checkpoint: Checkpoint, then: Callable[[], None]) -> None:
    """Write a checkpoint; try again after an error, as the folder may have been removed while it was written."""
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            with atomic_folder(checkpoint.path) as scratch:
                _write_files(checkpoint, scratch)
            break
        except InputError:
            if not attempts_left:
                raise
            time.sleep(PAUSE_S)
    then()


def _write_files(checkpoint: Checkpoint, folder: Path) -> None:
    save_model(checkpoint.model, checkpoint.tokenizer, folder, weights=checkpoint.weights)
    write_tensors(checkpoint.training, folder / TRAINING)
    write_manifest(folder, checkpoint.record)


def _failure(written: Any, path: Path) -> InputError | None:
    """Wait until all processes have written their parts; return the error of the first that could not."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        written.result()
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        return InputError(f"{path}: cannot be written: {getattr(cause, 'strerror', None) or cause}")
    return None


def copy_to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in CPU memory, which training does not change."""
    return {
        name: torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format).copy_(tensor.detach())
        for name, tensor in tensors.items()
    }


def read_sharded(folder: Path, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read what several processes have written for each parameter, sharded like it; their number may be another one.

    The names are `optimizer.PARAMETER.KEY` and `weight.PARAMETER`.
    """
    if not any(folder.glob(SHARDS)):
        return {}
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    tensors = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        kind, _, rest = name.partition(".")
        owner = parameters.get({"optimizer": rest.rpartition(".")[0], "weight": rest}.get(kind, ""))
        if owner is not None and owner.shape == stored.size:  # type: ignore[union-attr]
            tensors[name] = torch.zeros_like(owner, dtype=stored.properties.dtype)  # type: ignore[union-attr]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # with one process
            load(tensors, storage_reader=reader, process_group=messages() if world_size() > 1 else None)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise CheckpointError(f"{folder}: cannot be read: {printable(str(cause))}") from None
    return tensors
