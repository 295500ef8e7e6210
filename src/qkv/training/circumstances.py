"""Under which circumstances a run is trained: with others, its numbers may differ in their last digits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from qkv.runtime import provenance
from qkv.training.recipe import TrainConfig

DECISIVE = ("device", "precision", "graphs", "torch")


@dataclass(frozen=True)
class Circumstances:
    """The machine, the arithmetic and the code."""

    device: str  # as its documentation calls it; of a CPU, with the threads used
    precision: str  # "float32" or "bfloat16"
    graphs: bool  # whether steps are captured in CUDA graphs
    torch: str
    commit: str  # "" outside a checkout
    source_hash: str

    def differences(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        """What was otherwise when the record was written; a record that does not say tells of no difference."""
        notes = tuple(
            f"{name} was {record[name]} and is now {getattr(self, name)}: results may differ in the last digits"
            for name in DECISIVE
            if name in record and record[name] != getattr(self, name)
        )
        if record.get("source_hash", self.source_hash) != self.source_hash:
            notes += ("the source code of qkv has changed since the checkpoint was saved: results may differ",)
        return notes


def present_circumstances(device: torch.device, config: TrainConfig, *, capturable: bool) -> Circumstances:
    """Those of this process, for a task whose steps a CUDA graph could hold or not."""
    return Circumstances(
        device=provenance.device_name(device),
        precision=precision_on(device, config),
        graphs=device.type == "cuda" and config.graphs and capturable,
        torch=torch.__version__,
        commit=provenance.commit(),
        source_hash=provenance.source_hash(),
    )


def precision_on(device: torch.device, config: TrainConfig) -> str:
    """The precision of the forward pass on a device: "float32" or "bfloat16"."""
    if config.precision != "auto":
        return config.precision
    return "bfloat16" if device.type == "cuda" else "float32"
