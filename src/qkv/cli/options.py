"""Options shared by several commands.

An option has the name, the meaning and the default of the parameter of the pipelines, which check its value. Results go
to stdout or to --output, an attention page to --page.
"""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from glob import escape, glob
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from qkv.errors import ConfigError, InputError, QkvError
from qkv.registry import load_plugin, registered
from qkv.runtime.files import RUNS, check_output_file


def complete_recipes(incomplete: str) -> list[str]:
    """Return the names of built-in recipes and the .toml files that begin with `incomplete`."""
    names = [path.stem for path in Path(str(files("qkv") / "recipes")).rglob("*.toml")]
    return _matching([*sorted(names), *map(str, sorted(Path().glob("*.toml")))], incomplete)


def complete_models(incomplete: str) -> list[str]:
    """Return the runs under runs/ and pretrained models that begin with `incomplete`; folders if there are none."""
    return [*_runs(incomplete), *_matching(_pretrained_names(), incomplete)] or _folders(incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Return the runs under runs/ that begin with `incomplete`; folders if there are none."""
    return _runs(incomplete) or _folders(incomplete)


def _runs(incomplete: str) -> list[str]:
    return _matching([str(path.parent) for path in sorted(RUNS.glob(f"*/{MANIFEST}"))], incomplete)


def _folders(incomplete: str) -> list[str]:
    return [f"{path}/" for path in sorted(glob(f"{escape(incomplete)}*")) if Path(path).is_dir()]


def complete_architectures(incomplete: str) -> list[str]:
    """Return the names of pretrained models and of architectures that begin with `incomplete`."""
    return [*_matching(_pretrained_names(), incomplete), *complete("model")(incomplete)]


def complete_downloads(incomplete: str) -> list[str]:
    """Return the names of models that can be downloaded."""
    from qkv.hub.pretrained import read_catalog

    return _matching(sorted(read_catalog()), incomplete)


def _pretrained_names() -> list[str]:
    """Return the names of packaged models; importing qkv.hub would import torch, which is slow."""
    return sorted(path.parent.name for path in Path(str(files("qkv") / "pretrained")).glob(f"*/{MANIFEST}"))


def complete(kind: str) -> Callable[[str], list[str]]:
    """Return a function that completes the names of the registered classes of a kind."""

    def matching(incomplete: str) -> list[str]:
        return _matching(sorted(registered(kind)), incomplete)

    return matching


def complete_values(*values: str) -> Callable[[str], list[str]]:
    """Return a function that completes a value of an option."""

    def matching(incomplete: str) -> list[str]:
        return _matching([*values], incomplete)

    return matching


def complete_methods(incomplete: str) -> list[str]:
    """Return the attribution methods that begin with `incomplete`."""
    from qkv.interpret.attribution import METHODS

    return _matching([*METHODS, "all"], incomplete)


def complete_kinds(incomplete: str) -> list[str]:
    """Return the kinds of your own files that begin with `incomplete`."""
    from qkv.datasets.user_files import user_datasets

    return _matching(sorted(user_datasets()), incomplete)


def complete_keys(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the keys of the recipe of a command that begin with `incomplete`, with their meanings.

    After KEY=, the values of a key that names a registered class, or that is true or false.
    """
    from qkv.cli.commands.catalog import FROM_DATA, recipe_keys
    from qkv.training.recipe import read_recipe

    # After an option without a value, here --set, the arguments have not been parsed.
    name = ctx.params.get("recipe") or next(iter(ctx.args), "")
    try:
        tables = recipe_keys(read_recipe(name))
    except QkvError:
        return []
    keys = [key for keys in tables.values() for key in keys if key.value != FROM_DATA]
    name, equals, _ = incomplete.partition("=")
    if equals:
        named = {key.name: registered(key.kind) if key.kind else BOOLEANS.get(key.type, ()) for key in keys}
        values = named.get(name, ())
        return [(f"{name}={value}", "") for value in sorted(values) if f"{name}={value}".startswith(incomplete)]
    return [(f"{key.name}=", key.meaning) for key in keys if key.name.startswith(incomplete)]


def _matching(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def check_output(path: Path | None) -> Path | None:
    """Reject a symlink, device or directory as an output file before the command starts."""
    if path is not None:
        check_output_file(path)
    return path


def output_file(name: str, metavar: str, text: str, suffixes: Sequence[str] = ()) -> Any:
    """Return an option for an output file, with its help text; its name must end in one of `suffixes`, if any."""

    def check(path: Path | None) -> Path | None:
        path = check_output(path)
        if path is not None and suffixes and path.suffix.lower() not in suffixes:
            raise InputError(f"{name} {path}: the file name must end in {' or '.join(suffixes)}")
        return path

    return typer.Option(name, callback=check, metavar=metavar, help=text)


def page_file(text: str) -> Any:
    """Return the option `--page` for an HTML page, with its help text."""
    return output_file("--page", "PAGE.html", text, (".html", ".htm"))


def png_file(text: str) -> Any:
    """Return the option `--png` for a figure, with its help text."""
    return output_file("--png", "FILE.png", text, (".png",))


def count_option(name: str, minimum: int, text: str) -> Any:
    """Return an option for a number from `minimum` on, with its help text, which has no technical upper bound."""

    def parse(value: str) -> int:
        try:
            count = int(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not a valid integer.") from None
        if count < minimum:
            raise typer.BadParameter(f"{count} is less than {minimum}.")
        if count > MAX_COUNT:
            raise typer.BadParameter(f"{count} is greater than {MAX_COUNT:,}.")
        return count

    return typer.Option(name, parser=parse, metavar="N", help=text)


def _load_plugins(paths: list[Path] | None) -> list[Path] | None:
    for path in paths or ():
        load_plugin(path)
    return paths


MANIFEST = "manifest.json"  # of a run; qkv.training.run_manifest imports torch, which is slow
complete_splits = complete_values("train", "valid", "test")
BOOLEANS = {"bool": ("true", "false")}  # values of a type of keys
MAX_COUNT = 2**30  # upper bound of count options that have no other limit
NUMERIC = ((int,), (float,), (bool,), (int | None,), (float | None,))  # types of options that a config checks
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
RecipeName = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=complete_recipes, help="Recipe name, or path to a .toml file."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=complete_keys,
        help="Override a key, e.g. train.lr=3e-4; repeatable.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        autocompletion=complete_values("auto", "cpu", "cuda", "mps"),
        help="Device: auto, cpu, cuda, cuda:N or mps.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
Folder = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        autocompletion=complete_models,
        help="Training run, saved model, or name of a pretrained model (qkv models).",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Treat empty lines and header rows as errors.")]
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Input text.")]
Input = Annotated[
    Path | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Input file, one text per line (- for stdin), or a table (*.csv, *.tsv, *.jsonl; see --column).",
    ),
]
InputColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="ROLE=NAME",
        help="Column of a table as --input, e.g. text=review or image=file [recognized by common names].",
    ),
]
BulkInput = Annotated[
    Path | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Input file, one text per line (- for stdin), or a table (*.csv, *.tsv, *.jsonl; see --column); or a "
        "folder or a quoted pattern such as 'shards/*.txt'.",
    ),
]
ParsedInput = Annotated[
    Path | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Input file, one text per line (- for stdin), *.conllu or a table (*.csv, *.tsv, *.jsonl; see --column); "
        "or a folder or a quoted pattern such as 'shards/*.txt'.",
    ),
]
Documents = Annotated[
    list[Path] | None,
    typer.Option("--document", metavar="FILE", help="File to read as a single text (- for stdin); repeatable."),
]
Output = Annotated[Path | None, output_file("--output", "FILE", "Write the results to a file instead of stdout.")]
BulkOutput = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write the results to a file instead of stdout; for a folder or pattern as --input, to a folder.",
    ),
]
Page = Annotated[Path | None, page_file("Write an HTML page with the attention weights.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue a job that was interrupted, with the same --input and --output.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing --output of an --input file.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Decode files in N processes, which share the CPUs [1; with --ray, one per GPU or per machine].",
    ),
]
Ray = Annotated[
    bool,
    typer.Option("--ray", help="Decode files with Ray, on this machine or a cluster (pip install 'qkv[ray]')."),
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray-address", metavar="HOST:PORT", help="Existing Ray cluster, or auto [one on this machine]."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print which implementation decodes.")]


