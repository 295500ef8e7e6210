"""`qkv embed`: text in, vectors out."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options, texts
from qkv.cli.talk import result, result_json
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.types import Tensor


def embed(
    run: options.Folder,
    text: texts.Texts = None,
    file: texts.Input = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            callback=options.output_file,
            metavar="FILE",
            help="Write the vectors to a .npy or .safetensors file.",
        ),
    ] = None,
    pooling: Annotated[
        str, typer.Option("--pooling", metavar="HOW", help="mean of all tokens, cls (the first) or pooler.")
    ] = "mean",
    normalise: Annotated[
        bool, typer.Option("--normalise/--no-normalise", help="Whether every vector is made to have the length 1.")
    ] = True,
    batch_tokens: texts.BatchTokens = 8192,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Make a vector of each text, of each line of a file, or of each of standard input.

    A file of --out has them as rows of float32 numbers, in order ("vectors" in .safetensors); an empty line is a row of
    zeros there. With --json each is printed, as an object on a line of its own.
    """
    if out is None and not json:
        raise InputError("say where the vectors go: --out FILE.npy (or .safetensors), or --json to print them")
    if out is not None and out.suffix not in WRITERS:
        raise InputError(f"--out {out}: vectors are written to a file that ends in {' or '.join(WRITERS)}")
    lines = texts.texts_given(text, file, strict=strict)

    import torch

    from qkv.runtime.files import write_atomically
    from qkv.tasks.embedder import Embedder

    embedder = Embedder(run, device=device)
    embedder.check_pooling(pooling)
    texts.note_too_long(embedder, lines)
    kept: list[Tensor] = []
    for number, line, vector in texts.answered(
        "embedding",
        lines,
        lambda some: list(embedder(some, pooling=pooling, normalise=normalise, batch_tokens=batch_tokens)),
    ):
        if json:
            numbers = None if vector is None else [float(f"{value:.7g}") for value in vector.tolist()]
            result_json({"input": number, "text": line, "vector": numbers})
        if out is not None:
            kept.append(torch.zeros(embedder.dim) if vector is None else vector)
    if out is not None:
        write_atomically(out, WRITERS[out.suffix](torch.stack(kept)))
        if not json:
            result(str(out))


def _npy(vectors: "Tensor") -> bytes:
    import numpy as np

    data = io.BytesIO()
    np.save(data, vectors.numpy())
    return data.getvalue()


def _safetensors(vectors: "Tensor") -> bytes:
    from safetensors.torch import save

    return save({"vectors": vectors})


WRITERS: dict[str, Callable[["Tensor"], bytes]] = {".npy": _npy, ".safetensors": _safetensors}
