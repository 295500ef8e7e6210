"""`qkv view` for a neural Turing machine: read and write weights over a sequence."""

from pathlib import Path

from qkv.cli.console import info, result, result_json
from qkv.errors import InputError
from qkv.interpret.memory_probe import MemoryProbe
from qkv.training.run import Run
from qkv.visualize.memory_figure import save_memory_png


def view_memory(run: Path, sizes: list[str] | None, png: Path | None, device: str, *, json: bool) -> None:
    """Plot the memory access on one sequence of the given size; default: the largest size of training.

    `run` is a run directory or one of its checkpoints.
    """
    if sizes and len(sizes) > 1:
        raise InputError(f"expected one sequence size, not {len(sizes)}")
    folder = next((folder for folder in (run, run.parent) if (folder / "recipe.toml").exists()), None)
    if folder is None:
        raise InputError(f"{run}: not a training run, so its algorithmic task is unknown")
    puzzle = Run.open(folder).data().splits["test"].puzzle
    size = puzzle.parse_size(sizes[0]) if sizes else puzzle.train_sizes[-1]
    seen = MemoryProbe(run, puzzle, device)(size)
    path = save_memory_png(seen, png or run / "memory.png")
    bits = int(seen.answer_mask.sum()) * seen.targets.shape[1]
    if json:
        result_json({"png": str(path), "size": seen.size, "wrong_bits": seen.wrong, "bits": bits})
        return
    info(f"sequence of size {seen.size}: {seen.wrong} of {bits} bits wrong")
    result(str(path))
