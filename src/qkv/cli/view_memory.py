"""`qkv view` of a neural Turing machine: where it wrote and read while it worked on a sequence."""

from pathlib import Path

from qkv.cli.talk import result, result_json, say
from qkv.errors import InputError
from qkv.tasks.memory_probe import MemoryProbe
from qkv.training.run import Run
from qkv.view.memory import save_memory_png


def view_memory(run: Path, sizes: list[str] | None, png: Path | None, device: str, *, json: bool) -> None:
    """Draw one sequence of the puzzle that a run has learned, of the size that is named, else the largest of training.

    `run` is the folder of a run, or one of its checkpoints.
    """
    if sizes and len(sizes) > 1:
        raise InputError(f"a machine is seen at work on one sequence: name one size, not {len(sizes)}")
    folder = next((folder for folder in (run, run.parent) if (folder / "recipe.toml").exists()), None)
    if folder is None:
        raise InputError(f"{run}: not a training run, so nothing says what its sequences are like")
    puzzle = Run.open(folder).data().sequences["test"].puzzle
    size = puzzle.parse_size(sizes[0]) if sizes else puzzle.train_sizes[-1]
    seen = MemoryProbe(run, puzzle, device)(size)
    path = save_memory_png(seen, png or run / "memory.png")
    bits = int(seen.answer_mask.sum()) * seen.targets.shape[1]
    if json:
        result_json({"png": str(path), "size": seen.size, "wrong_bits": seen.wrong, "bits": bits})
        return
    say(f"a sequence of size {seen.size}: {seen.wrong} of {bits} bits are wrong")
    result(str(path))
