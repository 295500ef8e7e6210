"""Convert model directories between formats; the weights keep their values."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from qkv.errors import InputError
from qkv.hub.families import FAMILIES
from qkv.hub.families.elmo import write_elmo
from qkv.hub.feature_order import with_sines_first
from qkv.hub.model_folder import ModelFolder, locate, save_model
from qkv.hub.quantization import quantize_model
from qkv.hub.released import released_dtype, write_released
from qkv.hub.tensors import WEIGHTS
from qkv.hub.weight_map import Family
from qkv.models.elmo import Elmo
from qkv.models.transformer import Transformer
from qkv.nn.interfaces import EncoderDecoder
from qkv.registry import nearest
from qkv.runtime.download import Progress
from qkv.runtime.files import atomic_folder, check_output_folder, read_regular
from qkv.runtime.text import with_article
from qkv.tokenizers.library import MAX_FILE_BYTES, SPECIAL
from qkv.tokenizers.pair_tokenizer import TARGET
from qkv.tokenizers.tokenizer import CONFIG, TOKENIZER, write_object
from qkv.types import Tensor

# Hugging Face transformers, qkv, or the two files of the original ELMo release.
Kind = Literal["hf", "qkv", "elmo"]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8}
GENERATION = "generation_config.json"
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
    GENERATION,
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
    out: str | Path,
    to: Kind | None = None,
    dtype: torch.dtype | str | None = None,
    bar: Callable[[str, int], AbstractContextManager[Progress]] = lambda name, size: nullcontext(lambda done: None),
) -> Converted:
    """Convert the model in `source` to a directory `out` in another format, optionally with another dtype.

    The format is by default that of Hugging Face transformers; int8 weights are stored in the format of qkv only. The
    write is atomic: `out` is complete or absent.
    """
    out = Path(out)
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise InputError(f"unknown dtype {dtype!r}{nearest(dtype, DTYPES)}")
        dtype = DTYPES[dtype]
    check_output_folder(out)
    folder = ModelFolder(locate(source))
    network = folder.network
    if folder.is_quantized and dtype == torch.int8:
        raise InputError(f"{source} is quantized to int8 already")
    to = to or ("qkv" if dtype == torch.int8 else "hf")
    if dtype == torch.int8 and to != "qkv":
        raise InputError(f"int8 weights are stored in the qkv format only: use --to qkv, not --to {to}")
    if to == "hf":
        family_for(network)  # raises before reading weights
    if to == "elmo":
        if not issubclass(network, Elmo):
            raise InputError(
                f"{source} is {with_article(network.__name__)}; only ELMo models can be written with --to elmo"
            )
        if dtype not in (None, torch.float32):
            raise InputError("the ELMo format stores float32 only: --dtype cannot be combined with --to elmo")
        dtype = torch.float32
    elif dtype is None and not folder.original:  # these files become float32
        dtype = released_dtype(folder.path)
    model = folder.load(torch.device("cpu"), None if dtype == torch.int8 else dtype, dequantize=True)
    stored = parameters = sum(weight.numel() for weight in model.parameters())
    weights: Mapping[str, Tensor] | None = quantize_model(model) if dtype == torch.int8 else None
    if to == "hf" and issubclass(network, Transformer):
        model = with_sines_first(model)
    family = family_for(network, model.config) if to == "hf" else None
    size = sum(weight.nbytes for weight in (model.parameters() if weights is None else weights.values()))
    with atomic_folder(out) as scratch, bar(WEIGHTS, size) as progress:
        if family is not None:
            model.config = _with_decoder_tokens(model)
            write_released(model, family, scratch, progress)
            _write_generation_config(model, scratch)
        elif to == "elmo":
            stored = write_elmo(model, scratch, progress)
            size = stored * torch.float32.itemsize
        else:
            save_model(model, model.tokenizer, scratch, progress, weights)
        for name in EXTRA_FILES if family is not None else IMAGE_FILES:
            if os.path.lexists(folder.path / name):
                (scratch / name).write_bytes(read_regular(folder.path / name, MAX_FILE_BYTES))
        if family is not None and (folder.original or folder.is_own) and model.tokenizer is not None:
            model.tokenizer.save(scratch)
    stored_dtype = str(dtype or next(model.parameters()).dtype).removeprefix("torch.")
    return Converted(type(model).__name__, stored, stored_dtype, size, left_out=parameters - stored)


def _with_decoder_tokens(model: Any) -> Any:
    """Return the config of a model; special tokens of a decoder that it does not set are those of the tokenizer."""
    if model.tokenizer is None or not issubclass(type(model), EncoderDecoder):
        return model.config
    tokens = model.tokenizer.target.special_tokens
    keys = {f"{name}_token": getattr(tokens, name) for name in ("pad", "begin", "end")}
    fields = type(model.config).model_fields
    return model.config.replace(
        **{key: token for key, token in keys.items() if key in fields and getattr(model.config, key) is None}
    )


def _write_generation_config(model: Any, folder: Path) -> None:
    """Write generation_config.json, so that transformers generates as qkv does: greedily, without special tokens."""
    if model.tokenizer is None or not issubclass(type(model), Transformer):
        return
    config = model.config
    tokens = model.tokenizer.target.special_tokens.replace(pad=config.pad_token, begin=config.begin_token)
    settings = {
        "decoder_start_token_id": config.begin_token,
        "pad_token_id": config.pad_token,
        "eos_token_id": config.end_token,
        "suppress_tokens": tokens.suppressed,
        "max_length": config.max_length,
    }
    write_object(folder / GENERATION, settings)


def family_for(network: type[Any], config: Any = None) -> Family:
    """Return the released-model family that `network` converts to, with a config that of this variant of it."""
    for family in FAMILIES.values():
        if issubclass(network, family.network) and (config is None or family.accepts(config)):
            return family
    supported = ", ".join(f"{family.network.__name__} (as {name})" for name, family in sorted(FAMILIES.items()))
    hint = " (use --to elmo)" if issubclass(network, Elmo) else ""
    raise InputError(f"{network.__name__} has no counterpart in transformers{hint}; supported: {supported}")
