"""`qkv data`: the data sets, and what is in them."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.talk import note, result, result_json, say
from qkv.config import build, nearest
from qkv.errors import InputError

app = typer.Typer(help="List the data sets, and show what is in them.", no_args_is_help=True, rich_markup_mode=None)


@app.command(name="list")
def list_sets(json: options.Json = False) -> None:
    """List the data sets that recipes can name."""
    from qkv.data.registry import DATA_SETS

    for name, entry in DATA_SETS.items():
        if json:
            result_json({"name": name, "summary": entry.summary, "licence": entry.licence})
        else:
            result(f"{name:12} {entry.summary}  [{entry.licence}]")


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set, or a file: your own TSV, or a source file.")],
    target: Annotated[Path | None, typer.Argument(metavar="TARGET", help="The target file, for a source file.")] = None,
    split: Annotated[str, typer.Option("--split", help="train, valid or test.")] = "train",
    count: Annotated[int, typer.Option("--count", min=1, help="How many pairs to show.")] = 10,
    json: options.Json = False,
) -> None:
    """Show the first pairs of a data set, as training would see them."""
    from qkv.data.files import read_pairs
    from qkv.data.registry import DATA_SETS, DataConfig, load_data

    if target is not None and not Path(name).exists():
        raise InputError(f"{name}: no such file, so {target} cannot be its target")
    if name == "pairs":
        raise InputError("pairs are your own: name their file, as in qkv data show pairs.tsv")
    if Path(name).exists():
        read = read_pairs([Path(name), target] if target else [Path(name)])
        pairs, notes = read.pairs, read.notes
    elif name in DATA_SETS:
        loaded = load_data(build(DataConfig, {"name": name}, "data"))
        if split not in loaded.splits:
            raise InputError(f"{name} has no split {split}{nearest(split, loaded.splits)}")
        pairs, notes = loaded.splits[split], loaded.notes
    else:
        raise InputError(f"{name}: neither a file nor a data set{nearest(name, DATA_SETS)}")
    for passed_over in notes:
        note(passed_over)
    say(f"{name}: {len(pairs):,} pairs")
    for pair in pairs[:count]:
        if json:
            result_json({"source": pair.source, "target": pair.target, "gold": pair.gold})
        else:
            result(f"{pair.source}\t{pair.target}")
