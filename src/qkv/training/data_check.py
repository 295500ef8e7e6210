"""Check the data of a recipe: what training would read, and what is probably a mistake."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from qkv.datasets.dataset import Dataset
from qkv.datasets.examples.speech import SpeechDataset
from qkv.datasets.inspection import Columns, Lengths
from qkv.hub.meta_model import meta_model
from qkv.training.data_warnings import data_warnings, scratch_warnings
from qkv.training.finetune import load_pretrained, with_image_size
from qkv.training.job import tokenizer_and_config
from qkv.training.recipe import Recipe


@dataclass(frozen=True)
class DataReport:
    """What training on the data of a recipe would read."""

    kind: str
    unit: str  # of the examples
    splits: dict[str, int]
    lengths: dict[str, Lengths]
    labels: dict[str, int]  # number of examples of each label
    parameters: int  # of the model
    tokenizer: str
    examples: list[dict[str, Any]]
    notes: list[str]
    warnings: list[str]


def check_data(recipe: Recipe, count: int) -> DataReport:
    """Load the data of a recipe as training would, and report its sizes, `count` examples, notes and warnings."""
    recipe = with_image_size(recipe)
    data = recipe.data.load()
    pretrained = load_pretrained(recipe)
    tokenizer, config = tokenizer_and_config(recipe, data, pretrained)
    task = recipe.task_class(data, tokenizer, config, recipe.task, recipe.train, recipe.seed)
    parameters = sum(weight.numel() for weight in meta_model(recipe.model_class, config, "model").parameters())
    columns = Columns.read(data)
    lengths = _lengths(data, columns, tokenizer)
    warnings = [*data_warnings(recipe, data, columns), *_too_long(data, columns, tokenizer, config)]
    if missing := recipe.missing_init():
        warnings.append(missing)
    elif pretrained is None:
        warnings += scratch_warnings(recipe, data, task, parameters)
    sizes = {split: data.size(split) for split in data.splits}
    return DataReport(
        kind=data.kind,
        unit=data.unit,
        splits={split: size for split, size in sizes.items() if size is not None},
        lengths=lengths,
        labels=dict(columns.label_counts),
        parameters=parameters,
        tokenizer="" if tokenizer is None else f"{len(tokenizer):,} tokens in the vocabulary",
        examples=list(islice(data.preview("train"), count)),
        notes=list(task.notes),
        warnings=warnings,
    )


def _lengths(data: Dataset[Any], columns: Columns, tokenizer: Any) -> dict[str, Lengths]:
    unit = "words" if tokenizer is None else "tokens"
    lengths = {
        column: Lengths.of(_count_tokens(column, texts, tokenizer), unit)
        for column, texts in columns.texts.items()
        if texts
    }
    if isinstance(data, SpeechDataset):
        seconds = [
            examples.samples(index) / examples.rate
            for examples in data.splits.values()
            for index in range(len(examples))
        ]
        lengths["recording"] = Lengths.of(seconds, "seconds")
    return lengths


def _count_tokens(column: str, texts: list[str], tokenizer: Any) -> list[int]:
    """Number of tokens of each text; of words without a tokenizer."""
    if tokenizer is None:
        return [len(text.split()) for text in texts]
    side = tokenizer.target if column == "target" else tokenizer.source
    return [len(tokens) for tokens in side.encode(texts)]


def _too_long(data: Dataset[Any], columns: Columns, tokenizer: Any, config: Any) -> Iterator[str]:
    """Yield warnings about texts and recordings that are longer than the model takes."""
    longest = getattr(config, "max_length", None)
    if longest is None or data.kind in ("text", "questions"):  # which are cut into windows
        return
    if isinstance(data, SpeechDataset):
        examples = data.splits["train"]
        frames = [examples.samples(index) * 100 / examples.rate for index in range(len(examples))]
        if too_long := sum(count > longest for count in frames):
            yield f"too long: {too_long:,} recordings have more than model.max_length = {longest:,} frames of 10 ms"
        return
    for column, texts in columns.texts.items():
        too_long = sum(count > longest for count in _count_tokens(column, texts, tokenizer))
        if too_long:
            yield f"too long: {too_long:,} of {len(texts):,} in {column} have more than model.max_length = {longest:,}"
