"""The learning rate over a run."""

import math

from qkv.training.recipe import TrainConfig


def learning_rate(config: TrainConfig, step: int, done: float) -> float:
    """The rate at `step` (from 0), when the share `done` of the run lies behind: a linear rise, then the decay."""
    rise = min(1.0, (step + 1) / (config.warmup + 1))
    match config.decay:
        case "constant":
            fall = 1.0
        case "linear":
            fall = 1.0 - done
        case "cosine":
            fall = 0.5 * (1.0 + math.cos(math.pi * done))
        case "inverse_sqrt":
            fall = min(1.0, math.sqrt((config.warmup + 1) / (step + 1)))
    return config.lr * rise * fall
