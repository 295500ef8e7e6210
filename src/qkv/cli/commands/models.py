"""`qkv models`: list, show, download and package pretrained models, and list the architectures."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.commands.catalog import config_keys, format_rows, format_tables, format_value, tables_json
from qkv.cli.commands.convert import DType
from qkv.cli.console import info, progress_bar, result, result_json, result_markdown, result_page
from qkv.cli.search_group import METAVAR, SearchGroup, search, search_words
from qkv.errors import InputError
from qkv.registry import describe, lookup, nearest, registered

app = typer.Typer(cls=SearchGroup, subcommand_metavar=METAVAR, invoke_without_command=True, rich_markup_mode=None)


@app.callback(
    help="""List, show and download models; list architectures.

    With words, e.g. `qkv models translation`, only those that contain all of them in any column.
    """
)
def list_models(context: typer.Context, plugin: options.Plugin = None, json: options.Json = False) -> None:
    """List the pretrained models with size, task and score, and the architectures with their tasks."""
    if context.invoked_subcommand is not None:
        return
    entries = [*_pretrained(), *_architectures()]
    if words := search_words(context):
        cells = [[entry["name"], *(str(value) for value in entry.values())] for entry in entries]
        names = {row[0] for row in search(cells, words, "model")}
        entries = [entry for entry in entries if entry["name"] in names]
    if json:
        for entry in entries:
            result_json(entry)
        return
    pretrained = [entry for entry in entries if entry["kind"] == "pretrained"]
    architectures = [entry for entry in entries if entry["kind"] == "architecture"]
    paragraphs = []
    if pretrained:
        paragraphs += [_format_pretrained(pretrained), "qkv models show NAME prints the model card."]
    if pretrained and architectures:
        paragraphs.append("Models without weights, for qkv train:")
    if architectures:
        paragraphs.append(_format_architectures(architectures))
    result_page("\n\n".join(paragraphs))


def _format_pretrained(entries: list[dict[str, Any]]) -> str:
    rows = [
        (entry["name"], entry["task"], entry["data"], f"{entry['bytes'] / 1e6:.1f} MB", entry["score"],
         entry["where"], entry["description"])
        for entry in entries
    ]  # fmt: skip
    headers = ("pretrained model", "task", "data", "size", "score", "where", "description")
    return "\n".join(format_rows(headers, rows, below=2))


def _format_architectures(entries: list[dict[str, Any]]) -> str:
    lines = []
    for entry in entries:
        presets = entry["presets"]
        shown = presets if len(presets) < 6 else [*presets[:2], "...", presets[-1]]
        lines.append((entry["name"], entry["class"], ", ".join(entry["tasks"]), ", ".join(shown), entry["description"]))
    return "\n".join(format_rows(("architecture", "class", "tasks", "presets", "description"), lines, below=2))


def _pretrained() -> list[dict[str, Any]]:
    """Return the pretrained models for display: those that can be loaded, then those that can be downloaded."""
    from qkv.experiments.packaging import summarize
    from qkv.hub.pretrained import packaged_folder, pretrained_folder, pretrained_names, read_catalog

    entries = []
    for name in pretrained_names():
        folder = pretrained_folder(name)
        assert folder is not None
        summary = summarize(folder)
        entries.append(
            {"kind": "pretrained", "name": name, "task": summary.task, "command": summary.command,
             "data": summary.data, "bytes": summary.size, "score": summary.score,
             "where": "package" if folder.parent == packaged_folder() else "downloaded",
             "description": summary.purpose}
        )  # fmt: skip
    known = {entry["name"] for entry in entries}
    for name, entry in read_catalog().items():
        if name not in known:
            entries.append(
                {"kind": "pretrained", "name": name, "task": entry.task, "command": "", "data": "",
                 "bytes": entry.size, "score": entry.score, "where": "to download", "description": entry.purpose}
            )  # fmt: skip
    return entries


def _architectures() -> list[dict[str, Any]]:
    """Return the registered models for display."""
    return [
        {"kind": "architecture", "name": name, "class": model.__name__, "tasks": _tasks(model),
         "presets": list(getattr(model, "presets", {})), "description": describe(model)}
        for name, model in sorted(registered("model").items())
    ]  # fmt: skip


@app.command(name="show")
def show_model(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", autocompletion=options.complete_architectures, help="Model or architecture."),
    ],
    json: options.Json = False,
) -> None:
    """Show the card of a model, or keys of an architecture.

    In a recipe the keys are those of the model table: default, type and meaning.
    """
    from qkv.hub.pretrained import pretrained_folder, pretrained_names, read_catalog, unknown_model

    if (folder := pretrained_folder(name)) is not None:
        _show_card(folder, json=json)
        return
    if name in read_catalog():
        raise InputError(unknown_model(name))
    if name not in registered("model"):
        raise InputError(f"unknown model {name}{nearest(name, [*pretrained_names(), *registered('model')])}")
    _show_architecture(name, json=json)


def _show_card(folder: Path, *, json: bool) -> None:
    from qkv.hub.pretrained import CARD
    from qkv.runtime.documents import read_text

    card = read_text(folder / CARD, 2**20)
    if json:
        entry = next(entry for entry in _pretrained() if entry["name"] == folder.name)
        result_json({**entry, "folder": str(folder), "card": card})
    else:
        result_markdown(card.rstrip())


def _show_architecture(name: str, *, json: bool) -> None:
    model = lookup("model", name)
    presets = getattr(model, "presets", {})
    tables = {f"[model] {name}: {describe(model)}": [*config_keys(model.config_class(), "model.")]}
    if json:
        result_json({"name": name, "class": model.__name__, "tasks": _tasks(model), "presets": presets,
                     "keys": tables_json(tables)})  # fmt: skip
        return
    lines = [format_tables(tables, ("key", "default", "type", "meaning"))]
    if presets:
        lines.append("\npresets")
    for preset, sizes in presets.items():
        lines.append(f"{preset}: {', '.join(f'{key} = {format_value(value)}' for key, value in sizes.items())}")
    result_page("\n".join([*lines, f"\ntasks\n{', '.join(_tasks(model))}"]))


@app.command(name="download")
def download(
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=options.complete_downloads, help="Name in qkv models.")
    ],
    location: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="Location of models: https, http or file URL [QKV_MODELS]."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Download a pretrained model into the cache.

    Every file is verified by its SHA-256.
    """
    from qkv.hub.pretrained import download_model, package_size
    from qkv.runtime.bars import Bars

    folder = download_model(name, location, Bars().byte_bar)
    info(f"{name}: {package_size(folder) / 1e6:.1f} MB in {folder}")
    if json:
        result_json({"name": name, "folder": str(folder), "bytes": package_size(folder)})
    else:
        result(str(folder))


