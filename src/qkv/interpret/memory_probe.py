"""Memory accesses of a neural Turing machine: where it writes and reads at each step of a sequence."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from qkv.attention import watch
from qkv.datasets.corpora.synthetic.bit_sequences import Puzzle, Size, format_size
from qkv.errors import InputError
from qkv.hub import load_as
from qkv.models.memory.ntm import NTM
from qkv.nn.interfaces import SequenceModel
from qkv.runtime.device import pick_device
from qkv.types import Tensor

USED = 0.05  # minimum weight of a location in use
MARGIN = 2  # locations around those in use


@dataclass(frozen=True)
class MemoryTrace:
    """One sequence, the model's output, and the weights of its heads."""

    size: str
    inputs: Float[np.ndarray, "steps channels"]
    targets: Float[np.ndarray, "steps outputs"]
    answer_mask: Float[np.ndarray, "steps"]  # 1 at the steps of the answer, 0 before
    predicted: Float[np.ndarray, "steps outputs"]  # probability of each bit being 1
    write_weights: Float[np.ndarray, "write_heads steps locations"]
    read_weights: Float[np.ndarray, "read_heads steps locations"]

    @property
    def wrong(self) -> int:
        """Number of wrong bits in the answer."""
        return int((((self.predicted > 0.5) != (self.targets > 0.5)) * self.answer_mask[:, None]).sum())

    @property
    def bits(self) -> int:
        """Number of bits in the answer."""
        return int(self.answer_mask.sum()) * self.targets.shape[1]


class MemoryProbe:
    """A neural Turing machine: `MemoryProbe("runs/copy-ntm-0", Copy())((20,))`."""

    def __init__(self, model: str | Path | NTM, puzzle: Puzzle, device: str = "auto") -> None:
        loaded = model if isinstance(model, NTM) else load_as(SequenceModel, model, pick_device(device))
        if not isinstance(loaded, NTM):
            raise InputError(f"{model}: {type(loaded).__name__} has no addressable memory")
        self.model = loaded.eval()
        self.puzzle = puzzle
        actual, expected = (loaded.config.input_dim, loaded.config.output_dim), (puzzle.channels, puzzle.outputs)
        if actual != expected:
            raise InputError(
                f"the model has {actual[0]} inputs and {actual[1]} outputs per step, but this puzzle has "
                f"{expected[0]} and {expected[1]}"
            )

    @torch.inference_mode()
    def __call__(self, size: Size) -> MemoryTrace:
        """Run the model on a sequence of the given size."""
        sequences = self.puzzle.generate("view 0", 1, size)
        with watch(self.model) as records:
            logits = self.model(torch.from_numpy(sequences.inputs).to(self.model.device))
        return MemoryTrace(
            format_size(size),
            sequences.inputs[0],
            sequences.targets[0],
            sequences.answer_mask,
            _array(logits.float().sigmoid()[0]),
            _array(records["write_heads"].weights[0]),
            _array(records["read_heads"].weights[0]),
        )


def used_locations(*weights: Float[np.ndarray, "heads steps locations"]) -> list[int]:
    """Return the locations that some heads use and a margin around them, in order.

    Locations are circular; the ring is cut so as to omit the longest unused stretch.
    """
    largest = np.concatenate(weights).max(axis=(0, 1))
    count = len(largest)
    used = np.flatnonzero(largest >= USED)
    if not len(used):
        return list(range(count))
    unused = np.diff(used, append=used[0] + count)  # distance from each to the next
    longest = int(unused.argmax())
    if unused[longest] <= 2 * MARGIN + 1:
        return list(range(count))
    first = int(used[(longest + 1) % len(used)]) - MARGIN
    return [location % count for location in range(first, first + count - int(unused[longest]) + 2 * MARGIN + 1)]


def _array(tensor: Float[Tensor, "..."]) -> Float[np.ndarray, "..."]:
    array: np.ndarray = tensor.float().cpu().numpy()
    return array
