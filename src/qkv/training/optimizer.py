"""Optimizers and learning rate schedules."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from qkv.errors import InputError
from qkv.nn.interfaces import Model
from qkv.tasks.base.train_config import TrainConfig
from qkv.training.distributed import is_sharded
from qkv.types import Float, Tensor


def learning_rate(config: TrainConfig, step: int, done: float) -> float:
    """Return the learning rate at `step` (from 0), when the fraction `done` of the run is over.

    Linear warmup, in at most the first half of the run, times the decay of the config.
    """
    warmup = min(1.0, max((step + 1) / (config.warmup + 1), 2.0 * done))
    match config.decay:
        case "constant":
            decay = 1.0
        case "linear":
            decay = 1.0 - done
        case "cosine":
            decay = 0.5 * (1.0 + math.cos(math.pi * done))
        case "inverse_sqrt":
            decay = min(1.0, math.sqrt((config.warmup + 1) / (step + 1)))
    return config.lr * warmup * decay


def build_optimizer(model: nn.Module, config: TrainConfig) -> "Optimizer":
    """Return the optimizer of the config over the trainable parameters."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.optimizer == "adamw":
        return Optimizer([adamw(trainable, config)])
    blocks = model.repeated_blocks if isinstance(model, Model) else []
    in_blocks = {id(parameter) for block in blocks for parameter in block.parameters()}
    hidden = [parameter for parameter in trainable if parameter.ndim == 2 and id(parameter) in in_blocks]
    if not hidden:
        raise InputError("train.optimizer muon needs a model of repeated blocks, such as gpt2: use adamw")
    chosen = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in trainable if id(parameter) not in chosen]
    muon = torch.optim.Muon(hidden, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
    return Optimizer([muon, adamw(rest, config)])


def adamw(parameters: Iterable[nn.Parameter], config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only (not on biases and norms)."""
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    vectors = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)


class Optimizer:
    """One or two optimizers of PyTorch, each for some of the parameters.

    Muon (Jordan et al. 2024) orthogonalizes the momentum of the weight matrices of the blocks; embeddings, the output
    layer and vectors are updated by AdamW.
    """

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        parameters = (parameter for part in parts for group in part.param_groups for parameter in group["params"])
        self._on_host = len(parts) > 1 or any(map(is_sharded, parameters))

    def step(self, rate: float, skip: Float[Tensor, ""] | None = None) -> None:
        """Update the weights, unless `skip` is 1; the host does not wait for its value on a GPU."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
        if skip is not None and (skip.device.type == "cpu" or self._on_host):
            if skip.item():
                return
            skip = None
        for part in self.parts:
            if skip is not None:
                part.found_inf = skip  # type: ignore[attr-defined]  # of fused optimizers, set by GradScaler, too
            part.step()

    def state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """Return the state of one parameter, such as its moments; empty before the first step."""
        return next((part.state[parameter] for part in self.parts if parameter in part.state), {})

    def restore(self, parameter: nn.Parameter, state: dict[str, Any]) -> None:
        """Set the state of one parameter."""
        for part in self.parts:
            if any(parameter is own for group in part.param_groups for own in group["params"]):
                part.state[parameter] = state
