"""`qkv evaluate` for tasks scored with their validation metrics: language models, taggers, classifiers."""

import time
from pathlib import Path
from typing import Any

from qkv.cli.console import info, note, result, result_json
from qkv.cli.recording import record_result
from qkv.datasets.registry import EVALUATED_FROM_FILES, LoadedData, load_for_evaluation
from qkv.errors import InputError
from qkv.experiments.results import measures
from qkv.hub import load
from qkv.metrics import Score
from qkv.training.recipe import TASKS
from qkv.training.run import Run


def files_to_score(run: Run, files: list[Path], name: str, *, strict: bool) -> LoadedData:
    """Load the user's files in the format of the run's task, as a split called `name`."""
    task = TASKS[run.recipe.task]
    if task.learns_from not in EVALUATED_FROM_FILES:
        hint = "; pass your own test text to qkv train (--test)" if "text" in task.kinds() else ""
        raise InputError(f"{run.folder}: --data is not supported for {task.title}{hint}")
    loaded = load_for_evaluation(str(task.learns_from), files, name, column=run.recipe.data.column, strict=strict)
    for message in loaded.notes:
        note(message)
    return loaded


def evaluate_scored(
    folder: Path, run: Run, loaded: LoadedData, splits: list[str], device: str, *, json: bool, record: bool
) -> None:
    """Score the model in `folder` (the run or one of its checkpoints) on the given splits."""
    model = load(folder, device=device)
    kind: Any = TASKS[run.recipe.task]
    task = kind.prepare(loaded, model.tokenizer, model.config, run.recipe.train, run.recipe.seed)
    for split in splits:
        for message in task.notes_on(loaded, split):
            note(message)
        began = time.monotonic()
        size, unit, scores = task.evaluate(model, loaded, split)
        seconds = time.monotonic() - began
        if json:
            result_json({"run": str(folder), "split": split, "size": size, **scores, "seconds": seconds})
        else:
            info(f"{folder}: {size:,} {unit} of {split}")
            for name, value in scores.items():
                result(f"{name:20}  {task.metrics[name].shown(value)}")
        if record:
            record_result(
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
