"""Learning rate schedule."""

import math

from qkv.tasks.train_config import TrainConfig


def learning_rate(config: TrainConfig, step: int, done: float) -> float:
    """Return the learning rate at `step` (from 0), when the fraction `done` of the run is over.

    Linear warmup, times the decay of the config.
    """
    warmup = min(1.0, (step + 1) / (config.warmup + 1))
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
