"""Device, precision and code version of a run: if they change, results may differ in the last digits."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from qkv.nn.interfaces import Model
from qkv.runtime import provenance
from qkv.runtime.device import autocast
from qkv.tasks.base.task import Task
from qkv.tasks.base.train_config import TrainConfig
from qkv.training.distributed import world_size

COMPILE_OPERATIONS = 3e16  # of a run: about two minutes on an H200, of which compiling saves more than it takes
BFLOAT16_OPERATIONS = 3e9  # of a step on the CPU: on an EPYC Zen 4, smaller ones are no faster in bfloat16
SDPA = tuple(f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn"))  # operators
AFFECTS_NUMERICS = ("device", "precision", "graphs", "compiled", "processes", "parallel", "torch")


@dataclass(frozen=True)
class RunEnvironment:
    """Device, precision and software versions."""

    device: str  # model name; for a CPU with the number of threads
    precision: str  # "float32" or "bfloat16"
    graphs: bool  # whether steps are captured in CUDA graphs
    compiled: bool  # whether the blocks of the model are compiled
    processes: int  # that compute a batch
    parallel: str  # "ddp" or "fsdp"; "none" with one process
    torch: str
    commit: str  # "" outside a checkout
    source_hash: str

    def differences(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        """Describe how this environment differs from a recorded one; keys missing from the record are skipped."""
        if "device" in record:
            record = {**record, "device": provenance.recorded_device(record["device"])}
        notes = tuple(
            f"{name} was {record[name]} and is now {getattr(self, name)}: results may differ in the last digits"
            for name in AFFECTS_NUMERICS
            if name in record and record[name] != getattr(self, name)
        )
        if record.get("source_hash", self.source_hash) != self.source_hash:
            notes += ("the source code of qkv has changed since the checkpoint was saved: results may differ",)
        return notes


def current_environment(model: Model, task: Task, config: TrainConfig) -> RunEnvironment:
    """Return the environment of this process."""
    device, split = model.device, world_size() * config.accumulate > 1
    return RunEnvironment(
        device=provenance.device_name(device),
        precision=choose_precision(model, task, config),
        graphs=device.type == "cuda" and config.graphs and task.capturable and not (config.recompute or split),
        compiled=_compiles(model, task, config),
        processes=world_size(),
        parallel=config.parallel if world_size() > 1 else "none",
        torch=torch.__version__,
        commit=provenance.commit(),
        source_hash=provenance.source_hash(),
    )


def _compiles(model: Model, task: Task, config: TrainConfig) -> bool:
    """Return whether to compile the blocks; the choice depends on the recipe alone, so a resumed run repeats it."""
    if not model.compiled_blocks or config.compile == "never":
        return False
    if config.compile == "always":
        return True
    steps = config.epochs * len(task.epoch(0))
    return model.device.type == "cuda" and steps * step_operations(model, task, config) >= COMPILE_OPERATIONS


def step_operations(model: Model, task: Task, config: TrainConfig) -> int:
    """Return the floating-point operations of a training step: three times those of the forward pass.

    Counted on an example of the first batch, without changing the model, the task or the random state.
    """
    task, device = copy.copy(task), model.device  # the loss of a language model keeps its last state
    batch: Any = task.batch(task.epoch(0)[0], padded_to_shape=True)
    tensors = {name: tensor for name, tensor in batch.tensors.items() if name not in batch.shared}
    sizes = {len(tensor) for tensor in tensors.values()}
    examples = sizes.pop() if len(sizes) == 1 else 1
    if examples > 1:
        batch = batch.with_tensors({name: tensor[:1] for name, tensor in tensors.items()})
    training, trainable = model.training, [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    for parameter in trainable:  # not no_grad: the counter fails on tensors that require a gradient but have no graph
        parameter.requires_grad_(False)
    with autocast(device, largest_precision(device, config)), _operation_counter() as counter:
        task.loss(model, batch.to(device))
    for parameter in trainable:
        parameter.requires_grad_(True)
    model.train(training)
    return 3 * examples * counter.get_total_flops()


def _operation_counter() -> FlopCounterMode:
    """Return torch's counter, for attention with fewer key heads than query heads too, which torch 2.11 rejects."""

    def attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
        heads = query[1]
        operations: int = sdpa_flop_count(query, (key[0], heads, *key[2:]), (value[0], heads, *value[2:]))
        return operations

    return FlopCounterMode(display=False, custom_mapping={getattr(torch.ops.aten, name): attention for name in SDPA})


def largest_precision(device: torch.device, config: TrainConfig) -> str:
    """Return the precision that may need the most memory of those that `choose_precision` may return."""
    if config.precision != "auto":
        return config.precision
    return "bfloat16" if device.type == "cuda" else "float32"


def choose_precision(model: Model, task: Task, config: TrainConfig) -> str:
    """Return the precision of the forward pass: "float32" or "bfloat16".

    On a CPU with instructions for bfloat16, it pays off in steps with large matrix products.
    """
    precision = largest_precision(model.device, config)
    on_cpu = model.device.type == "cpu"
    if config.precision != "auto" or precision == "bfloat16" or not (on_cpu and has_bfloat16_products()):
        return precision
    return "bfloat16" if step_operations(model, task, config) >= BFLOAT16_OPERATIONS else "float32"


@cache
def has_bfloat16_products() -> bool:
    """Return whether the CPU has instructions for products of bfloat16 numbers."""
    capabilities: Mapping[str, Any] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # older versions of PyTorch do not have it
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))
