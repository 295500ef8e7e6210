"""Options shared by several commands."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli import completion
from qkv.registry import load_plugin
from qkv.runtime.files import check_output_file


def check_output(path: Path | None) -> Path | None:
    """Reject a symlink, device or directory as an output file before the command starts."""
    if path is not None:
        check_output_file(path)
    return path


def _load_plugins(paths: list[Path] | None) -> list[Path] | None:
    for path in paths or ():
        load_plugin(path)
    return paths


MAX_COUNT = 2**30  # upper bound of count options that have no other limit
INTERRUPTED = 130  # exit code after Ctrl-C

Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        is_eager=True,
        callback=_load_plugins,
        help="Python file that registers scores, models, tasks, datasets, ...; repeatable.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=completion.complete_keys,
        help="Override a key, e.g. train.lr=3e-4; repeatable.",
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="Device: auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
Folder = Annotated[
    Path,
    typer.Argument(metavar="RUN", autocompletion=completion.complete_runs, help="Training run or saved model."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Treat empty lines and header rows as errors.")]
Beam = Annotated[int, typer.Option("--beam", min=1, max=1000, help="Beam size; 1 is greedy decoding.")]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Your own data. Pairs or labelled texts: one two-column file (TSV, *.csv or *.jsonl), or the option twice "
        "with one file per side (sources may be *.conllu). Tagged sentences: CoNLL columns or *.conllu. Questions: "
        "SQuAD JSON.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Directory searched first for dataset files [then QKV_DATA, the cache, a download].",
    ),
]


def add_plugin_option(app: typer.Typer) -> None:
    """Add `--plugin FILE` to every command of an app."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_plugins(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_plugin_option(group.typer_instance)


def _with_plugins(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command with the additional option `--plugin`, which loads the files."""

    @functools.wraps(command)
    def run(*args: Any, plugin: list[Path] | None = None, **values: Any) -> Any:
        return command(*args, **values)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugin)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    return run
