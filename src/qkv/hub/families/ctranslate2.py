"""Whisper in the format of CTranslate2: model.bin with config.json and tokenizer.json, as faster-whisper uses them.

model.bin is little-endian: its version, the name and revision of the specification, the variables and their aliases.

    version u32   specification text   revision u32   count u32, then each variable:
        name text   rank u8   dimensions u32 each   type u8   size in bytes u32   values
    count u32, then the alias and the name of each aliased variable, both text

A text is its length (u16), and that many bytes, the last of which is zero. Sizes and names are checked before memory is
allocated; values are read when they are copied into the model.
"""

import io
import math
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from qkv.config import build
from qkv.errors import CheckpointError
from qkv.hub.meta_model import check_vocab_size, checked_meta_model, empty_model, require_model_memory
from qkv.hub.released import CONFIG
from qkv.hub.weight_map import OriginalRelease
from qkv.models.whisper import Whisper, WhisperConfig
from qkv.runtime.documents import open_bytes, read_object, reading
from qkv.runtime.text import printable
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.pretrained import read_tokenizer
from qkv.types import Tensor

MODEL = "model.bin"
VERSION, SPECIFICATION = 6, "WhisperSpec"
MAX_VARIABLES, MAX_RANK = 2**14, 4
TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)  # by their number
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
ACTIVATIONS = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu", 5: "tanh"}
SETTINGS = {"decoder/pre_norm": 1, "decoder/scale_embeddings": 0, "decoder/alibi": 0}  # the only supported values
IGNORED = {
    *SETTINGS, "decoder/activation", "encoder/activation", "decoder/num_heads", "encoder/num_heads",
    "decoder/alignment_heads", "decoder/alignment_layer", "decoder/start_from_zero_embedding", "encoder/pre_norm",
    "encoder/position_encodings/encodings",  # sinusoidal, computed here
}  # fmt: skip
PROMPT, LANGUAGE, NO_TIMESTAMPS = "<|startoftranscript|>", ("<|en|>", "<|transcribe|>"), "<|notimestamps|>"
MULTILINGUAL_VOCAB_SIZE = 51865  # English-only models have one token less


@dataclass(frozen=True)
class Variable:
    """A variable of an open file."""

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int  # in the file

    def read(self, file: io.BufferedReader) -> Tensor:
        file.seek(self.start)
        data = bytearray(math.prod(self.shape) * self.dtype.itemsize)
        if file.readinto(data) != len(data):
            raise CheckpointError(f"{self.path}: truncated while it was read")
        return torch.frombuffer(data, dtype=self.dtype).view(self.shape)


def find_ctranslate2(folder: Path) -> OriginalRelease | None:
    """Return the Whisper model of a folder of CTranslate2, or None."""
    return OriginalRelease(Whisper, partial(load_ctranslate2, folder)) if (folder / MODEL).is_file() else None


def load_ctranslate2(folder: Path, device: torch.device, dtype: torch.dtype | None = None) -> Whisper:
    """Load a model in eval mode, with `.config` and `.tokenizer`; weights are float32 unless `dtype` is given."""
    path = folder / MODEL
    with reading(folder):
        tokenizer = read_tokenizer(folder, "whisper")
    if tokenizer is None:
        raise CheckpointError(f"{folder}: has no tokenizer.json")
    with open_bytes(path) as file:
        variables = _read_header(file, path)
        config = _read_config(file, folder, variables, tokenizer)
        meta = checked_meta_model(Whisper, config, path)
        names = weights(config)
        _check(path, meta, names, variables)
        require_model_memory(meta, folder)
        model = empty_model(Whisper, config, dtype)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(torch.cat([variables[part].read(file).to(weight.dtype) for part in names[name]]))
                if not weight.isfinite().all():
                    raise CheckpointError(f"{path}: {names[name][0]} contains non-finite values")
    model.tokenizer = tokenizer
    check_vocab_size(folder, tokenizer, config)
    return model.to(device=device)


