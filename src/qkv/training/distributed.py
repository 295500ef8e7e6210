"""Training on several processes with torch.distributed, and in several parts on each of them.

`torchrun` starts the processes. All of them read the same batches in the same order, whatever their number; each
computes the loss of its part of every batch, and the gradients are summed:

    loss = sum_i (tokens of part i / tokens of the batch) * (mean loss of part i)

DistributedDataParallel (DDP) keeps a copy of the weights and of the optimizer state on every process; FSDP2
(`fully_shard`) shards both. With `train.accumulate`, each process computes its part in several passes.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from qkv.errors import InputError, QkvError
from qkv.runtime.device import autocast, pick_device
from qkv.tasks.base.task import Task
from qkv.tasks.base.train_config import TrainConfig
from qkv.training.step import StepOutput, TrainStep
from qkv.types import Float, Tensor

TIMEOUT = timedelta(days=7)  # the other processes wait while the first one validates
T = TypeVar("T")


@contextmanager
def process_group(device: str) -> Iterator[str]:
    """Join the processes of `torchrun`, if it started this one; yield the device of this process."""
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield device
        return
    cuda = pick_device(device).type == "cuda"
    if cuda:
        local_rank, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if device not in ("auto", "cuda"):
            raise InputError(f"--device {device}: torchrun gives each process its own GPU; use --device cuda or cpu")
        if local_rank >= count:
            raise InputError(f"torchrun --nproc-per-node is larger than the number of GPUs of this machine, {count}")
        device = f"cuda:{local_rank}"
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    yield device
    # Not after an error, when other processes may be gone. A group that outlives this could abort at exit.
    dist.barrier()
    messages.cache_clear()
    background.cache_clear()
    dist.destroy_process_group()


def rank() -> int:
    """Number of this process; 0 without torchrun."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this process writes the log, validates and saves."""
    return rank() == 0


@cache
def messages() -> Any:
    """Process group for messages between the training loops."""
    return dist.new_group(backend="gloo", timeout=TIMEOUT)


@cache
def background() -> Any:
    """Process group of the threads that write checkpoints."""
    return dist.new_group(backend="gloo", timeout=TIMEOUT)


def on_main(function: Callable[[], T], group: Callable[[], Any] = messages) -> T:
    """Call a function on the first process; return its result, or raise its error, on all."""
    if world_size() == 1:
        return function()
    outcome: list[Any] = [None, None]
    if is_main():
        try:
            outcome[0] = function()
        except QkvError as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0, group=group())
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def main_first(function: Callable[[], T]) -> T:
    """Call a function on the first process, then on the others: it may download files and fill caches."""
    results: list[T] = []
    on_main(lambda: results.append(function()))
    return results[0] if results else function()


def any_process(flag: bool) -> bool:
    """Whether the flag is set on at least one process."""
    if world_size() == 1:
        return flag
    value = torch.tensor(int(flag))
    dist.all_reduce(value, dist.ReduceOp.MAX, group=messages())
    return bool(value)


def gather(value: T) -> list[T]:
    """Return the values of all processes on the first one, and an empty list on the others."""
    if world_size() == 1:
        return [value]
    values: list[Any] | None = [None] * world_size() if is_main() else None
    dist.gather_object(value, values, dst=0, group=messages())
    return values or []


def require_same(values: Mapping[str, Any]) -> None:
    """Raise unless all processes have the same values."""
    gathered = gather(dict(values))

    def compare() -> None:
        for number, other in enumerate(gathered):
            for name in values:
                if other[name] != values[name]:
                    raise InputError(f"process {number} has another {name} than process 0: all need the same files")

    on_main(compare)


@dataclass(frozen=True)
class Parts:
    """The parts of a batch that this process computes, each with its fraction of the batch's tokens."""

    parts: list[tuple[Any, float]]
    tokens: int  # of the whole batch

    def to(self, device: torch.device) -> "Parts":
        """Move the parts to a device."""
        return Parts([(part.to(device), fraction) for part, fraction in self.parts], self.tokens)


def split(batch: Any, accumulate: int) -> Parts:
    """Split a batch between the processes, and the part of each into `accumulate` parts."""
    parts = batch.split(world_size() * accumulate)
    own = parts[rank() * accumulate : (rank() + 1) * accumulate]
    if world_size() == 1:  # FSDP needs the same number of parts on all processes
        own = [(part, fraction) for part, fraction in own if fraction]
    return Parts(own, batch.tokens)


