"""Save and load model directories: config.json, model.safetensors, tokenizer.json. Nothing in them is executed.

Directories of qkv have "library": "qkv" in config.json; those of other libraries are loaded too.
"""

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from qkv.config import build
from qkv.errors import CheckpointError, InputError, ModelNotFoundError
from qkv.hub.checkpoint_manifest import MANIFEST_FILE, read_manifest, verify_manifest
from qkv.hub.families import FAMILIES, ORIGINALS
from qkv.hub.huggingface import fetch, is_hub_name
from qkv.hub.meta_model import check_vocab_size, checked_meta_model, empty_model, require_model_memory
from qkv.hub.pretrained import NAME as PRETRAINED_NAME
from qkv.hub.pretrained import pretrained_folder, unknown_model
from qkv.hub.quantization import (
    QUANTIZATION,
    computes_int8,
    empty_quantized_model,
    file_layout,
    load_weights,
)
from qkv.hub.released import CONFIG, load_released
from qkv.hub.tensors import WEIGHTS, checked_header, pickle_hint, read_headers, write_tensors
from qkv.hub.weight_map import Family, OriginalRelease
from qkv.models.vit import ViT
from qkv.models.whisper import Whisper
from qkv.nn.interfaces import Model
from qkv.registry import names_keywords, nearest, registered
from qkv.runtime.device import pick_device
from qkv.runtime.documents import read_object, reading
from qkv.runtime.download import Progress
from qkv.runtime.files import atomic_folder, check_output_folder, file_kind
from qkv.runtime.text import printable, with_article
from qkv.tokenizers import Tokenizer, load_tokenizer
from qkv.types import Tensor

Network = Model | ViT

LIBRARY = "qkv"  # "library" in config.json: model_type alone is ambiguous
OWN_KEYS = ("library", "model_type", "quantization")  # of config.json, next to those of the model
T = TypeVar("T")
MAX_SHOWN = 3  # models in a message
CHECKPOINT = re.compile(r"step-\d{8,}")


