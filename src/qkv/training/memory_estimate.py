"""Estimate the memory that training needs, before the model is allocated.

Parameters, gradients, optimizer state and EMA follow from the sizes of the parameters alone. Activations are measured:
the tensors that autograd saves in the forward pass of one and of two examples of a real batch, extrapolated to all of
its examples. Memory that the backward pass needs for intermediate gradients is not counted.
"""

import copy
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.filesize import decimal as format_bytes
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from qkv.datasets.shards.permutation import LazyBatches
from qkv.errors import InputError, OutOfMemory
from qkv.hub.meta_model import empty_model, meta_model
from qkv.runtime.device import autocast
from qkv.runtime.memory import free_memory, is_out_of_memory, require_memory
from qkv.tasks.base.task import Batch, Task
from qkv.training.distributed import world_size
from qkv.training.environment import largest_precision
from qkv.training.recipe import Recipe
from qkv.training.run import Run
from qkv.types import Tensor

ACCURACY = 2  # the estimate of the activations is right within this factor


def check_memory(
    recipe: Recipe, network: Any, config: Any, task: Task, device: torch.device, warn: Callable[[str], None]
) -> None:
    """Raise if the device has too little free memory to train the model; call `warn` if it may be too little."""
    parts = state_memory(meta_model(network, config, "model"), recipe.train.ema)

    def advice() -> str:
        return f"{_size_to_lower(recipe, network, config)}; --force tries anyway"

    require_memory(
        "this model", {"parameters": parts["parameters"]}, torch.device("cpu"), advice
    )  # it is initialized on the CPU
    require_memory("this model", parts, device, advice)
    activations = activation_memory(network, config, task, device, largest_precision(device, recipe.train))
    free, tokens = free_memory(device), f"train.batch_size ({recipe.train.batch_size:,})"
    if activations is not None:
        activations //= world_size() * recipe.train.accumulate
    if activations is None or free is None or sum(parts.values()) + activations <= free:
        return
    parts |= {"activations of a batch": activations // ACCURACY}
    require_memory("training", parts, device, lambda: f"lower {tokens} or raise train.accumulate; --force tries anyway")
    warn(
        f"note: the activations of a batch need about {format_bytes(activations)}, and {format_bytes(free)} are free "
        f"on {device} for everything: if memory runs out, lower {tokens}"
    )


def state_memory(model: nn.Module, ema: float = 0.0) -> dict[str, int]:
    """Return the bytes allocated throughout training, by name; the model may be on the meta device."""
    parameters = list(model.parameters())
    total = sum(tensor.nbytes for tensor in (*parameters, *model.buffers()))
    trained = sum(parameter.nbytes for parameter in parameters if parameter.requires_grad)
    return {
        "parameters": total,
        "gradients": trained,
        "optimizer": 2 * trained,  # AdamW: the first and the second moment
        "EMA": total if ema else 0,
    }


def activation_memory(
    network: Any, config: Any, task: Task, device: torch.device, precision: str = "float32"
) -> int | None:
    """Estimate the bytes of the activations of the largest batch; None if they cannot be measured.

    Advances the random generators; task and model are unchanged.
    """
    task = copy.copy(task)  # the loss of a language model keeps its last state
    model = empty_model(network, config, None).to(device).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # uninitialized memory may hold NaN

    def saved(batch: Batch) -> int:
        with autocast(device, precision):
            return _saved_bytes(lambda: task.loss(model, batch.to(device)), model)

    try:
        batches = task.epoch(0)
        if isinstance(batches, LazyBatches):
            batches = batches[:1]  # all have the same shape
        # Batches have about the same number of tokens: the one with the most or the longest examples is the largest.
        return max(_extrapolate(task.batch(pick(batches, key=len)), saved) for pick in (max, min))
    except (MemoryError, RuntimeError, ValueError):  # training itself will report the error
        return None


def _extrapolate(batch: Any, saved: Callable[[Batch], int]) -> int:
    """Extrapolate the bytes of a batch from its last one and two examples: the longest ones, if sorted by length."""
    count, *others = {len(tensor) for tensor in batch.tensors.values()}
    if others:
        raise ValueError("the tensors of the batch have no common first dimension")
    one, two = (
        saved(batch.with_tensors({name: tensor[-size:] for name, tensor in batch.tensors.items()}))
        for size in (1, min(2, count))
    )
    return one + (count - 1) * max(0, two - one)


def _saved_bytes(loss: Callable[[], Tensor], model: nn.Module) -> int:
    """Return the bytes of all tensors that autograd saves for a loss, except those of the model."""
    model_storages = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in model_storages:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss()  # keeps the graph alive, and with it every saved tensor
    del result
    return sum(sizes.values())


@contextmanager
def explain_out_of_memory(run: Run) -> Iterator[None]:
    """Replace an out-of-memory error by one that names the setting to lower and how to resume the run."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        lower = f"lower train.batch_size ({run.recipe.train.batch_size:,}) or the sizes of the model"
        saved = "no checkpoint was written yet"
        if run.checkpoints:
            folder = shlex.quote(str(run.folder))
            saved = (
                f"the last checkpoint is {run.checkpoints[-1]}: with more memory, qkv train --resume {folder} resumes "
                f"from it; a new run with a smaller batch can start from it with --set init={folder}"
            )
        raise OutOfMemory(f"out of memory: {lower}; {saved}") from None


def _size_to_lower(recipe: Recipe, network: Any, config: Any) -> str:
    """Name the size, with its value, that shrinks the model most when halved."""
    sizes: dict[str, int] = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if type(value) is not int or value < 2 or name in recipe.task_class.from_data:
            continue
        try:
            smaller = meta_model(network, config.replace(**{name: value // 2}), "model")
        except InputError:  # half is not allowed
            continue
        sizes[name] = sum(parameter.nbytes for parameter in smaller.parameters())
    if not sizes:
        return "lower the sizes of the model"
    name = min(sizes, key=sizes.__getitem__)
    return f"lower model.{name} ({getattr(config, name):,})"
