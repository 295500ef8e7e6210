"""`qkv data baseline`: ROUGE of the first sentences, without a model."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.console import info, note, result, result_json
from qkv.config import build
from qkv.errors import InputError
from qkv.registry import nearest

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=options.complete("dataset"), help="Dataset of texts and summaries."),
]
Split = Annotated[str, typer.Option("--split", help="Split: train, valid, test or another split of the dataset.")]
Sentences = Annotated[
    int, typer.Option("--sentences", min=1, max=1000, help="Sentences, or utterances of a chat, of a summary.")
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="FOLDER", help="Append the result to FOLDER/results.jsonl.")
]


def baseline(
    name: Name,
    split: Split = "test",
    sentences: Sentences = 3,
    output: Output = None,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Score the first sentences of texts as their summaries.

    This is the lead-N baseline of summarization; in a chat, an utterance counts as a sentence. The scores are ROUGE as
    in `qkv evaluate`. With --output, the result is recorded for `qkv compare`.
    """
    from qkv.datasets.dataset import PairDataset
    from qkv.experiments.results import record_baseline
    from qkv.registry import lookup
    from qkv.tasks.base.lead import evaluate_lead
    from qkv.tasks.translation import TranslationTask

    data = build(lookup("dataset", name), {"folder": None if data_dir is None else str(data_dir)}, "data").load()
    if type(data) is not PairDataset:
        raise InputError(f"{name} has no texts with summaries: its examples are {data.kind}")
    if split not in data.splits:
        raise InputError(f"{name} has no split {split}{nearest(split, data.splits)}")
    for message in data.notes:
        note(message)
    began = time.monotonic()
    evaluation = evaluate_lead(data, split, sentences)
    evaluation = replace(evaluation, seconds=time.monotonic() - began)
    if json:
        result_json(
            {"data": name, "split": split, "size": evaluation.size, "sentences": sentences, **evaluation.scores}
        )
    else:
        info(f"lead-{sentences}: {evaluation.size:,} {evaluation.unit} of {split}")
        names = TranslationTask.metrics
        result("\n".join(f"{names[key].name:28}  {names[key].shown(x):>10}" for key, x in evaluation.scores.items()))
    if output is not None:
        command = f"qkv data baseline {name} --split {split} --sentences {sentences} --output {output}"
        path = record_baseline(output, f"lead-{sentences}", name, data, split, evaluation, command)
        info(f"recorded in {path}")
