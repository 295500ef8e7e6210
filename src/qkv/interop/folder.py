"""A saved model is a folder: config.json, model.safetensors, tokenizer.json. Nothing in it is ever executed.

A model that reads with one vocabulary and writes with another has the second one in target_tokenizer.json.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from qkv.config import build, nearest
from qkv.data.vocabulary import AnyVocabulary, TwoVocabularies, Vocabulary
from qkv.errors import CheckpointError, InputError
from qkv.interop.document import read_object, read_text
from qkv.interop.seal import SEAL, read_seal, verify
from qkv.models import MODELS
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.language_model import LanguageModel
from qkv.runtime.device import pick_device
from qkv.types import Tensor

Network = EncoderDecoder[Any, Any] | LanguageModel[Any]  # every model there is

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, TARGET_TOKENIZER = "tokenizer.json", "target_tokenizer.json"
LARGEST_TOKENIZER = 256 * 2**20  # bytes that are read at all
NUMBERS = ("F16", "BF16", "F32", "F64")  # what weights may be stored as
CHECKPOINT = re.compile(r"step-\d{8,}")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def save_model(model: Network, vocabulary: AnyVocabulary | None, folder: Path) -> None:
    """Write the model's files into `folder`, which must exist; making that atomic is the caller's part."""
    name = next(name for name, (network, _) in MODELS.items() if isinstance(model, network))
    config = {"model_type": name, **asdict(model.config)}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # named_parameters gives tied weights once, under their first name. Buffers are left out: those that are not made
    # from the config, such as the baseline of hard attention, are looked at in training alone, and kept with it.
    write_tensors({name: weight.detach().contiguous() for name, weight in model.named_parameters()}, folder / WEIGHTS)
    if vocabulary is not None:
        (folder / TOKENIZER).write_text(vocabulary.source.to_json(), encoding="utf-8")
        if vocabulary.target is not vocabulary.source:
            (folder / TARGET_TOKENIZER).write_text(vocabulary.target.to_json(), encoding="utf-8")


def load(folder: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Network:
    """Load a saved model, in eval mode, with `.config` and `.tokenizer` (None where the folder has none).

    Names and shapes are checked against the file's header before any memory is taken for the model.
    """
    where = pick_device(device)
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
        model.tokenizer = read_vocabulary(folder)
        _check_room(folder, model.tokenizer, config)
    return model.to(device=where, dtype=dtype).eval()


def load_as(kind: type[Any], folder: str | Path, device: str | torch.device = "cpu") -> Any:
    """Load a saved model of one kind (`EncoderDecoder`, `LanguageModel`); one of another kind is told apart at once."""
    network, _ = read_config(resolve(Path(folder)))
    if not issubclass(network, kind):
        raise InputError(f"{folder}: holds {_called(network)}, and {_called(kind)} is needed here")
    return load(folder, device)


def _called(kind: type[nn.Module]) -> str:
    if issubclass(kind, LanguageModel):
        return "a language model (for qkv generate)"
    return "an encoder-decoder (for qkv translate)"


def _check_room(folder: Path, vocabulary: AnyVocabulary, config: Any) -> None:
    """Raise where a vocabulary has numbers for which the model has no place."""
    rooms = {
        "source_size": (vocabulary.source, TOKENIZER),
        "target_size": (vocabulary.target, TARGET_TOKENIZER if (folder / TARGET_TOKENIZER).exists() else TOKENIZER),
        "vocabulary_size": (vocabulary.source, TOKENIZER),
    }
    for key, (side, file) in rooms.items():
        room = getattr(config, key, len(side))
        if len(side) > room:
            raise CheckpointError(f"{folder / file}: has {len(side):,} tokens, but the model has room for {room:,}")


def resolve(folder: Path) -> Path:
    """The model folder that is meant: the folder itself, or a training run's best (else newest) checkpoint."""
    if (folder / CONFIG).exists():
        return folder
    if folder.is_file():
        raise InputError(
            f"{folder}: is a file; a saved model is a folder with {CONFIG} and {WEIGHTS}{_no_pickle([folder])}"
        )
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    checkpoints = checkpoints_in(folder)
    if not checkpoints:
        raise InputError(
            f"{folder}: neither a saved model (no {CONFIG}) nor a training run with a checkpoint"
            f"{_no_pickle(folder.iterdir())}"
        )
    match read_seal(checkpoints[-1]):
        case {"place": {"best": {"step": int(step)}}} if (best := checkpoint_path(folder, step)).is_dir():
            return best
    return checkpoints[-1]


