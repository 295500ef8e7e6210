"""Observing a neural Turing machine: a sequence in, and out where it wrote and where it read at each step."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from qkv.attention import watch
from qkv.data.algorithmic import Puzzle, Size, named
from qkv.errors import InputError
from qkv.interop import load_as
from qkv.models.ntm import NTM
from qkv.nn.transducer import Transducer
from qkv.runtime.device import pick_device
from qkv.types import Tensor


@dataclass(frozen=True)
class Remembered:
    """One sequence, what the machine said to it, and the weights of its heads."""

    size: str
    inputs: Float[np.ndarray, "steps channels"]
    targets: Float[np.ndarray, "steps outputs"]
    asked: Float[np.ndarray, "steps"]  # 1 at the steps of the answer, 0 before
    said: Float[np.ndarray, "steps outputs"]  # how likely each bit was thought to be one
    written: Float[np.ndarray, "write_heads steps locations"]
    read: Float[np.ndarray, "read_heads steps locations"]

    @property
    def wrong(self) -> int:
        """How many bits of the answer are wrong."""
        return int((((self.said > 0.5) != (self.targets > 0.5)) * self.asked[:, None]).sum())


class MemoryObserver:
    """A machine at work: `MemoryObserver("runs/copy-ntm-0", Copy())((20,))`."""

    def __init__(self, model: str | Path | NTM, puzzle: Puzzle, device: str = "auto") -> None:
        given = model if isinstance(model, NTM) else load_as(Transducer, model, pick_device(device))
        if not isinstance(given, NTM):
            raise InputError(f"{model}: holds {type(given).__name__}, which has no memory to look at")
        self.model = given.eval()
        self.puzzle = puzzle
        found, needed = (given.config.inputs, given.config.outputs), (puzzle.channels, puzzle.outputs)
        if found != needed:
            raise InputError(
                f"the machine was made for {found[0]} numbers in and {found[1]} out at each step, and this puzzle has "
                f"{needed[0]} and {needed[1]}"
            )

    @torch.inference_mode()
    def __call__(self, size: Size, number: int = 0) -> Remembered:
        """What the machine does with a sequence of that size; there are as many as there are numbers."""
        sequences = self.puzzle.make(f"view {number}", 1, size)
        with watch(self.model) as seen:
            logits = self.model(torch.from_numpy(sequences.inputs).to(self.model.device))
        return Remembered(
            named(size),
            sequences.inputs[0],
            sequences.targets[0],
            sequences.asked,
            _array(logits.float().sigmoid()[0]),
            _array(seen["write_heads"].weights[0]),
            _array(seen["read_heads"].weights[0]),
        )


def _array(tensor: Float[Tensor, "..."]) -> Float[np.ndarray, "..."]:
    found: np.ndarray = tensor.float().cpu().numpy()
    return found
