"""Save and load model directories: config.json, model.safetensors, tokenizer.json. Nothing in them is executed.

Directories of qkv have "library": "qkv" in config.json; those of other libraries are loaded too.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from qkv.config import build
from qkv.errors import CheckpointError, InputError
from qkv.hub.checkpoint_manifest import MANIFEST_FILE, read_manifest, verify_manifest
from qkv.hub.families import FAMILIES
from qkv.hub.families.elmo import elmo_files, load_elmo
from qkv.hub.huggingface import fetch, is_hub_name, is_shadowed
from qkv.hub.json_file import read_object, reading
from qkv.hub.meta_model import checked_meta_model, empty_model, require_model_memory
from qkv.hub.released import CONFIG as CONFIG
from qkv.hub.released import load_released
from qkv.hub.tensors import WEIGHTS as WEIGHTS
from qkv.hub.tensors import Progress, checked_header, pickle_hint
from qkv.hub.tensors import read_tensors as read_tensors
from qkv.hub.tensors import write_tensors as write_tensors
from qkv.hub.tokenizer_files import TARGET_TOKENIZER as TARGET_TOKENIZER
from qkv.hub.tokenizer_files import TOKENIZER, AnyTokenizer, check_vocab_size, write_vocabulary
from qkv.hub.tokenizer_files import read_vocabulary as read_vocabulary
from qkv.hub.weight_map import Family
from qkv.models.elmo import Elmo
from qkv.models.vit import ViT
from qkv.nn.interfaces import Model
from qkv.registry import nearest, registered, unknown
from qkv.runtime.device import pick_device
from qkv.runtime.files import file_kind
from qkv.runtime.text import printable
from qkv.tokenizers.characters import Characters

Network = Model | ViT

LIBRARY = "qkv"  # "library" in config.json: model_type alone is ambiguous
T = TypeVar("T")
CHECKPOINT = re.compile(r"step-\d{8,}")


def save_model(
    model: Network,
    vocabulary: AnyTokenizer | Characters | None,
    folder: str | Path,
    progress: Progress = lambda done: None,
) -> None:
    """Write the model's files into the existing `folder`; the caller makes the write atomic.

    The character vocabulary is fixed and not saved; tokenizer.json of a character model has its output vocabulary.
    """
    name = getattr(type(model), "registered_name", None)
    if name is None:
        raise InputError(f"{type(model).__name__} cannot be saved: it is not a registered model")
    folder = Path(folder)
    config = {"library": LIBRARY, "model_type": name, **_to_dict(model.config)}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # named_parameters yields tied weights once, under their first name. Buffers are not saved: they are computed from
    # the config or, like the baseline of hard attention, are part of the training state.
    write_tensors(dict(model.named_parameters()), folder / WEIGHTS, progress)
    tokenizer = vocabulary.predicted if isinstance(vocabulary, Characters) else vocabulary
    if tokenizer is not None:
        write_vocabulary(tokenizer, folder)


def _to_dict(config: Any) -> dict[str, Any]:
    return config.to_dict() if hasattr(config, "to_dict") else asdict(config)


def load(folder: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Any:
    """Load a saved model in eval mode, with `.config` and `.tokenizer` (None if the folder has none).

    `folder` is a saved model, a training run, a Hugging Face directory of a supported family, a released ELMo, or
    "owner/name" on the Hugging Face Hub. Names and shapes are checked against the file headers before memory is
    allocated. Weights are converted to float32 unless `dtype` is given.
    """
    target_device = pick_device(device)
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"dtype {dtype} is not a floating-point type")
    return _read_located(folder, lambda path: _load(path, target_device, dtype))


def _load(folder: Path, device: torch.device, dtype: torch.dtype | None) -> Any:
    if _is_elmo(folder):
        return load_elmo(folder, device, dtype)
    family = family_of(folder)
    return _load_own(folder, device, dtype) if family is None else load_released(folder, family, device, dtype)


def _read_located(folder: str | Path, read: Callable[[Path], T]) -> T:
    """Apply `read` to a model folder; retry if a concurrent training run replaced its checkpoints meanwhile."""
    while True:
        before = checkpoints_in(Path(folder))
        try:
            return read(locate(folder))
        except InputError:
            if checkpoints_in(Path(folder)) == before:
                raise


def _load_own(folder: Path, device: torch.device, dtype: torch.dtype | None) -> Any:
    if os.path.lexists(folder / MANIFEST_FILE):
        verify_manifest(folder)
    network, config = read_config(folder)
    meta = checked_meta_model(network, config, folder / CONFIG)
    stored = checked_header(folder / WEIGHTS, {name: weight.shape for name, weight in meta.named_parameters()})
    require_model_memory(meta, folder)
    model = empty_model(network, config, dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stored[name].copy_into(parameter)
    if os.path.lexists(folder / TOKENIZER):
        model.tokenizer = read_vocabulary(folder)
        check_vocab_size(folder, model.tokenizer, config)
    if isinstance(model, Elmo):
        model.tokenizer = Characters(config.max_characters, model.tokenizer)
    return model.to(device=device)


def load_as(kind: type[Any], folder: str | Path, device: str | torch.device = "cpu") -> Any:
    """Load a saved model; raise before reading weights unless it is a subclass of `kind`."""

    def read(path: Path) -> Any:
        network = network_of(path)
        if not issubclass(network, kind):
            raise InputError(f"{folder} is {_describe(network)}, but {_describe(kind)} is required")
        return load(path, device)

    return _read_located(folder, read)


def network_of(folder: Path) -> type[Any]:
    """Return the model class of a model folder without reading its weights."""
    if _is_elmo(folder):
        return Elmo
    family = family_of(folder)
    return read_config(folder)[0] if family is None else family.network


def _is_elmo(folder: Path) -> bool:
    return not (folder / CONFIG).exists() and elmo_files(folder) is not None


def family_of(folder: Path) -> Family | None:
    """Return the released-model family named in config.json, or None for a qkv folder.

    Folders of the first qkv version lack "library", but their model types are unique to qkv.
    """
    data = read_object(folder / CONFIG)
    name = data.get("model_type")
    if data.get("library") == LIBRARY:
        return None
    model_types = {*registered("model"), *FAMILIES}
    if not isinstance(name, str) or name not in model_types:
        raise CheckpointError(
            f"{folder / CONFIG}: unknown model_type {printable(repr(name))}{nearest(str(name), model_types)}"
        )
    return FAMILIES.get(name)


def _describe(kind: type[Any]) -> str:
    return getattr(kind, "kind_description", f"a {kind.__name__}")


def locate(folder: str | Path) -> Path:
    """Return the local model folder for a path or a Hugging Face Hub name, downloading it if necessary."""
    if is_hub_name(str(folder)):
        return fetch(str(folder))
    if is_shadowed(str(folder)):
        raise InputError(
            f"{folder}: no such folder; the Hugging Face Hub is not searched because the local folder "
            f"{Path(folder).parent} exists"
        )
    return resolve(Path(folder))


def resolve(folder: Path) -> Path:
    """Return the folder itself if it is a saved model, else the best (or newest) checkpoint of the training run."""
    if (folder / CONFIG).exists() or _is_elmo(folder):
        return folder
    if folder.is_file():
        raise InputError(f"{folder}: is a file; expected a folder with {CONFIG} and {WEIGHTS}{pickle_hint(folder)}")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    checkpoints = checkpoints_in(folder)
    if not checkpoints:
        raise InputError(
            f"{folder}: not a saved model (no {CONFIG}) or a training run with checkpoints{pickle_hint(folder)}"
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
    """Return the complete checkpoints of a run, oldest first; other folders are ignored."""
    checkpoints = []
    for path in sorted(run.glob("step-*")):
        if CHECKPOINT.fullmatch(path.name):
            if path.is_dir():
                checkpoints.append(path)
            elif os.path.lexists(path):
                raise CheckpointError(f"{path}: a checkpoint must be a folder, not {file_kind(path.lstat().st_mode)}")
    return checkpoints


def read_config(folder: Path) -> tuple[type[Any], Any]:
    """Return (model class, config) from config.json; only registered model types are accepted."""
    data = read_object(folder / CONFIG)
    data.pop("library", None)
    name = data.pop("model_type", None)
    models = registered("model")
    if not isinstance(name, str) or name not in models:
        raise CheckpointError(f"{folder / CONFIG}: {unknown('model', name)}")
    network = models[name]
    with reading(folder / CONFIG):
        return network, build(network.config_class, data, str(folder / CONFIG))
