"""A saved model is a folder: config.json, model.safetensors, tokenizer.json. Nothing in it is ever executed."""

import json
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from qkv.config import build, nearest
from qkv.data.vocabulary import Vocabulary
from qkv.errors import CheckpointError, InputError
from qkv.interop.seal import SEAL, read_seal, verify
from qkv.models import MODELS
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.types import Tensor

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
LARGEST_TEXT = 256 * 2**20  # bytes of config or tokenizer that are read at all


def save_model(model: EncoderDecoder[Any, Any], vocabulary: Vocabulary | None, folder: Path) -> None:
    """Write the model's three files into `folder`, which must exist; making that atomic is the caller's part."""
    name = next(name for name, (network, _) in MODELS.items() if isinstance(model, network))
    config = {"model_type": name, **asdict(model.config)}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # named_parameters gives tied weights once, under their first name.
    save_file({name: weight.detach().contiguous() for name, weight in model.named_parameters()}, folder / WEIGHTS)
    if vocabulary is not None:
        (folder / TOKENIZER).write_text(vocabulary.to_json(), encoding="utf-8")


def load(folder: str | Path, device: str = "cpu", dtype: torch.dtype | None = None) -> EncoderDecoder[Any, Any]:
    """Load a saved model, in eval mode, with `.config` and `.tokenizer` (None where the folder has none).

    Names and shapes are checked against the file's header before any memory is taken for the model.
    """
    folder = resolve(Path(folder))
    if (folder / SEAL).exists():
        verify(folder)
    network, config = read_config(folder)
    shapes = _shapes_without_memory(network, config)
    weights = read_tensors(folder / WEIGHTS, shapes)
    model = network(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    if (folder / TOKENIZER).exists():
        model.tokenizer = Vocabulary.from_json(_read_text(folder / TOKENIZER), str(folder / TOKENIZER))
        if len(model.tokenizer) > config.target_size:
            raise CheckpointError(f"{folder}: the tokenizer has more tokens than the model has room for")
    return model.to(device=device, dtype=dtype).eval()


def resolve(folder: Path) -> Path:
    """The model folder that is meant: the folder itself, or a training run's best (else newest) checkpoint."""
    if (folder / CONFIG).exists():
        return folder
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    checkpoints = sorted(folder.glob("step-*"))
    if not checkpoints:
        raise InputError(f"{folder}: neither a saved model (no {CONFIG}) nor a training run with a checkpoint")
    record = read_seal(checkpoints[-1])
    best = folder / f"step-{(record.get('best') or {}).get('step', 0):08d}"
    return best if best.is_dir() else checkpoints[-1]


def read_config(folder: Path) -> tuple[type[EncoderDecoder[Any, Any]], Any]:
    """The network class and its config, from config.json; only names that qkv knows are accepted."""
    data = _read_json(folder / CONFIG)
    name = data.pop("model_type", None)
    if name not in MODELS:
        raise CheckpointError(f"{folder / CONFIG}: model_type {name!r} is not known{nearest(str(name), MODELS)}")
    network, config = MODELS[name]
    try:
        return network, build(config, data, str(folder / CONFIG))
    except InputError as error:
        raise CheckpointError(str(error)) from None


def read_tensors(path: Path, shapes: dict[str, torch.Size] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file; where shapes are given, names and shapes must be just those, and values finite."""
    try:
        with safe_open(path, framework="pt") as file:
            if shapes is not None:
                _check_shapes(path, {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}, shapes)  # noqa: SIM118
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (SafetensorError, OSError, struct.error, ValueError) as error:
        raise CheckpointError(f"{path}: cut short or altered: {error}") from None
    if shapes is not None:
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise CheckpointError(f"{path}: {name} holds values that are not finite")
    return tensors


def _check_shapes(path: Path, found: dict[str, tuple[int, ...]], expected: dict[str, torch.Size]) -> None:
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointError(f"{path}: {name} is missing")
        if found[name] != tuple(shape):
            raise CheckpointError(f"{path}: {name} has shape {list(found[name])}, the config asks for {list(shape)}")
    for name in found:
        if name not in expected:
            raise CheckpointError(f"{path}: {name} is not part of the model")


def _shapes_without_memory(network: type[EncoderDecoder[Any, Any]], config: Any) -> dict[str, torch.Size]:
    with torch.device("meta"):
        skeleton = network(config)
    return {name: parameter.shape for name, parameter in skeleton.named_parameters()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_read_text(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return data


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_TEXT:
            raise CheckpointError(f"{path}: larger than {LARGEST_TEXT // 2**20} MiB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}") from None