class DecodingDType(StrEnum):
    """Types of the weights in decoding."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


DType = Annotated[
    DecodingDType, typer.Option("--dtype", help="Data type of the weights in decoding; auto: that of the model.")
]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Inputs per batch [as many as fit in memory].")]
NumBeams = Annotated[int, typer.Option("--num-beams", help="Beam size; 1 is greedy search.")]
NumReturnSequences = Annotated[
    int, typer.Option("--num-return-sequences", help="Number of results per input, best first.")
]
LengthPenalty = Annotated[
    float, typer.Option("--length-penalty", help="Length penalty ALPHA: score = log p / length^ALPHA.")
]
MinNewTokens = Annotated[int, typer.Option("--min-new-tokens", help="Minimum number of new tokens.")]
MaxNewTokens = Annotated[int | None, typer.Option("--max-new-tokens", help="Maximum number of new tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", help="Softmax temperature; 0 is greedy search.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Sample from the K most likely tokens.")]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", help="Sample from the smallest set of tokens with total probability P (nucleus sampling)."),
]
Wav = Annotated[
    Path | None,
    typer.Option("--wav", metavar="FILE", help="Synthesize the generated tune (ABC notation) to this WAV file."),
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Your own data. Most tasks: a table (*.csv, *.jsonl or TSV) with named columns, or a folder with train, "
        "valid and test. Pairs or labeled texts: also the option twice with one file per side (sources may be "
        "*.conllu). Tagged sentences: also CoNLL columns or *.conllu. Questions: also SQuAD JSON. Images: a folder "
        "with a subfolder per class. Speech: a folder of WAV files. Text: files, folders or quoted patterns.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="ROLE=NAME",
        help="Name of a column of your tables, e.g. text=review; repeatable [recognized by common names].",
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


def parse_columns(column: list[str] | None) -> dict[str, str]:
    """Return the names of columns by role, given as ROLE=NAME."""
    columns = {}
    for text in column or []:
        role, equals, name = text.partition("=")
        if not role or not equals or not name:
            raise InputError(f"--column {text}: expected ROLE=NAME, e.g. text=review")
        columns[role] = name
    return columns


def add_plugin_option(app: typer.Typer) -> None:
    """Add `--plugin FILE` to every command of an app."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_plugins(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_plugin_option(group.typer_instance)


def _with_plugins(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command with the option `--plugin`, which loads files, and options named in errors."""
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def run(*args: Any, plugin: list[Path] | None = None, **values: Any) -> Any:
        try:
            return command(*args, **values)
        except InputError as error:
            error.args = (_name_options(error, signature),)
            raise

    option = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugin)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    return run


def _name_options(error: InputError, signature: inspect.Signature) -> str:
    """Return the message of an error with options instead of parameters: `--num-beams` for `num_beams`.

    A parameter named by an English word, such as `seed`, is replaced only where it is the subject of a config error.
    """
    message = str(error)
    for name, parameter in signature.parameters.items():
        option = f"--{name.replace('_', '-')}"
        if "_" in name:
            message = re.sub(rf"(?<![\w./-]){name}\b", option, message)
        elif isinstance(error, ConfigError) and get_args(parameter.annotation)[:1] in NUMERIC:
            message = re.sub(rf"^{name}(?= )", option, message)
    return message
