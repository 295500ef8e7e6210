"""`qkv data prepare` and `qkv data shards`: tokenize large texts ahead of training, and list the tokenized texts."""

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.commands.train import RecipeName
from qkv.cli.console import info, progress_bar, result, result_json
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.datasets.shards.token_shards import ShardIndex
    from qkv.tasks.base.tokenized_text import TokenizedText
    from qkv.training.recipe import Recipe

Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data", metavar="FILE", help="Text file, folder or quoted pattern such as 'part-*.txt'; repeatable."
    ),
]
Workers = Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Processes [one per CPU].")]
Verify = Annotated[bool, typer.Option("--verify", help="Read all shards and compare their SHA-256.")]
Rebuild = Annotated[bool, typer.Option("--rebuild", help="Verify the shards, and tokenize damaged ones again.")]


def prepare(
    recipe: RecipeName = None,
    assignments: options.Assignments = None,
    data: Data = None,
    workers: Workers = None,
    verify: Verify = False,
    rebuild: Rebuild = False,
    json: options.Json = False,
) -> None:
    """Tokenize a large text ahead of training.

    `qkv train` with the same recipe, data and settings finds the shards in the cache. Finished shards are kept if the
    command is interrupted; start it again to continue.
    """
    from qkv.training.recipe import read_recipe
    from qkv.training.start import data_overrides

    if recipe is None:
        raise InputError("missing recipe: pass a recipe name (see qkv recipes) or the path to a .toml file")
    changes = [*data_overrides(recipe, data), *(assignments or [])]
    text = _tokenized(read_recipe(recipe, [*changes, *([f"data.workers={dumps(workers)}"] if workers else [])]))
    if verify or rebuild:
        _verify(text, rebuild=rebuild)
    _print(text.folder, text.open().index, json=json)


def shards(json: options.Json = False) -> None:
    """List the tokenized texts in the cache."""
    from qkv.datasets.shards.large_text import tokenized_folder
    from qkv.datasets.shards.token_shards import INDEX, read_index

    folders = sorted(path.parent for path in tokenized_folder().glob(f"*/{INDEX}"))
    for folder in folders:
        try:
            _print(folder, read_index(folder), json=json)
        except InputError as error:
            info(f"error: {error}")
    if not folders:
        info(f"{tokenized_folder()}: no tokenized texts")


def _tokenized(recipe: "Recipe") -> "TokenizedText":
    """Return the tokenized text of a recipe."""
    from qkv.datasets.shards.large_text import LARGE_BYTES, LargeText
    from qkv.tasks.base.tokenized_text import TokenizedText
    from qkv.training.finetune import load_pretrained

    task = recipe.task_class
    data = recipe.data.load()
    if task.shard_unit is None or not isinstance(data, LargeText):
        raise InputError(
            f"nothing to prepare: {task.title} on {recipe.data.registered_name} holds its data in memory; shards are "
            f"for language modeling on text files of more than {LARGE_BYTES // 2**20} MiB, or with --set "
            "data.shards=true"
        )
    pretrained = load_pretrained(recipe)
    tokenizer = task.train_tokenizer(data, recipe.data, recipe.model) if pretrained is None else pretrained.tokenizer
    assert tokenizer is not None
    return TokenizedText(data, tokenizer.target, task.shard_unit)


def _verify(text: "TokenizedText", *, rebuild: bool) -> None:
    """Raise if shards are damaged; with `rebuild`, remove them instead."""
    from qkv.datasets.shards.token_shards import INDEX, damaged_shards, read_index

    if not (text.folder / INDEX).exists():
        return
    try:
        count = len(read_index(text.folder).shards)
    except InputError:
        if not rebuild:
            raise
        text.discard(None)
        return
    with progress_bar("verifying", count) as progress:
        damaged = damaged_shards(text.folder, progress)
    if damaged and not rebuild:
        names = ", ".join(f"{number:05}.tokens" for number in damaged[:5])
        raise InputError(
            f"{text.folder}: {len(damaged)} of {count} shards are damaged ({names}{' ...' * (len(damaged) > 5)}): pass "
            "--rebuild to tokenize them again"
        )
    info(f"{count - len(damaged)} of {count} shards are intact")
    if damaged:
        text.discard(damaged)


def _print(folder: Path, index: "ShardIndex", *, json: bool) -> None:
    documents = sum(shard.documents for shard in index.shards)
    if json:
        sizes = {"tokens": index.tokens, "documents": documents, "shards": len(index.shards)}
        sizes |= {"bytes": index.shard_bytes, "text_bytes": index.bytes}
        result_json({"folder": str(folder), "files": list(index.files), "tokenizer": index.tokenizer, **sizes})
        return
    names = ", ".join(index.files[:3]) + ", ..." * (len(index.files) > 3)
    unit = f"{documents:,} documents, " if documents else ""
    result(
        f"{folder}  {index.bytes / 1e6:,.1f} MB of text, {unit}{index.tokens:,} tokens ({index.tokenizer}) in "
        f"{len(index.shards)} shard(s) of {index.shard_bytes / 1e6:,.1f} MB in all: {names}"
    )
