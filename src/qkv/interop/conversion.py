"""From one kind of folder to another: what the weights are stays, how they are written changes."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from qkv.data.pretrained import MAX_FILE_BYTES
from qkv.errors import InputError
from qkv.interop.families import FAMILIES
from qkv.interop.families.elmo import write_elmo
from qkv.interop.folder import WEIGHTS, load, locate, network_of, save_model
from qkv.interop.released import released_dtype, write_released
from qkv.interop.tensors import Progress
from qkv.interop.vocabularies import SPECIAL, TARGET_TOKENIZER, TOKENIZER
from qkv.interop.weight_map import Family
from qkv.models.elmo import Elmo
from qkv.runtime.files import check_output_folder, folder_written_atomically, read_regular

# A folder that Hugging Face's transformers loads, one of our own, or one with the two files that ELMo was released in.
Kind = Literal["hf", "qkv", "elmo"]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
PICTURES = ("preprocessor_config.json",)  # how they become a model's input
BESIDE = (  # how texts do, in one library's files or another's, and how a model is to generate
    *PICTURES,
    TOKENIZER,
    TARGET_TOKENIZER,
    SPECIAL,
    "tokenizer_config.json",
    "added_tokens.json",
    "vocab.json",
    "target_vocab.json",
    "vocab.txt",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "source.spm",
    "target.spm",
    "spiece.model",
    "generation_config.json",
)


@dataclass(frozen=True)
class Converted:
    """What was written."""

    network: str
    parameters: int
    dtype: str
    size: int  # of the weights, in bytes
    left_out: int = 0  # weights for which the format has no place


def convert(
    source: str | Path,
    out: Path,
    to: Kind = "hf",
    dtype: torch.dtype | None = None,
    bar: Callable[[str, int], AbstractContextManager[Progress]] = lambda name, size: nullcontext(lambda done: None),
) -> Converted:
    """Write a model as a folder of another kind, or of the same; with the numbers it has, unless `dtype` is given.

    `out` is there whole in the end, or not at all.
    """
    check_output_folder(out)
    folder = locate(source)
    network = network_of(folder)
    family = family_for(network) if to == "hf" else None
    if to == "elmo":
        if not issubclass(network, Elmo):
            raise InputError(f"{source}: holds a {network.__name__}, which cannot be written as ELMo was released")
        if dtype not in (None, torch.float32):
            raise InputError("ELMo's release has its weights in float32: leave the precision out")
        dtype = torch.float32
    model = load(folder, dtype=dtype or _stored_dtype(folder))
    size = sum(weight.nbytes for weight in model.parameters())
    with folder_written_atomically(out) as scratch, bar(WEIGHTS, size) as progress:
        if family is not None:
            write_released(model, family, scratch, progress)
        elif to == "elmo":
            kept = write_elmo(model, scratch, progress)
        else:
            save_model(model, model.tokenizer, scratch, progress)
        for name in BESIDE if family is not None else PICTURES:
            _copy(folder / name, scratch / name)
    weights = list(model.parameters())
    numbers = str(weights[0].dtype).removeprefix("torch.")
    parameters = sum(weight.numel() for weight in weights)
    if to == "elmo":
        return Converted(type(model).__name__, kept, numbers, kept * weights[0].itemsize, left_out=parameters - kept)
    return Converted(type(model).__name__, parameters, numbers, size)


def family_for(network: type[Any]) -> Family:
    """The family of released models that a network of ours is written as."""
    for family in FAMILIES.values():
        if issubclass(network, family.network):
            return family
    known = ", ".join(f"{family.network.__name__} (as {name})" for name, family in sorted(FAMILIES.items()))
    hint = " (--to elmo writes it as it was released)" if issubclass(network, Elmo) else ""
    raise InputError(
        f"transformers has no network like our {network.__name__}{hint}; what can be written for it: {known}"
    )


def _stored_dtype(folder: Path) -> torch.dtype | None:
    """The dtype of the weights in a folder; ELMo's files are not safetensors, and are float32."""
    return released_dtype(folder) if any(folder.glob("*.safetensors")) else None


def _copy(path: Path, to: Path) -> None:
    if os.path.lexists(path):
        to.write_bytes(read_regular(path, MAX_FILE_BYTES))
