"""`qkv evaluate` of a language model, which is read, not asked."""

import time
from pathlib import Path

from qkv.cli.recording import keep_record
from qkv.cli.talk import result, result_json, say
from qkv.data.registry import Loaded
from qkv.errors import InputError
from qkv.evaluation.record import measures
from qkv.interop import load
from qkv.metrics import Score
from qkv.training.recipe import TASKS
from qkv.training.run import Run


def evaluate_text(
    folder: Path, run: Run, loaded: Loaded, split: list[str] | None, device: str, *, json: bool, record: bool
) -> None:
    """Score the language model in `folder`, the run's or one of its checkpoints, on text that it did not learn from."""
    if split not in (None, ["valid"]):
        raise InputError(f"{folder}: a language model is scored on its valid split, not on {', '.join(split or [])}")
    model = load(folder, device=device)
    began = time.monotonic()
    task = TASKS[run.recipe.task].prepare(loaded, model.tokenizer, model.config, run.recipe.train, run.recipe.seed)
    scores = task.validate(model)
    seconds, size = time.monotonic() - began, len(loaded.texts["valid"])
    if json:
        result_json({"run": str(folder), "split": "valid", "size": size, **scores, "seconds": seconds})
    else:
        say(f"{folder}: {size:,} characters of valid")
        for name, value in scores.items():
            result(f"{name:20}  {task.metrics[name].shown(value)}")
    if record:
        keep_record(
            run,
            model,
            data_hash=loaded.fingerprint,
            split="valid",
            size=size,
            left_out=0,
            beam=1,
            length_penalty=1.0,
            metrics=measures({name: Score(value) for name, value in scores.items()}),
            by_length=(),
            seconds=seconds,
        )
