"""Claims about cost: operations, sequential steps, time by length and width."""

from qkv.experiments.claims.complexity import (  # noqa: F401  (imported to be registered)
    convolutional_encoder_parallel,
    cost_table,
    interaction_distance,
    linformer_linear,
    sequential_steps,
)