def save_model(
    model: Network,
    tokenizer: Tokenizer | None,
    folder: str | Path,
    progress: Progress = lambda done: None,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the model's files into the existing `folder`; the caller makes the write atomic.

    With `weights`, these are saved instead of the current ones of the model.
    """
    name = getattr(type(model), "registered_name", None)
    if name is None:
        raise InputError(f"{type(model).__name__} cannot be saved: it is not a registered model")
    folder = Path(folder)
    weights = dict(model.named_parameters()) if weights is None else weights
    quantized = any(weight.dtype == torch.int8 for weight in weights.values())
    quantization = {"quantization": QUANTIZATION} if quantized else {}
    config = {"library": LIBRARY, "model_type": name, **quantization, **model.config.to_dict()}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # named_parameters yields tied weights once, under their first name. Buffers are not saved: they are computed from
    # the config or, like the baseline of hard attention, are part of the training state.
    write_tensors(weights, folder / WEIGHTS, progress)
    if tokenizer is not None:
        tokenizer.save(folder)


FILE_SUFFIXES = (".txt", ".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".json", ".onnx")  # not of folders


@names_keywords
def save(model: Network, folder: str | os.PathLike[str]) -> Path:
    """Write a model with its tokenizer to a new folder, which `load`, the pipelines and all commands read.

        model = qkv.load("openai-community/gpt2")
        ...
        qkv.save(model, "my-gpt2")
        qkv.hub.convert("my-gpt2", "my-gpt2-hf")  # the same weights for transformers

    Args:
        model: A model of qkv, built or loaded; its weights keep their dtype.
        folder: Folder to write, new or empty.

    Returns:
        The folder, which is complete or absent.
    """
    if not isinstance(model, Network):
        hint = ": pass its .model" if isinstance(getattr(model, "model", None), Network) else ""
        raise InputError(f"save takes a model of qkv, not {type(model).__name__}{hint}")
    path = Path(folder)
    if path.suffix.lower() in FILE_SUFFIXES:
        raise InputError(f"{path}: a model is saved to a folder, whose name must not end in {path.suffix}")
    check_output_folder(path)
    with atomic_folder(path) as scratch:
        save_model(model, model.tokenizer, scratch)
    return path


class ModelFolder:
    """A folder with a saved model, of which config.json is parsed once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def original(self) -> OriginalRelease | None:
        """The model, if it is in files of another format, without a model_type in config.json."""
        if (self.path / CONFIG).exists() and "model_type" in self.config_json:
            return None
        return next((release for find in ORIGINALS if (release := find(self.path)) is not None), None)

    @cached_property
    def config_json(self) -> dict[str, Any]:
        return read_object(self.path / CONFIG)

    @cached_property
    def is_own(self) -> bool:
        """Whether the folder was written by qkv: model_type alone is ambiguous."""
        return self.original is None and self.config_json.get("library") == LIBRARY

    @cached_property
    def family(self) -> Family:
        """The released-model family named in config.json."""
        return self._of_model_type(FAMILIES)

    @cached_property
    def network(self) -> type[Any]:
        """The model class."""
        if self.original:
            return self.original.network
        return self._of_model_type(registered("model")) if self.is_own else self.family.network

    @cached_property
    def config(self) -> Any:
        """The config of a model saved by qkv, or of a released one with a config.json; None for other formats."""
        path = self.path / CONFIG
        if self.original:
            return None
        if not self.is_own:
            with reading(path):
                return self.family.read_config(self.config_json, read_headers(self.path))
        values = {key: value for key, value in self.config_json.items() if key not in OWN_KEYS}
        with reading(path):
            return build(self.network.config_class, values, str(path))

    @cached_property
    def reads_speech(self) -> bool:
        """Whether the model is a speech recognizer."""
        encoder = getattr(self.config, "encoder", None) if self.is_own else None
        return issubclass(self.network, Whisper) or getattr(getattr(encoder, "cls", None), "reads_speech", False)

    @cached_property
    def is_quantized(self) -> bool:
        """Whether the weights were saved in int8."""
        if not self.is_own or "quantization" not in self.config_json:
            return False
        if self.config_json["quantization"] != QUANTIZATION:
            value = printable(repr(self.config_json["quantization"]))
            raise CheckpointError(f"{self.path / CONFIG}: unknown quantization {value}; supported: {QUANTIZATION!r}")
        return True

    def load(self, device: torch.device, dtype: torch.dtype | None = None, *, dequantize: bool = False) -> Any:
        """Load the model in eval mode; see `load`. With `dequantize`, int8 weights become floating-point ones."""
        if self.original:
            return self.original.load(device, dtype)
        if not self.is_own:
            return load_released(self.path, self.family, self.config_json, device, dtype)
        if os.path.lexists(self.path / MANIFEST_FILE):
            verify_manifest(self.path)
        meta = checked_meta_model(self.network, self.config, self.path / CONFIG)
        if self.is_quantized:
            layout = file_layout(meta)
        else:
            layout = {name: weight.shape for name, weight in meta.named_parameters()}, {}
        stored = checked_header(self.path / WEIGHTS, *layout)
        require_model_memory(meta, self.path)
        in_int8 = self.is_quantized and computes_int8(self.network) and not dequantize
        model = (empty_quantized_model if in_int8 else empty_model)(self.network, self.config, dtype)
        load_weights(model, stored)
        with reading(self.path):
            model.tokenizer = load_tokenizer(self.path)
        if model.tokenizer is not None:
            check_vocab_size(self.path, model.tokenizer, self.config)
        return model.to(device=device)

    def _of_model_type(self, choices: Mapping[str, T]) -> T:
        """Return the choice named by model_type in config.json."""
        name = self.config_json.get("model_type")
        if not isinstance(name, str) or name not in choices:
            raise CheckpointError(
                f"{self.path / CONFIG}: unknown model_type {printable(repr(name))}{nearest(str(name), choices)}"
            )
        return choices[name]


@names_keywords
def load(
    folder: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    *,
    dequantize: bool = False,
) -> Any:
    """Load a saved model in eval mode, with `.config` and `.tokenizer` (None if the folder has none).

    Names and shapes are checked against the file headers before memory is allocated.

        model = qkv.load("runs/demo", device="cuda")
        model = qkv.load("openai-community/gpt2", dtype="bfloat16")

    Args:
        folder: A saved model, a training run, a Hugging Face directory of a supported family, a released ELMo, a file
            of llama2.c, the name of a pretrained model (`qkv models`), or "owner/name" on the Hugging Face Hub.
        device: "cpu", "cuda", "cuda:N", "mps" or "auto".
        dtype: Type of the weights, such as torch.bfloat16 or "bfloat16"; by default float32.
        dequantize: Convert the int8 weights of a quantized model (`qkv convert --dtype int8`) to `dtype`; by default
            they stay in the file, which is mapped into memory.

    Returns:
        The model, a `torch.nn.Module` of `qkv.models`.
    """
    return load_as(object, folder, device, dtype, dequantize=dequantize)


def load_as(
    kind: type[Any],
    folder: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    *,
    dequantize: bool = False,
    required: str = "",
) -> Any:
    """Load a saved model like `load`; raise before reading weights unless it is a subclass of `kind`.

    `required` describes the models of this kind in the message, by default all of them.
    """
    folder, target_device = model_name(folder), pick_device(device)
    dtype = floating_point_type(dtype)
    while True:
        checkpoints = checkpoints_in(Path(folder))
        try:
            source = ModelFolder(locate(folder))
            if kind is not object and not issubclass(source.network, kind):
                raise InputError(
                    f"{folder} is {_describe(source.network)}, but {required or _describe(kind)} is required"
                )
            return source.load(target_device, dtype, dequantize=dequantize)
        except InputError:
            if checkpoints_in(Path(folder)) == checkpoints:
                raise  # else a training run has replaced its checkpoints meanwhile


def floating_point_type(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return a floating-point type by its name; raise for other types."""
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(named, torch.dtype) and named.is_floating_point):
        raise InputError(f"dtype {dtype} is not a floating-point type, such as float32 or bfloat16")
    return named


def _describe(kind: type[Any]) -> str:
    return getattr(kind, "kind_description", with_article(kind.__name__))


def model_name(model: object, *, network: bool = False) -> str:
    """Return the path or the name of a saved model, with `network` also the class of a network; raise for others."""
    if network and isinstance(model, nn.Module):
        return type(model).__name__
    if not isinstance(model, str | os.PathLike):
        accepted = "a run, a folder, a name or a network" if network else "a run, a folder or a name"
        raise InputError(f"a model is {accepted}, not {type(model).__name__}")
    return str(os.fspath(model))


def short_name(model: str) -> str:
    """Return the name of a model in titles: the last two parts of an absolute path, any other name as it is."""
    return "/".join(Path(model).parts[-2:]) if Path(model).is_absolute() else model


def named_folder(folder: str | os.PathLike[str]) -> Path:
    """Return a folder: a path that exists, or the folder of a pretrained model of this name."""
    path = Path(folder)
    return path if os.path.lexists(path) else pretrained_folder(str(folder)) or path


def locate(folder: str | os.PathLike[str]) -> Path:
    """Return the local folder of a model: a path, a pretrained model, or one of the Hugging Face Hub (downloaded)."""
    folder = os.fspath(folder)
    path = named_folder(folder)
    if not os.path.lexists(path) and PRETRAINED_NAME.fullmatch(folder):
        raise ModelNotFoundError(unknown_model(folder))
    if not is_hub_name(folder):
        return resolve(path)
    if (owner := Path(Path(folder).parts[0])).exists():
        raise ModelNotFoundError(
            f"{folder}: no such folder; the Hugging Face Hub is not searched because the local folder {owner} exists"
        )
    return fetch(folder)


def _models_inside(folder: Path) -> str:
    """Return a hint at the models in a folder, newest first, such as that of all runs."""
    inside = [path for path in folder.iterdir() if path.is_dir() and ((path / CONFIG).exists() or checkpoints_in(path))]
    inside.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    more = ", ..." if len(inside) > MAX_SHOWN else ""
    return f"; models in it: {', '.join(map(str, inside[:MAX_SHOWN]))}{more}" if inside else ""


def resolve(folder: Path) -> Path:
    """Return the folder itself if it is a saved model, else the best (or newest) checkpoint of the training run."""
    if (folder / CONFIG).exists() or ModelFolder(folder).original:
        return folder
    if folder.is_file():
        raise InputError(f"{folder}: is a file; expected a folder with {CONFIG} and {WEIGHTS}{pickle_hint(folder)}")
    if not folder.is_dir():
        raise ModelNotFoundError(f"{folder}: no such folder")
    checkpoints = checkpoints_in(folder)
    if not checkpoints:
        raise InputError(
            f"{folder}: not a saved model (no {CONFIG}) or a training run with checkpoints{pickle_hint(folder)}"
            f"{_models_inside(folder)}"
        )
    match read_manifest(checkpoints[-1]):
        case {"state": {"best": {"step": int(step)}}} if (best := checkpoint_path(folder, step)).is_dir():
            return best
    return checkpoints[-1]


def checkpoint_path(run: Path, step: int) -> Path:
    """Return the path of a run's checkpoint at `step`."""
    return run / f"step-{step:08d}"


def checkpoint_step(checkpoint: Path) -> int:
    """Return the step encoded in a checkpoint's folder name."""
    return int(checkpoint.name.removeprefix("step-"))


def checkpoints_in(run: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first; others are ignored."""
    checkpoints = [path for path in sorted(run.glob("step-*")) if CHECKPOINT.fullmatch(path.name)]
    for path in checkpoints:
        if not path.is_dir() and os.path.lexists(path):
            raise CheckpointError(f"{path}: a checkpoint must be a folder, not {file_kind(path.lstat().st_mode)}")
    return [path for path in checkpoints if path.is_dir()]  # it may have been removed meanwhile
