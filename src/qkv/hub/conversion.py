"""Convert model directories between formats; the weights keep their values."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from qkv.errors import InputError
from qkv.hub.families import FAMILIES
from qkv.hub.families.elmo import write_elmo
from qkv.hub.model_folder import ModelFolder, locate, save_model
from qkv.hub.quantization import require_quantizable
from qkv.hub.released import released_dtype, write_released
from qkv.hub.tensors import WEIGHTS
from qkv.hub.weight_map import Family
from qkv.models.elmo import Elmo
from qkv.nn.quantized import quantize_layers
from qkv.runtime.download import Progress
from qkv.runtime.files import atomic_folder, check_output_folder, read_regular
from qkv.tokenizers.library import MAX_FILE_BYTES, SPECIAL
from qkv.tokenizers.pair_tokenizer import TARGET
from qkv.tokenizers.tokenizer import CONFIG, TOKENIZER

# Hugging Face transformers, qkv, or the two files of the original ELMo release.
Kind = Literal["hf", "qkv", "elmo"]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8}
IMAGE_FILES = ("preprocessor_config.json",)  # image preprocessing
EXTRA_FILES = (  # tokenizer files of the various libraries and generation settings
    *IMAGE_FILES,
    TOKENIZER,
    CONFIG,
    SPECIAL,
    *(f"{TARGET}{name}" for name in (TOKENIZER, CONFIG, SPECIAL)),
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
    "tokenizer.model",
    "generation_config.json",
)


@dataclass(frozen=True)
class Converted:
    """Summary of a converted model."""

    network: str
    parameters: int
    dtype: str
    size: int  # of the weights, in bytes
    left_out: int = 0  # weights that the format cannot store


def convert(
    source: str | Path,
    out: Path,
    to: Kind | None = None,
    dtype: torch.dtype | None = None,
    bar: Callable[[str, int], AbstractContextManager[Progress]] = lambda name, size: nullcontext(lambda done: None),
) -> Converted:
    """Convert the model in `source` to a directory `out` in another format, optionally with another dtype.

    The format is by default that of Hugging Face transformers; int8 weights are stored in the format of qkv only. The
    write is atomic: `out` is complete or absent.
    """
    check_output_folder(out)
    folder = ModelFolder(locate(source))
    network = folder.network
    if folder.is_quantized:
        raise InputError(f"{source} is quantized to int8: convert the model that it was made from")
    to = to or ("qkv" if dtype == torch.int8 else "hf")
    if dtype == torch.int8:
        if to != "qkv":
            raise InputError(f"int8 weights are stored in the qkv format only: use --to qkv, not --to {to}")
        require_quantizable(network)
    family = family_for(network) if to == "hf" else None
    if to == "elmo":
        if not issubclass(network, Elmo):
            raise InputError(f"{source} is a {network.__name__}; only ELMo models can be written with --to elmo")
        if dtype not in (None, torch.float32):
            raise InputError("the ELMo format stores float32 only: --dtype cannot be combined with --to elmo")
        dtype = torch.float32
    elif dtype is None and not folder.original:  # these files become float32
        dtype = released_dtype(folder.path)
    model = folder.load(torch.device("cpu"), None if dtype == torch.int8 else dtype)
    stored = parameters = sum(weight.numel() for weight in model.parameters())
    if dtype == torch.int8:
        quantize_layers(model)
    size = sum(weight.nbytes for weight in model.parameters())
    with atomic_folder(out) as scratch, bar(WEIGHTS, size) as progress:
        if family is not None:
            write_released(model, family, scratch, progress)
        elif to == "elmo":
            stored = write_elmo(model, scratch, progress)
            size = stored * torch.float32.itemsize
        else:
            save_model(model, model.tokenizer, scratch, progress)
        for name in EXTRA_FILES if family is not None else IMAGE_FILES:
            if os.path.lexists(folder.path / name):
                (scratch / name).write_bytes(read_regular(folder.path / name, MAX_FILE_BYTES))
        if family is not None and folder.original and model.tokenizer is not None:
            model.tokenizer.save(scratch)
    stored_dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return Converted(type(model).__name__, stored, stored_dtype, size, left_out=parameters - stored)


def family_for(network: type[Any]) -> Family:
    """Return the released-model family that `network` converts to."""
    for family in FAMILIES.values():
        if issubclass(network, family.network):
            return family
    supported = ", ".join(f"{family.network.__name__} (as {name})" for name, family in sorted(FAMILIES.items()))
    hint = " (use --to elmo)" if issubclass(network, Elmo) else ""
    raise InputError(f"{network.__name__} has no counterpart in transformers{hint}; supported: {supported}")
