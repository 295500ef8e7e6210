"""`qkv embed`: sentence embeddings."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options, texts
from qkv.cli.console import result, result_json
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
            callback=options.check_output,
            metavar="FILE",
            help="Output file (.npy or .safetensors).",
        ),
    ] = None,
    pooling: Annotated[
        str, typer.Option("--pooling", metavar="POOLING", help="Pooling: mean, cls or pooler.")
    ] = "mean",
    normalise: Annotated[bool, typer.Option("--normalise/--no-normalise", help="L2-normalize the embeddings.")] = True,
    batch_size: texts.BatchSize = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Compute embeddings of texts.

    Texts are arguments, or the lines of a file or of standard input. --out writes a float32 matrix with one row per
    text ("vectors" in .safetensors); an empty line gives a row of zeros. --json prints one object per text.
    """
    if out is None and not json:
        raise InputError("missing output: pass --out FILE.npy (or .safetensors), or --json to print the embeddings")
    if out is not None and out.suffix not in WRITERS:
        raise InputError(f"--out {out}: file name must end in {' or '.join(WRITERS)}")
    lines = texts.read_texts(text, file, strict=strict)

    import torch

    from qkv.pipelines.embedder import Embedder
    from qkv.runtime.files import write_atomically

    embedder = Embedder(run, device=device)
    embedder.check_pooling(pooling)
    texts.note_too_long(embedder, lines)
    vectors: list[Tensor] = []
    for number, line, vector in texts.predictions(
        "embedding",
        lines,
        lambda chunk: list(embedder(chunk, pooling=pooling, normalize=normalise, batch_size=batch_size)),
    ):
        if json:
            numbers = None if vector is None else [float(f"{value:.7g}") for value in vector.tolist()]
            result_json({"input": number, "text": line, "vector": numbers})
        if out is not None:
            vectors.append(torch.zeros(embedder.dim) if vector is None else vector)
    if out is not None:
        write_atomically(out, WRITERS[out.suffix](torch.stack(vectors)))
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
