"""`qkv data`: list, download, preview and tokenize datasets."""

import os
import time
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.commands import check, shards
from qkv.cli.commands.catalog import format_rows
from qkv.cli.console import info, note, progress_bar, result, result_json, result_line, result_page
from qkv.config import build
from qkv.errors import InputError
from qkv.registry import nearest
from qkv.runtime.files import check_output_folder, name_output_errors

if TYPE_CHECKING:
    from qkv.datasets.dataset import Dataset
    from qkv.datasets.dataset_cache import DataFile, DatasetCache

OWN = "own"  # split name for a user's file

app = typer.Typer(
    help="List, preview, download and tokenize datasets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(check.check)
app.command()(shards.prepare)
app.command(name="shards")(shards.shards)


@app.command(name="list")
def list_sets(data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """List the datasets and the location of their files."""
    from qkv.datasets.dataset_cache import DatasetCache
    from qkv.registry import registered

    store = DatasetCache.with_folder(data_dir)
    rows = []
    for name, entry in registered("dataset").items():
        size = sum(file.size for file in entry.files)
        where = _where(store, entry.files) if entry.files else ""
        if json:
            result_json(
                {"name": name, "summary": entry.summary, "license": entry.license, "bytes": size, "where": where}
            )
        else:
            rows.append((name, f"{size / 1e6:.1f} MB" if size else "", entry.license, where, entry.summary))
    if rows:
        result_page("\n".join(format_rows(("dataset", "size", "license", "where", "description"), rows, below=3)))


def _where(store: "DatasetCache", files: tuple["DataFile", ...]) -> str:
    """Return the location of a dataset's files, or why they are missing."""
    try:
        paths = {file: store.find(file) for file in files}
    except InputError as error:
        return f"unusable ({error})"
    missing = [file for file, path in paths.items() if path is None]
    if not missing:
        folders = {str(path.parent.parent): None for path in paths.values() if path is not None}
        return f"in {', '.join(folders)}"
    if all(file.url for file in missing):
        return "not downloaded" if len(missing) == len(paths) else f"{len(missing)} file(s) not downloaded"
    return "missing (manual download required)"


@app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=options.complete("dataset"), help="Dataset name.")
    ],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="FOLDER", help="Download directory [the cache].")
    ] = None,
    json: options.Json = False,
) -> None:
    """Download the missing files of a dataset."""
    from qkv.datasets.dataset import YOURS
    from qkv.datasets.dataset_cache import DatasetCache
    from qkv.datasets.user_files import user_dataset
    from qkv.registry import lookup

    dataset = lookup("dataset", name)
    if not dataset.files and dataset.license == YOURS:
        option = "--data FILE" if user_dataset(name) else f"--set data.name={name} --set data.folder=FOLDER"
        raise InputError(
            f"{name}: nothing to download, you provide the files; train on them with qkv train RECIPE {option}"
        )
    if not dataset.files:
        raise InputError(f"{name} is synthetic: there are no files to download")
    store = DatasetCache.with_folder() if data_dir is None else DatasetCache((data_dir,))
    paths = [str(path) for path in store.fetch(name, dataset.files, dataset.license, dataset.origin)]
    info(f"{name}: license: {dataset.license}")
    if json:
        result_json({"name": name, "license": dataset.license, "files": paths})
    else:
        result("\n".join(paths))


@app.command()
def features(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", autocompletion=options.complete("dataset"), help="Dataset of captioned images."),
    ],
    backbone: Annotated[
        str, typer.Option("--backbone", metavar="NAME", help="Pretrained network.")
    ] = "efficientnet_lite0",
    side: Annotated[
        int, typer.Option("--side", min=32, max=1024, help="Images are resized to SIDE x SIDE pixels.")
    ] = 224,
    data_dir: options.DataDir = None,
    output: Annotated[
        Path | None, options.output_file("--output", "FILE", "Safetensors file to write [in the cache].")
    ] = None,
    json: options.Json = False,
) -> None:
    """Compute the features of images, once for all runs.

    Recipes with data.backbone read them from the cache, or from the file that data.features names.
    """
    from qkv.datasets.dataset import CaptionFolderConfig
    from qkv.pipelines.feature_extractor import FeatureExtractor, write_features
    from qkv.registry import lookup

    dataset = lookup("dataset", name)
    if not issubclass(dataset, CaptionFolderConfig):
        raise InputError(f"{name}: has no photographs with captions")
    config = build(dataset, {"folder": None if data_dir is None else str(data_dir)}, "data")
    files, notes = config.read_files()
    for message in notes:
        note(message)
    extractor = FeatureExtractor(backbone, data_dir)
    if side % extractor.backbone.stride:
        raise InputError(f"--side {side} must be a multiple of {extractor.backbone.stride}, the stride of {backbone}")
    path = output or config.cache.folders[-1] / name / f"{backbone}.safetensors"
    count = sum(len(split.texts) for split in files.values())
    images = chain.from_iterable(split.open_images(side) for split in files.values())
    with progress_bar("features", count) as progress:
        write_features(extractor, images, count, side, path, progress)
    summary = {"name": name, "backbone": backbone, "images": count, "file": str(path)}
    result_json(summary) if json else result(str(path))


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", autocompletion=options.complete("dataset"), help="Dataset name, or your own file."
        ),
    ],
    target: Annotated[
        Path | None, typer.Argument(metavar="TARGET", help="Target file, if NAME is a source file.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            autocompletion=options.complete_splits,
            help="Split: train, valid, test or another split of the dataset, or of your own folder [train].",
        ),
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option("--languages", metavar="SOURCE-TARGET", help="Language pair of multi30k and tatoeba [en-de]."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            autocompletion=options.complete_kinds,
            help="Format of your own file: pairs, labelled, tagged, ... [detected].",
        ),
    ] = None,
    count: Annotated[int, options.count_option("--count", 1, "Number of examples to show.")] = 10,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FOLDER",
            help="Write the images or recordings of the examples to this new or empty folder.",
        ),
    ] = None,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Show the first examples of a dataset or file."""
    from qkv.datasets.user_files import user_datasets
    from qkv.registry import registered

    if output is not None:
        check_output_folder(output)
    datasets, kinds = registered("dataset"), user_datasets()
    if target is not None and not Path(name).exists():
        raise InputError(f"{name}: no such file; a target file requires a source file")
    if kind is not None and kind not in kinds:
        raise InputError(f"--kind: unknown format {kind}{nearest(kind, kinds)}")
    if name in kinds and not Path(name).exists():
        raise InputError(f"{name} is a file format; pass a file, e.g. qkv data show my_file.tsv --kind {name}")
    if name in datasets and not Path(name).is_file():
        _show_dataset(name, split or "train", languages, data_dir, count, output, json)
    elif os.path.lexists(name):
        paths = _files_of_split(Path(name), split) if target is None and Path(name).is_dir() else None
        if paths is None and split is not None:
            raise InputError(f"--split {split}: {name} has no splits: remove --split")
        _show_files(name, paths or [Path(name), *([] if target is None else [target])], kind, count, output, json)
    else:
        raise InputError(f"{name}: no such file or dataset{nearest(name, datasets)}")


def _files_of_split(folder: Path, split: str | None) -> list[Path] | None:
    """Return the file or subfolder of a split of the user's folder; None if the folder has no splits."""
    from qkv.datasets.formats.folders import find_splits

    splits = find_splits(folder)
    if splits and split is not None and split not in splits:
        raise InputError(f"{folder} has no split {split}{nearest(split, splits)}")
    return [splits[split or "train"]] if splits else None


