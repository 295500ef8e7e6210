"""Memory in the payload: the inputs and outputs of a neural Turing machine by step, next to its addressing weights."""

import math
from dataclasses import dataclass
from typing import Any

from qkv.interpret.memory_probe import MemoryTrace, used_locations
from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize.explorer.packing import pack_matrix


@dataclass(frozen=True, kw_only=True)
class MemoryAnswer(Answer):
    """A sequence as an answer of the explorer; the rows of its maps are steps, the columns memory locations."""

    trace: MemoryTrace


def memory_answer(trace: MemoryTrace) -> MemoryAnswer:
    """Return a sequence as an answer, with a map of the write heads and one of the read heads."""
    _, steps, locations = trace.write_weights.shape
    rows, columns = tuple(map(str, range(1, steps + 1))), tuple(map(str, range(locations)))
    maps = (
        AttentionMap("write_heads", rows, columns, trace.write_weights),
        AttentionMap("read_heads", rows, columns, trace.read_weights),
    )
    outcome = f"{trace.wrong} of {trace.bits} bits wrong"
    return MemoryAnswer(f"sequence of size {trace.size}", outcome, math.nan, maps, trace=trace)


def memory_part(answer: MemoryAnswer) -> dict[str, Any]:
    """Return input and output of each step, the step at which the answer begins, and the locations in use."""
    trace = answer.trace
    return {
        "inputs": pack_matrix(trace.inputs),
        "outputs": pack_matrix(trace.predicted),
        "targets": pack_matrix(trace.targets),
        "answer": int(trace.answer_mask.argmax()),
        "locations": used_locations(trace.write_weights, trace.read_weights),
    }
