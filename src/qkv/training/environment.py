"""Device, precision and code version of a run: if they change, results may differ in the last digits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from qkv.runtime import provenance
from qkv.tasks.train_config import TrainConfig

AFFECTS_NUMERICS = ("device", "precision", "graphs", "torch")


@dataclass(frozen=True)
class RunEnvironment:
    """Device, precision and software versions."""

    device: str  # model name; for a CPU with the number of threads
    precision: str  # "float32" or "bfloat16"
    graphs: bool  # whether steps are captured in CUDA graphs
    torch: str
    commit: str  # "" outside a checkout
    source_hash: str

    def differences(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        """Describe how this environment differs from a recorded one; keys missing from the record are skipped."""
        notes = tuple(
            f"{name} was {record[name]} and is now {getattr(self, name)}: results may differ in the last digits"
            for name in AFFECTS_NUMERICS
            if name in record and record[name] != getattr(self, name)
        )
        if record.get("source_hash", self.source_hash) != self.source_hash:
            notes += ("the source code of qkv has changed since the checkpoint was saved: results may differ",)
        return notes


def current_environment(device: torch.device, config: TrainConfig, *, capturable: bool) -> RunEnvironment:
    """Return the environment of this process; `capturable`: whether CUDA graphs can capture the task's steps."""
    return RunEnvironment(
        device=provenance.device_name(device),
        precision=precision_on(device, config),
        graphs=device.type == "cuda" and config.graphs and capturable,
        torch=torch.__version__,
        commit=provenance.commit(),
        source_hash=provenance.source_hash(),
    )


def precision_on(device: torch.device, config: TrainConfig) -> str:
    """Return the precision of the forward pass on a device: "float32" or "bfloat16"."""
    if config.precision != "auto":
        return config.precision
    return "bfloat16" if device.type == "cuda" else "float32"