def checkpoint_path(run: Path, step: int) -> Path:
    """Where a training run keeps the checkpoint of a step."""
    return run / f"step-{step:08d}"


def checkpoints_in(run: Path) -> list[Path]:
    """The whole checkpoints of a training run, oldest first; what a user keeps beside them is not ours."""
    return sorted(path for path in run.glob("step-*") if CHECKPOINT.fullmatch(path.name) and path.is_dir())


def read_config(folder: Path) -> tuple[type[Network], Any]:
    """The network class and its config, from config.json; only names that qkv knows are accepted."""
    data = read_object(folder / CONFIG)
    name = data.pop("model_type", None)
    if not isinstance(name, str) or name not in MODELS:
        raise CheckpointError(f"{folder / CONFIG}: model_type {name!r} is not known{nearest(str(name), MODELS)}")
    network, config = MODELS[name]
    try:
        return network, build(config, data, str(folder / CONFIG))
    except InputError as error:
        raise CheckpointError(str(error)) from None


def read_vocabulary(folder: Path) -> AnyVocabulary:
    """The vocabulary of a saved model, or the two that it has."""
    source = _read_tokenizer(folder / TOKENIZER)
    if not (folder / TARGET_TOKENIZER).exists():
        return source
    return TwoVocabularies(source, _read_tokenizer(folder / TARGET_TOKENIZER))


def _read_tokenizer(path: Path) -> Vocabulary:
    return Vocabulary.from_json(read_text(path, LARGEST_TOKENIZER), str(path))


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # a full disk, for one
        raise InputError(f"{path}: cannot be written: {error}") from None


def read_tensors(path: Path, shapes: dict[str, torch.Size] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file; where shapes are given, names and shapes must be just those, and values finite."""
    try:
        with safe_open(path, framework="pt") as file:
            if shapes is not None:
                _check_header(path, {name: file.get_slice(name) for name in file.keys()}, shapes)  # noqa: SIM118
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file{_no_pickle(path.parent.iterdir())}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cut short or altered: {error}") from None
    if shapes is not None:
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise CheckpointError(f"{path}: {name} holds values that are not finite")
    return tensors


def _check_header(path: Path, found: dict[str, Any], expected: dict[str, torch.Size]) -> None:
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointError(f"{path}: {name} is missing")
        if found[name].get_shape() != list(shape):
            raise CheckpointError(
                f"{path}: {name} has shape {found[name].get_shape()}, the config asks for {list(shape)}"
            )
        if found[name].get_dtype() not in NUMBERS:
            raise CheckpointError(f"{path}: {name} is stored as {found[name].get_dtype()}, not as {', '.join(NUMBERS)}")
    for name in found:
        if name not in expected:
            raise CheckpointError(f"{path}: {name} is not part of the model")


def _shapes_without_memory(network: type[Network], config: Any) -> dict[str, torch.Size]:
    with torch.device("meta"):
        skeleton = network(config)
    return {name: parameter.shape for name, parameter in skeleton.named_parameters()}


def _no_pickle(files: Iterable[Path]) -> str:
    """Words for someone who has a pickle where safetensors should be; nothing for everyone else."""
    pickles = sorted(file.name for file in files if file.suffix in PICKLES)
    if not pickles:
        return ""
    return f"; {pickles[0]} is a pickle, which could run any code and is never read: convert it to safetensors first"
