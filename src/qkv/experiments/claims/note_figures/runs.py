"""Training runs that figures are drawn from: seed 0 of small settings, shared with the claims where they are equal."""

from pathlib import Path

from qkv.experiments.claims.claim import complete
from qkv.experiments.sweep import RECIPE, Sweep

WORD_LSTMN = (
    "data.tokenizer={ name = \"word\", vocab_size = 4000 }", "data.lowercase=true", "model.embedding_dim=64",
    "model.hidden_dim=96", "model.span=16", "model.dropout=0.1", "task.length=32", "train.batch_size=2048",
    "train.epochs=1", "train.lr=5e-3",
)  # fmt: skip


def trained_run(folder: Path, device: str, recipe: str, *settings: str) -> Path:
    """Return the folder of a run, which is trained if it does not exist."""
    sweep = Sweep(recipe, {RECIPE: (recipe,)}, (0,), settings, shared=True)
    complete(sweep, folder, device)
    return folder / "runs" / sweep.trials[0].name
