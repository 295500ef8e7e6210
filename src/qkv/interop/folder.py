"""A saved model is a folder: config.json, model.safetensors, tokenizer.json. Nothing in it is ever executed.

Besides those of our own, with "library": "qkv" in config.json, the folders of other libraries are loaded from here.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from qkv.config import build, nearest
from qkv.data.characters import Characters
from qkv.errors import CheckpointError, InputError
from qkv.interop.document import read_object, reading, shown
from qkv.interop.families import FAMILIES
from qkv.interop.families.elmo import elmo_files, load_elmo
from qkv.interop.hub import fetch, is_hub_name, is_shadowed
from qkv.interop.released import CONFIG as CONFIG
from qkv.interop.released import load_released
from qkv.interop.seal import SEAL, read_seal, verify
from qkv.interop.skeleton import require_model_memory, unfilled, without_memory
from qkv.interop.tensors import WEIGHTS as WEIGHTS
from qkv.interop.tensors import Progress, no_pickle, stored_weights
from qkv.interop.tensors import read_tensors as read_tensors
from qkv.interop.tensors import write_tensors as write_tensors
from qkv.interop.vocabularies import TARGET_TOKENIZER as TARGET_TOKENIZER
from qkv.interop.vocabularies import TOKENIZER, AnyTokenizer, check_room, write_vocabulary
from qkv.interop.vocabularies import read_vocabulary as read_vocabulary
from qkv.interop.weight_map import Family
from qkv.models import MODELS
from qkv.models.captioner import ShowAttendTell
from qkv.models.elmo import Elmo
from qkv.models.snail import SNAIL, SNAILPolicy
from qkv.models.vit import ViT
from qkv.nn.encoder_decoder import Decoder, EncoderDecoder
from qkv.nn.language_model import LanguageModel
from qkv.nn.text_encoder import TextEncoder
from qkv.nn.transducer import Transducer
from qkv.runtime.device import pick_device

# Every model there is.
Network = Decoder[Any, Any] | LanguageModel[Any] | TextEncoder | Transducer[Any] | ViT | SNAIL | SNAILPolicy

LIBRARY = "qkv"  # what config.json of a folder of ours says, for others have models of the same types
KINDS: dict[type[Any], str] = {
    LanguageModel: "a language model (for qkv generate)",
    EncoderDecoder: "an encoder-decoder (for qkv translate)",
    ShowAttendTell: "a captioner (for qkv caption)",
    TextEncoder: "a text encoder (for qkv classify, tag, answer, fill, embed)",
    Transducer: "a model of sequences of bits (for qkv evaluate, view)",
}
T = TypeVar("T")
CHECKPOINT = re.compile(r"step-\d{8,}")


def save_model(
    model: Network,
    vocabulary: AnyTokenizer | Characters | None,
    folder: str | Path,
    progress: Progress = lambda done: None,
) -> None:
    """Write the model's files into `folder`, which must exist; making that atomic is the caller's part.

    The characters of words are the same for all, and in no file; of what reads them, tokenizer.json has the words that
    a language model predicts.
    """
    name = next((name for name, (network, _) in MODELS.items() if isinstance(model, network)), None)
    if name is None:
        raise InputError(f"a {type(model).__name__} cannot be saved; known: {', '.join(sorted(MODELS))}")
    folder = Path(folder)
    config = {"library": LIBRARY, "model_type": name, **asdict(model.config)}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # named_parameters gives tied weights once, under their first name. Buffers are left out: those that are not made
    # from the config, such as the baseline of hard attention, are looked at in training alone, and kept with it.
    write_tensors(dict(model.named_parameters()), folder / WEIGHTS, progress)
    written = vocabulary.predicted if isinstance(vocabulary, Characters) else vocabulary
    if written is not None:
        write_vocabulary(written, folder)


def load(folder: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Any:
    """Load a saved model, in eval mode, with `.config` and `.tokenizer` (None where the folder has none).

    The folder is one of ours, a training run, a Hugging Face folder of a family that is known, a released ELMo, or, as
    "owner/name", a model on the Hugging Face hub. Names and shapes are checked against the headers of the files before
    any memory is taken for the model. Its weights are float32, whatever the files hold, unless `dtype` is given.
    """
    where = pick_device(device)
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"dtype {dtype}: weights are floating-point numbers")
    return _read_located(folder, lambda path: _load(path, where, dtype))


def _load(folder: Path, device: torch.device, dtype: torch.dtype | None) -> Any:
    if _is_elmo(folder):
        return load_elmo(folder, device, dtype)
    family = family_of(folder)
    return _load_own(folder, device, dtype) if family is None else load_released(folder, family, device, dtype)


def _read_located(folder: str | Path, read: Callable[[Path], T]) -> T:
    """Apply `read` to a model folder; again if its run, which is being trained, removed the checkpoint meanwhile."""
    while True:
        before = checkpoints_in(Path(folder))
        try:
            return read(locate(folder))
        except InputError:
            if checkpoints_in(Path(folder)) == before:
                raise


def _load_own(folder: Path, device: torch.device, dtype: torch.dtype | None) -> Any:
    if os.path.lexists(folder / SEAL):
        verify(folder)
    network, config = read_config(folder)
    skeleton = without_memory(network, config, folder / CONFIG)
    stored = stored_weights(folder / WEIGHTS, {name: weight.shape for name, weight in skeleton.named_parameters()})
    require_model_memory(skeleton, folder)
    model = unfilled(network, config, dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stored[name].copy_into(parameter)
    if os.path.lexists(folder / TOKENIZER):
        model.tokenizer = read_vocabulary(folder)
        check_room(folder, model.tokenizer, config)
    if isinstance(model, Elmo):
        model.tokenizer = Characters(config.max_characters, model.tokenizer)
    return model.to(device=device)


def load_as(kind: type[Any], folder: str | Path, device: str | torch.device = "cpu") -> Any:
    """Load a saved model of one kind (`EncoderDecoder`, `LanguageModel`); one of another kind is told apart at once."""

    def read(path: Path) -> Any:
        network = network_of(path)
        if not issubclass(network, kind):
            raise InputError(f"{folder}: holds {_called(network)}, and {_called(kind)} is needed here")
        return load(path, device)

    return _read_located(folder, read)


def network_of(folder: Path) -> type[Any]:
    """The class of the network that a model folder holds; its weights are not looked at."""
    if _is_elmo(folder):
        return Elmo
    family = family_of(folder)
    return read_config(folder)[0] if family is None else family.network


def _is_elmo(folder: Path) -> bool:
    return not (folder / CONFIG).exists() and elmo_files(folder) is not None


def family_of(folder: Path) -> Family | None:
    """The family of released models that a folder's config.json names; None for a folder of our own.

    Ours say so, but for those of the first version, whose models were all of types that nobody else has.
    """
    data = read_object(folder / CONFIG)
    name = data.get("model_type")
    if data.get("library") == LIBRARY:
        return None
    known = {*MODELS, *FAMILIES}
    if not isinstance(name, str) or name not in known:
        raise CheckpointError(
            f"{folder / CONFIG}: model_type {shown(repr(name))} is not known{nearest(str(name), known)}"
        )
    return FAMILIES.get(name)


def _called(kind: type[Any]) -> str:
    for base, words in KINDS.items():
        if issubclass(kind, base):
            return words
    return f"a {kind.__name__}"


def locate(folder: str | Path) -> Path:
    """The model folder that is meant: here, or else on the hub, from where it is fetched."""
    if is_hub_name(str(folder)):
        return fetch(str(folder))
    if is_shadowed(str(folder)):
        raise InputError(
            f"{folder}: no such folder; it is not looked for on the Hugging Face hub, because the folder "
            f"{Path(folder).parent} exists here"
        )
    return resolve(Path(folder))


def resolve(folder: Path) -> Path:
    """The model folder that is meant: the folder itself, or a training run's best (else newest) checkpoint."""
    if (folder / CONFIG).exists() or _is_elmo(folder):
        return folder
    if folder.is_file():
        raise InputError(
            f"{folder}: is a file; a saved model is a folder with {CONFIG} and {WEIGHTS}{no_pickle(folder)}"
        )
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    checkpoints = checkpoints_in(folder)
    if not checkpoints:
        raise InputError(
            f"{folder}: neither a saved model (no {CONFIG}) nor a training run with a checkpoint{no_pickle(folder)}"
        )
    match read_seal(checkpoints[-1]):
        case {"place": {"best": {"step": int(step)}}} if (best := checkpoint_path(folder, step)).is_dir():
            return best
    return checkpoints[-1]


def checkpoint_path(run: Path, step: int) -> Path:
    """Where a training run keeps the checkpoint of a step."""
    return run / f"step-{step:08d}"


def checkpoint_step(checkpoint: Path) -> int:
    """The step of a checkpoint, by the name of its folder."""
    return int(checkpoint.name.removeprefix("step-"))


def checkpoints_in(run: Path) -> list[Path]:
    """The whole checkpoints of a training run, oldest first; what a user keeps beside them is not ours."""
    return sorted(path for path in run.glob("step-*") if CHECKPOINT.fullmatch(path.name) and path.is_dir())


def read_config(folder: Path) -> tuple[type[Any], Any]:
    """The network class and its config, from config.json; only names that qkv knows are accepted."""
    data = read_object(folder / CONFIG)
    data.pop("library", None)
    name = data.pop("model_type", None)
    if not isinstance(name, str) or name not in MODELS:
        raise CheckpointError(
            f"{folder / CONFIG}: model_type {shown(repr(name))} is not known{nearest(str(name), MODELS)}"
        )
    network, config = MODELS[name]
    with reading(folder / CONFIG):
        return network, build(config, data, str(folder / CONFIG))
