"""`qkv evaluate` of a model whose task is scored as it is while training: language models, taggers, classifiers."""

import time
from pathlib import Path
from typing import Any

from qkv.cli.recording import keep_record
from qkv.cli.talk import note, result, result_json, say
from qkv.data.registry import EVALUATED_FROM_FILES, LoadedData, load_for_evaluation
from qkv.errors import InputError
from qkv.evaluation.record import measures
from qkv.interop import load
from qkv.metrics import Score
from qkv.training.recipe import TASKS
from qkv.training.run import Run


def files_to_score(run: Run, files: list[Path], name: str, *, strict: bool) -> LoadedData:
    """A user's own files, read as the run's task reads its data, as a split of this name."""
    task = TASKS[run.recipe.task]
    if task.learns_from not in EVALUATED_FROM_FILES:
        hint = (
            "; a text of yours to score it on has to be given to qkv train (--test)" if "text" in task.kinds() else ""
        )
        raise InputError(f"{run.folder}: {task.title} is scored on the run's own data: leave --data away{hint}")
    loaded = load_for_evaluation(str(task.learns_from), files, name, column=run.recipe.data.column, strict=strict)
    for passed_over in loaded.notes:
        note(passed_over)
    return loaded


def evaluate_scored(
    folder: Path, run: Run, loaded: LoadedData, splits: list[str], device: str, *, json: bool, record: bool
) -> None:
    """Score the model in `folder`, the run's or one of its checkpoints, on splits of data."""
    model = load(folder, device=device)
    kind: Any = TASKS[run.recipe.task]
    task = kind.prepare(loaded, model.tokenizer, model.config, run.recipe.train, run.recipe.seed)
    for split in splits:
        for remark in task.notes_on(loaded, split):
            note(remark)
        began = time.monotonic()
        size, unit, scores = task.evaluate(model, loaded, split)
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
