"""Which kernel runs a linear layer or attention, and the sizes of its tiles.

The tables hold the best of a sweep over GPT-2 124M in bfloat16 on one H200 (torch 2.11, Triton 3.6), greedy decoding in
a CUDA graph; `python -m benchmarks.decoding --device cuda` measures the result.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

MOST_VECTOR_ROWS = {"float32": 4, "bfloat16": 2, "int8": 2}
LARGE = 16_384  # outputs of an output layer
DEEP = 2048  # inputs from which on a layer is limited by its inputs


@dataclass(frozen=True)
class Choice:
    """How a linear layer runs: its kernel and the sizes of its tiles."""

    kind: Literal["vector", "matrix", "cublas"]
    block_n: int  # outputs per program
    block_k: int = 128  # inputs per step of the matrix kernel
    warps: int = 4  # in the vector kernel, block_n is a multiple of it
    stages: int = 4
    split: int = 1  # programs that share the inputs of an output, in the matrix kernel


@dataclass(frozen=True)
class AttentionChoice:
    """How attention runs."""

    elements: int  # keys times features per step
    warps: int
    share: int = 256  # least number of tokens per program


Chooser = Callable[[int, int, int, str], Choice]

# Upper limit of the rows -> choices for output layers, deep layers, layers with many more outputs than inputs, layers
# with some more, and other layers.
MATRIX: dict[int, tuple[Choice, ...]] = {
    16: (
        Choice("matrix", 32, 128, 2, 3),
        Choice("matrix", 16, 256, 2, 3, 4),
        Choice("matrix", 16, 256, 2, 3),
        Choice("matrix", 16, 256, 2, 3),
        Choice("matrix", 16, 128, 2, 5),
    ),
    64: (
        Choice("matrix", 128, 64, 4, 3),
        Choice("matrix", 16, 128, 4, 3),
        Choice("matrix", 64, 64, 4, 5),
        Choice("matrix", 32, 128, 4, 3),
        Choice("matrix", 16, 128, 8, 5),
    ),
}


def choose(rows: int, outputs: int, inputs: int, dtype: str = "bfloat16") -> Choice:
    """Choose the kernel for a linear layer with this many rows, outputs and inputs."""
    if rows <= MOST_VECTOR_ROWS[dtype]:
        return Choice("vector", 16 if outputs >= LARGE else 4 if inputs >= DEEP else 8)
    if dtype == "float32":  # products in full precision do not use tensor cores
        return Choice("cublas", 32)
    kinds = (outputs >= LARGE, inputs >= DEEP, outputs >= 4 * inputs, outputs > inputs, True)
    for most, choices in MATRIX.items():
        if rows <= most:
            return choices[kinds.index(True)]
    return Choice("matrix", 32, 64, 4, 4) if rows <= 128 else Choice("matrix", 64, 128, 8, 3)


def choose_attention(rows: int) -> AttentionChoice:
    """Choose the tiles of attention for this many rows."""
    return AttentionChoice(8192, 8) if rows <= 16 else AttentionChoice(2048, 2)


def fit(choice: Choice, rows: int, item_size: int, shared_memory: int) -> Choice:
    """Return the choice with fewer stages if its tiles would not fit into the shared memory of a multiprocessor."""
    stage = choice.block_k * item_size * (choice.block_n + rows)
    return replace(choice, stages=max(1, min(choice.stages, shared_memory // stage)))
