"""`qkv convert`: convert between checkpoint formats and dtypes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.console import info, note, result, result_json


class Kind(StrEnum):
    """Output formats."""

    hf = "hf"
    qkv = "qkv"
    elmo = "elmo"


class DType(StrEnum):
    """Output dtypes."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    int8 = "int8"


def convert(
    folder: Annotated[
        str, typer.Argument(metavar="MODEL", help="Saved model, training run, Hugging Face directory or model name.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output directory; must be new or empty.")],
    to: Annotated[
        Kind | None,
        typer.Option(
            "--to", help="Output format: Hugging Face transformers, qkv, or the original ELMo files [hf; qkv for int8]."
        ),
    ] = None,
    dtype: Annotated[DType | None, typer.Option("--dtype", help="Data type of the weights [unchanged].")] = None,
    json: options.Json = False,
) -> None:
    """Convert a model to another format or dtype.

    Writes a directory that transformers can load, a qkv directory, or the two files of the original ELMo release.
    Tokenizer files are included. Pickles are neither read nor written. With --dtype int8, the matrices of a GPT-2, a
    Llama or a Transformer are quantized, with one scale per row.
    """
    from qkv.hub import convert as convert_folder
    from qkv.hub.conversion import DTYPES
    from qkv.runtime.bars import Bars

    kind = to or (Kind.qkv if dtype == DType.int8 else Kind.hf)
    written = convert_folder(folder, out, kind.value, None if dtype is None else DTYPES[dtype], Bars().byte_bar)
    if written.left_out:
        note(f"{written.left_out:,} weights were dropped: the format does not store task heads")
    info(
        f"{written.network}  {written.parameters / 1e6:.1f} M parameters  {written.dtype}  {written.size / 1e6:.1f} MB"
    )
    if json:
        result_json(
            {
                "out": str(out),
                "to": kind.value,
                "network": written.network,
                "parameters": written.parameters,
                "dtype": written.dtype,
                "bytes": written.size,
            }
        )
    else:
        result(str(out))