def weights(config: WhisperConfig) -> dict[str, tuple[str, ...]]:
    """Return the variables that each of our parameters consists of, concatenated along dim 0."""
    table: dict[str, tuple[str, ...]] = {
        "embed.weight": ("decoder/embeddings/weight",),
        "positions.weight": ("decoder/position_encodings/encodings",),
    }

    def add(ours: str, *theirs: str, parts: tuple[str, str] = ("weight", "bias")) -> None:
        for name, part in zip(("weight", "bias"), parts, strict=True):
            table[f"{ours}.{name}"] = tuple(f"{layer}/{part}" for layer in theirs)

    for name in ("conv1", "conv2"):
        add(name, f"encoder/{name}")
    norm = ("gamma", "beta")
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        add(f"{side}_norm", f"{side}/layer_norm", parts=norm)
        self_attention = ("attention", "attention_norm") if side == "encoder" else ("self_attention", "self_norm")
        for number in range(layers):
            ours, theirs = f"{side}.{number}", f"{side}/layer_{number}"
            add(f"{ours}.{self_attention[0]}.qkv_proj", f"{theirs}/self_attention/linear_0")
            add(f"{ours}.{self_attention[0]}.out_proj", f"{theirs}/self_attention/linear_1")
            add(f"{ours}.{self_attention[1]}", f"{theirs}/self_attention/layer_norm", parts=norm)
            if side == "decoder":
                linears = (f"{theirs}/attention/linear_0", f"{theirs}/attention/linear_1")  # queries; keys and values
                add(f"{ours}.cross_attention.qkv_proj", *linears)
                add(f"{ours}.cross_attention.out_proj", f"{theirs}/attention/linear_2")
                add(f"{ours}.cross_norm", f"{theirs}/attention/layer_norm", parts=norm)
            add(f"{ours}.ffn.up_proj", f"{theirs}/ffn/linear_0")
            add(f"{ours}.ffn.down_proj", f"{theirs}/ffn/linear_1")
            add(f"{ours}.ffn_norm", f"{theirs}/ffn/layer_norm", parts=norm)
    return table


def _read_header(file: io.BufferedReader, path: Path) -> dict[str, Variable]:
    """Return the variables of a file by name, without reading their values."""
    try:
        length = os.fstat(file.fileno()).st_size
        (version,) = _unpack(file, "I")
        if version != VERSION or (name := _text(file)) != SPECIFICATION:
            found = f"version {version}" if version != VERSION else printable(name)
            raise CheckpointError(f"{path}: {found}, not {SPECIFICATION} of CTranslate2, version {VERSION}")
        _, count = _unpack(file, "II")
        if count > MAX_VARIABLES:
            raise CheckpointError(f"{path}: has {count:,} variables, at most {MAX_VARIABLES:,} are accepted")
        variables: dict[str, Variable] = {}
        for _ in range(count):
            name, (rank,) = _text(file), _unpack(file, "B")
            shape, (type_id, size) = _unpack(file, f"{min(rank, MAX_RANK)}I"), _unpack(file, "BI")
            start = file.tell()
            if rank > MAX_RANK or type_id >= len(TYPES) or name in variables:
                raise CheckpointError(f"{path}: {printable(name)} has an unknown type or shape, or occurs twice")
            if size != math.prod(shape) * TYPES[type_id].itemsize or start + size > length:
                raise CheckpointError(f"{path}: truncated or corrupt: {printable(name)} has {size:,} bytes")
            variables[name] = Variable(name, path, tuple(shape), TYPES[type_id], start)
            file.seek(start + size)
        return variables
    except (struct.error, UnicodeDecodeError):
        raise CheckpointError(f"{path}: truncated or corrupt") from None


def _unpack(file: io.BufferedReader, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))


def _text(file: io.BufferedReader) -> str:
    (length,) = _unpack(file, "H")
    return file.read(length).decode().rstrip("\0")


