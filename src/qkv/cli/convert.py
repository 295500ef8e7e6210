"""`qkv convert`: a model's folder as another kind of folder, or in another precision."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.talk import note, result, result_json, say


class Kind(StrEnum):
    """The kinds of folders there are to write."""

    hf = "hf"
    qkv = "qkv"
    elmo = "elmo"


class Numbers(StrEnum):
    """The precisions there are to write weights in."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


def convert(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="A saved model, a training run, a Hugging Face folder, or its name.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write, which must be new or empty.")],
    to: Annotated[
        Kind, typer.Option("--to", help="For Hugging Face's transformers, as qkv's own, or as ELMo was released.")
    ] = Kind.hf,
    dtype: Annotated[
        Numbers | None, typer.Option("--dtype", help="The precision of the weights [as they are].")
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a model as a folder that transformers loads, as one of qkv's own, or an ELMo in its two released files.

    The tokenizer's files go with it. A pickle is never read, and never written.
    """
    from qkv.interop import convert as convert_folder
    from qkv.interop.conversion import DTYPES
    from qkv.runtime.bars import Bars

    written = convert_folder(folder, out, to.value, None if dtype is None else DTYPES[dtype], Bars().of_bytes)
    if written.left_out:
        note(f"{written.left_out:,} weights stay behind: the format has no place for a head and what a task learned")
    say(f"{written.network}  {written.parameters / 1e6:.1f} M parameters  {written.dtype}  {written.size / 1e6:.1f} MB")
    if json:
        result_json(
            {
                "out": str(out),
                "to": to.value,
                "network": written.network,
                "parameters": written.parameters,
                "dtype": written.dtype,
                "bytes": written.size,
            }
        )
    else:
        result(str(out))
