"""Recipes that are trained by one process and by several, and the program of the several: torchrun runs this file."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from qkv.training import job, loop
from qkv.training.distributed import process_group
from qkv.training.recipe import Recipe, read_recipe

TRAIN = [
    "train.epochs=100", "train.warmup=5", "train.decay=constant", "train.lr=0.003", "train.save_every=1000",
    "train.validate_every=1000",
]  # fmt: skip
OPTIONS = {
    "ddp": {"parallel": "ddp"},
    "fsdp": {"parallel": "fsdp"},
    "ema": {"parallel": "fsdp", "accumulate": 2, "ema": 0.9},
}
GRU = [
    *TRAIN, "data.size=500", "model.hidden_dim=24", "model.embedding_dim=16", "model.dropout=0.0",
    "model.max_length=64", "train.batch_size=512", "train.valid_size=4",
]  # fmt: skip
RNN = [
    *TRAIN, "model.hidden_dim=16", "model.embedding_dim=8", "model.dropout=0.0", "model.weight_dropout=0.0",
    "task.length=16", "train.batch_size=112",
]  # fmt: skip
TRANSFORMER = [
    *TRAIN, "data.size=300", "model.dim=32", "model.heads=2", "model.ffn_dim=32", "model.dropout=0.0",
    "train.batch_size=512", "train.valid_size=4",
]  # fmt: skip
GPT = [
    *TRAIN, "model.dim=32", "model.layers=2", "model.heads=2", "model.max_length=32", "model.dropout=0.0",
    "model.attention_dropout=0.0", "task.length=32", "train.batch_size=256",
]  # fmt: skip


def recipes(folder: Path) -> dict[str, Recipe]:
    """Return the recipes by name; their text is in `folder`."""
    text = folder / "text.txt"
    if not text.exists():
        words = random.Random(0).choices(["to", "be", "or", "not", "that", "is", "the", "question"], k=4000)
        text.write_text("\n".join(" ".join(words[begin : begin + 8]) for begin in range(0, 4000, 8)) + "\n")
    data = ['data.name="text"', f'data.train=["{text}"]', f'data.valid=["{text}"]']
    return {
        "gru": read_recipe("dates-gru", GRU),
        "gpt2": read_recipe("shakespeare-gpt", [*data, *GPT]),
        "rnn": read_recipe("shakespeare-gru", [*data, *RNN]),
        "transformer": read_recipe("dates-transformer", TRANSFORMER),
    }


@contextmanager
def limited(steps: int) -> Iterator[None]:
    """Stop training after some steps, and log each of them."""
    with pytest.MonkeyPatch.context() as patch:
        remaining = loop.remaining_steps
        patch.setattr(loop, "LOG_EVERY", 1)
        patch.setattr(loop, "remaining_steps", lambda *arguments: islice(remaining(*arguments), steps))
        yield


def train(recipe: Recipe, folder: Path, steps: int, **options: object) -> None:
    with limited(steps):
        job.begin(recipe.replace(train=recipe.train.replace(**options)), folder, "cpu")


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    with process_group("cpu"):
        for name in sys.argv[3:]:
            recipe, _, options = name.partition("-")
            train(recipes(folder)[recipe], folder / name, count, **OPTIONS[options])