@app.command(name="package")
def package(
    run: Annotated[Path, typer.Argument(metavar="RUN", autocompletion=options.complete_runs, help="Training run.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder; its name becomes that of the model.")],
    dtype: Annotated[DType, typer.Option("--dtype", help="Data type of the weights.")] = DType.int8,
    num_beams: Annotated[
        list[int] | None, typer.Option("--num-beams", help="Beam size of the evaluation; repeatable [1].")
    ] = None,
    note: Annotated[
        list[str] | None, typer.Option("--note", metavar="TEXT", help="Sentence on the model for its card; repeatable.")
    ] = None,
    example: Annotated[
        str, typer.Option("--example", metavar="TEXT", help="Input that the page of `qkv serve` starts with.")
    ] = "",
    max_size: Annotated[float, typer.Option("--max-size", metavar="MB", help="Fail if it is larger.")] = 40.0,
    json: options.Json = False,
) -> None:
    """Make a pretrained model from a training run.

    Converts the weights, evaluates the converted weights on the test data, and writes the model card from the
    recorded results. Prints the entry of the model in the catalog of models to download.
    """
    from qkv.experiments.packaging import package_run

    packaged = package_run(run, out, dtype.value, num_beams or [1], note or [], max_size * 1e6, _evaluate, example)
    info(f"{packaged.parameters:,} parameters  {dtype.value}  {packaged.size / 1e6:.1f} MB")
    if json:
        result_json({"folder": str(out), "bytes": packaged.size, "catalog": packaged.catalog_entry().to_dict()})
    else:
        result(str(out))


def _evaluate(task: Any, model: Any, data: Any, split: str, search: Any) -> Any:
    """Evaluate a model on a split, with a progress bar."""
    from qkv.experiments.evaluation import evaluate_split

    with progress_bar("evaluating", len(data.splits[split]) if task.searches else 0) as progress:
        return evaluate_split(task, model, data, split, search, progress)


def _tasks(model: type[Any]) -> list[str]:
    """Return the tasks that can train a model: it has their interface and accepts their options."""
    return [name for name, task in sorted(registered("task").items()) if _fits(model, task)]


def _fits(model: type[Any], task: type[Any]) -> bool:
    if not issubclass(model, task.model):
        return False
    fields = model.config_class.model_fields
    try:
        model.config_class(**{key: value for key, value in task.model_options.items() if key in fields})
    except InputError:
        return False
    return True