def _read_config(
    file: io.BufferedReader, folder: Path, variables: Mapping[str, Variable], tokenizer: Tokenizer
) -> WhisperConfig:
    """Return the config, from the shapes of the variables, config.json and the names of the tokens."""
    path, data = folder / MODEL, read_object(folder / CONFIG)

    def scalar(name: str, default: int | None = None) -> int:
        if name not in variables and default is not None:
            return default
        if (variable := variables.get(name)) is None or variable.shape or variable.dtype in FLOATS:
            raise CheckpointError(f"{path}: {name} must be a number")
        return int(variable.read(file))

    def shape(name: str, rank: int) -> tuple[int, ...]:
        if (variable := variables.get(name)) is None or len(variable.shape) != rank:
            raise CheckpointError(f"{path}: {name} is missing, or not of {rank} dimension(s)")
        return variable.shape

    def layers(side: str) -> int:
        names = (f"{side}/layer_{number}/ffn/linear_0/weight" for number in range(MAX_VARIABLES))
        return len(list(takewhile(variables.__contains__, names)))

    for name, value in SETTINGS.items():
        if scalar(name, value) != value:
            raise CheckpointError(f"{path}: {name} must be {value}")
    if (activation := scalar("decoder/activation")) not in ACTIVATIONS:
        raise CheckpointError(f"{path}: unknown activation {activation}")
    vocab_size, dim = shape("decoder/embeddings/weight", 2)
    multilingual = vocab_size >= MULTILINGUAL_VOCAB_SIZE
    prompt = [_token(folder, tokenizer, name) for name in (*(LANGUAGE if multilingual else ()), NO_TIMESTAMPS)]
    return build(
        WhisperConfig,
        {
            "vocab_size": vocab_size, "dim": dim, "mels": shape("encoder/conv1/weight", 3)[1],
            "heads": scalar("decoder/num_heads"), "encoder_layers": layers("encoder"),
            "decoder_layers": layers("decoder"), "ffn_dim": shape("decoder/layer_0/ffn/linear_0/weight", 2)[0],
            "positions": shape("encoder/position_encodings/encodings", 2)[0],
            "max_length": shape("decoder/position_encodings/encodings", 2)[0], "activation": ACTIVATIONS[activation],
            "begin_token": _token(folder, tokenizer, PROMPT), "prompt_tokens": prompt,
            "end_token": tokenizer.special_tokens.end, "suppress_tokens": data.get("suppress_ids", ()),
            "begin_suppress_tokens": data.get("suppress_ids_begin", ()),
            "alignment_heads": data.get("alignment_heads", ()),
        },
        str(folder / CONFIG),
    )  # fmt: skip


def _token(folder: Path, tokenizer: Tokenizer, name: str) -> int:
    if name not in tokenizer.vocab:
        raise CheckpointError(f"{folder}: the tokenizer has no {name}")
    return tokenizer.vocab[name]


def _check(path: Path, meta: Whisper, names: Mapping[str, tuple[str, ...]], variables: Mapping[str, Variable]) -> None:
    """Raise unless the variables have the names, the shapes and the type of the parameters."""
    used = {part for parts in names.values() for part in parts}
    _require_none(path, used - variables.keys(), "missing")
    _require_none(path, variables.keys() - used - IGNORED, "not part of the model")
    for name, weight in meta.named_parameters():
        parts = [variables[part] for part in names[name]]
        if any(part.dtype not in FLOATS or not part.shape for part in parts):
            raise CheckpointError(f"{path}: {parts[0].name} must have floats: convert it without quantization")
        rows, rest = sum(part.shape[0] for part in parts), {part.shape[1:] for part in parts}
        if rows != weight.shape[0] or rest != {tuple(weight.shape[1:])}:
            shapes = [list(part.shape) for part in parts]
            raise CheckpointError(f"{path}: {parts[0].name} has shape {shapes}, expected {list(weight.shape)}")


def _require_none(path: Path, names: Iterable[str], what: str) -> None:
    for name in sorted(names):
        raise CheckpointError(f"{path}: {printable(name)} is {what}")
