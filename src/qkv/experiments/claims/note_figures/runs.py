"""Training runs that figures are drawn from: small settings, shared with the claims where they are equal."""

from pathlib import Path

from qkv.errors import InputError
from qkv.experiments.sweep import RECIPE, Sweep
from qkv.runtime.cluster import WorkerOptions
from qkv.runtime.portable import cpu_count

WORD_LSTMN = (
    "data.tokenizer={ name = \"word\", vocab_size = 4000 }", "data.lowercase=true", "model.embedding_dim=64",
    "model.hidden_dim=96", "model.span=16", "model.dropout=0.1", "task.length=32", "train.batch_size=2048",
    "train.epochs=1", "train.lr=5e-3",
)  # fmt: skip


def trained_run(folder: Path, device: str, seed: int, recipe: str, *settings: str) -> Path:
    """Return the folder of a run, which is trained if it does not exist."""
    sweep = Sweep(recipe, {RECIPE: (recipe,)}, (seed,), settings, shared=True)
    if sweep.remaining(folder):
        one_thread = WorkerOptions(cpu_count())  # models this small gain nothing from more
        if failures := sweep.run(folder, one_thread, device).failures:
            raise InputError(f"{failures[0].trial.name}: {failures[0].error}")
    return folder / "runs" / sweep.trials[0].name
