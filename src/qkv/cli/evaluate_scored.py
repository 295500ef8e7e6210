"""`qkv evaluate` of a model whose task is scored as it is while training: language models, taggers, classifiers."""

import time
from pathlib import Path
from typing import Any

from qkv.cli.recording import keep_record
from qkv.cli.talk import result, result_json, say
from qkv.data.registry import Loaded
from qkv.evaluation.record import measures
from qkv.interop import load
from qkv.metrics import Score
from qkv.training.recipe import TASKS
from qkv.training.run import Run


def evaluate_scored(
    folder: Path, run: Run, loaded: Loaded, splits: list[str], device: str, *, json: bool, record: bool
) -> None:
    """Score the model in `folder`, the run's or one of its checkpoints, on splits of its data."""
    model = load(folder, device=device)
    kind: Any = TASKS[run.recipe.task]
    task = kind.prepare(loaded, model.tokenizer, model.config, run.recipe.train, run.recipe.seed)
    for split in splits:
        began = time.monotonic()
        size, unit, scores = task.examine(model, loaded, split)
        seconds = time.monotonic() - began
        if json:
            result_json({"run": str(folder), "split": split, "size": size, **scores, "seconds": seconds})
        else:
            say(f"{folder}: {size:,} {unit} of {split}")
            for name, value in scores.items():
                result(f"{name:20}  {task.metrics[name].shown(value)}")
        if record:
            keep_record(
                run,
                model,
                data_hash=loaded.fingerprint,
                split=split,
                size=size,
                left_out=0,
                beam=1,
                length_penalty=1.0,
                metrics=measures({name: Score(value) for name, value in scores.items()}),
                by_length=(),
                seconds=seconds,
            )
