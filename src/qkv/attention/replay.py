"""Forward passes that run for the second time."""

import torch


def in_backward() -> bool:
    """Whether a backward pass is under way: what runs in it is a checkpoint's forward pass, for the second time."""
    return torch._C._current_graph_task_id() != -1
