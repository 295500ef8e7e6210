"""Detection of recomputed forward passes (activation checkpointing)."""

import torch


def in_backward() -> bool:
    """Whether a backward pass is running: a forward pass inside it is a checkpoint being recomputed."""
    return torch._C._current_graph_task_id() != -1