class LossModule(nn.Module):
    """The loss of a task as a module, since DDP and FSDP2 act on the `forward` of a module."""

    def __init__(self, task: Task, model: Any) -> None:
        super().__init__()
        self.loss = task.loss
        self.model = model

    def forward(self, batch: Any) -> Float[Tensor, ""]:
        return self.loss(self.model, batch)


def parallelize(task: Task, model: Any, config: TrainConfig) -> nn.Module:
    """Return the loss module of a model, wrapped for several processes; FSDP2 replaces the parameters of the model."""
    module = LossModule(task, model)
    if world_size() * config.accumulate > 1 and not task.splittable:
        raise InputError(f"{task.title}: its batches cannot be split: use one process and train.accumulate = 1")
    if world_size() == 1:
        return module
    if training_buffers(model):
        raise InputError("hard attention with a moving-average baseline needs one process: set model.align.baseline")
    if config.parallel == "fsdp":
        if config.optimizer == "muon":
            raise InputError("train.optimizer muon needs whole matrices: use train.parallel = ddp, or adamw")
        # The keys and values that some blocks return are views, and nothing changes them in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
        return shard(model, module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames broadcast_buffers
        # Both options find parameters without a gradient; static_graph once, but not with `no_sync`.
        once = config.accumulate == 1
        return DistributedDataParallel(
            module, broadcast_buffers=False, static_graph=once, find_unused_parameters=not once
        )


def shard(model: Any, module: nn.Module | None = None) -> Any:
    """Shard the blocks of a model one by one, and the rest together with the module that computes its loss."""
    from torch.distributed.fsdp import fully_shard  # slow to import, and only used with several processes

    for block in model.repeated_blocks:
        fully_shard(block)
    return fully_shard(model if module is None else module)


def training_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the persistent buffers of a model, such as the baseline of hard attention; used in training only."""
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in model.state_dict().items() if name not in weights}


class SplitTrainStep(TrainStep[Any]):
    """Loss and gradients of a batch, summed over its parts on all processes."""

    def __init__(self, module: nn.Module, precision: str, clip: float) -> None:
        super().__init__(module, module, precision, clip)

    def __call__(self, batch: Parts) -> StepOutput:
        """Replace the gradients of the parameters by those of a batch."""
        total = torch.zeros((), device=self.device)
        for parameter in self.parameters:
            parameter.grad = None
        for number, (part, fraction) in enumerate(batch.parts, start=1):
            with self._synchronize(number == len(batch.parts)):
                with autocast(self.device, self.precision):
                    loss = self.loss(part) * fraction
                (loss * world_size()).backward()  # DDP and FSDP2 divide by the number of processes
            total += loss.detach()
        if world_size() > 1:
            dist.all_reduce(total)
        norm = nn.utils.get_total_norm([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        norm = whole(norm)
        nn.utils.clip_grads_with_norm_(self.parameters, self.clip, norm)
        return StepOutput(total, norm)

    def _synchronize(self, last: bool) -> Any:
        """Return a context in which gradients are summed over the processes only if it is the last part."""
        module: Any = self.model
        if isinstance(module, DistributedDataParallel) and not last:
            return module.no_sync()
        if hasattr(module, "set_requires_gradient_sync"):  # of FSDP2
            module.set_requires_gradient_sync(last)
        return nullcontext()


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which this process has a part."""
    return type(tensor) is not Tensor and hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Tensor:
    """Gather a sharded tensor from all processes; other tensors are returned as they are."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def local(tensor: Any) -> Tensor:
    """Return the part of a sharded tensor on this process; other tensors are returned as they are."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def like(value: Tensor, parameter: Any) -> Tensor:
    """Return a whole tensor on the device of a parameter, sharded like it if both have the same shape."""
    value = value.to(parameter.device)
    if not is_sharded(parameter) or is_sharded(value) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


@torch.no_grad()
def gather_weights(model: nn.Module, replica: nn.Module | None) -> None:
    """Copy the weights of a sharded model into a plain copy of it on the first process; all processes call this."""
    targets = {} if replica is None else dict(replica.named_parameters())
    for name, parameter in model.named_parameters():
        value = whole(parameter)
        if name in targets:
            targets[name].copy_(value)