def _show_files(name: str, paths: list[Path], kind: str | None, count: int, output: Path | None, json: bool) -> None:
    from qkv.datasets.detect import infer_kind
    from qkv.datasets.shards.large_text import LARGE_BYTES, LargeText
    from qkv.datasets.shards.text_source import TextSource, find_files
    from qkv.datasets.user_files import user_datasets

    kind, split = kind or infer_kind(paths), OWN
    reader = user_datasets()[kind]
    loaded: Dataset[Any]
    if kind == "text" and TextSource(tuple(map(str, find_files(paths)))).bytes > LARGE_BYTES:
        source = TextSource(tuple(map(str, find_files(paths))))
        loaded, split = LargeText.open(source, {"valid": ""}, 0.0, None), "train"
    else:
        loaded = reader.read_files(paths, OWN)
    info(f"{name}: read as {reader.description}; use --kind for another format")
    _show(name, loaded, split, count, output, json)


def _show_dataset(
    name: str, split: str, languages: str | None, folder: Path | None, count: int, output: Path | None, json: bool
) -> None:
    from qkv.registry import lookup

    dataset = lookup("dataset", name)
    options: dict[str, Any] = {"folder": None if folder is None else str(folder)}
    if languages is not None:
        options["source"], _, options["target"] = languages.partition("-")
    loaded = build(dataset, options, "data").load()
    if split not in loaded.splits:
        raise InputError("; ".join([f"{name} has no split {split}{nearest(split, loaded.splits)}", *loaded.notes]))
    if dataset.files:
        info(f"{name}: license: {dataset.license}")
    _show(name, loaded, split, count, output, json)


def _show(name: str, loaded: "Dataset[Any]", split: str, count: int, output: Path | None, json: bool) -> None:
    """Print the first examples of a split; write their images or recordings to `output`."""
    for message in loaded.notes:
        note(message)
    examples = list(islice(loaded.preview(split), count))
    if not examples:
        raise InputError(f"{name} has no texts to show")
    if output is not None:
        for index, example in enumerate(examples):
            if (media := loaded.media(split, index)) is None:
                raise InputError(f"--output: {name} has no images or recordings")
            path = output / f"{split}-{index}.{media[0]}"
            with name_output_errors(path):
                output.mkdir(parents=True, exist_ok=True)
                path.write_bytes(media[1])
            example[media[0]] = str(path)
    info(f"{name}: {loaded.size(split):,} {loaded.unit}")
    for example in examples:
        if json:
            result_json(example)
        else:
            fields = (value if isinstance(value, str) else " ".join(value) for value in example.values())
            result_line(*(" ".join(field.splitlines()) for field in fields))


SummaryDataset = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=options.complete("dataset"), help="Dataset of texts and summaries."),
]
BaselineSplit = Annotated[
    str,
    typer.Option(
        "--split",
        autocompletion=options.complete_splits,
        help="Split: train, valid, test or another split of the dataset.",
    ),
]
Sentences = Annotated[
    int, typer.Option("--sentences", min=1, max=1000, help="Sentences, or utterances of a chat, of a summary.")
]
ResultFolder = Annotated[
    Path | None, typer.Option("--output", metavar="FOLDER", help="Append the result to FOLDER/results.jsonl.")
]


@app.command()
def baseline(
    name: SummaryDataset,
    split: BaselineSplit = "test",
    sentences: Sentences = 3,
    output: ResultFolder = None,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Evaluate the lead-N baseline of summarization.

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
