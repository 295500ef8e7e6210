"""ELMo as it was released (Peters et al. 2018): options.json, and the weights as TensorFlow had them in an HDF5 file.

HDF5 can point into other files, at itself, and at more data than there is. So nothing is read before every name, link,
shape, type and place in the file was looked at, and is just what the options ask for.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from qkv.config import build, nearest, shown
from qkv.data.characters import CHARACTERS, Characters
from qkv.errors import CheckpointError, InputError
from qkv.interop.document import read_object
from qkv.interop.tensors import Progress
from qkv.models.elmo import Config, Elmo
from qkv.runtime.device import pick_device
from qkv.runtime.document import open_bytes
from qkv.runtime.files import check_output_folder, folder_written_atomically
from qkv.types import Tensor

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"  # with any words before them
CHARACTER_OPTIONS = {
    "max_characters_per_token": "max_characters",
    "filters": "filters",
    "activation": "activation",
    "n_highway": "highway_layers",
}
LSTM_OPTIONS = {
    "projection_dim": "dim",
    "dim": "hidden",
    "n_layers": "layers",
    "use_skip_connections": "skip",
    "cell_clip": "cell_clip",
    "proj_clip": "projection_clip",
}


@dataclass(frozen=True)
class Form:
    """How a tensor of ours stands in the file, and how it comes from there."""

    theirs: Callable[[Tensor], Tensor]
    ours: Callable[[Tensor], Tensor]


SAME = Form(lambda ours: ours, lambda theirs: theirs)
TRANSPOSED = Form(lambda ours: ours.t(), lambda theirs: theirs.t())
FILTER = Form(lambda ours: ours.permute(2, 1, 0)[None], lambda theirs: theirs[0].permute(2, 1, 0))
TABLE = Form(lambda ours: ours[1:], lambda theirs: torch.cat((torch.zeros_like(theirs[:1]), theirs)))  # 0: no character


def load_elmo(
    source: str | Path | tuple[str | Path, str | Path],
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> Elmo:
    """Load a released ELMo, in eval mode: from its folder, or from its two files, the options and the weights."""
    where = pick_device(device)
    options, weights = (Path(source[0]), Path(source[1])) if isinstance(source, tuple) else _found(Path(source))
    config = read_options(options)
    with torch.device("meta"):
        places = dict(_places(Elmo(config)))
    stored = _read(weights, {name: tuple(form.theirs(part).shape) for name, (form, part) in places.items()})
    model = Elmo(config)
    with torch.no_grad():
        for name, (form, part) in _places(model):
            part.copy_(form.ours(stored.pop(name)))
    model.tokenizer = Characters(config.max_characters)
    return model.to(device=where, dtype=dtype).eval()


def save_elmo(model: Elmo, folder: str | Path) -> None:
    """Write a model as ELMo was released; the format has no place for an output layer or a head: they stay behind."""
    check_output_folder(Path(folder))
    with folder_written_atomically(Path(folder)) as scratch:
        write_elmo(model, scratch)


def write_elmo(model: Elmo, folder: Path, progress: Progress = lambda done: None) -> int:
    """Write the two files into a folder that exists; making that atomic is the caller's part.

    Gives how many weights were written.
    """
    if model.config.normalise_words:
        raise InputError(
            "the format in which ELMo was released has no place for normalise_words, without which these weights mean "
            "something else: write the model as a folder of qkv's own"
        )
    h5py = _h5py()
    (folder / OPTIONS).write_text(json.dumps(write_options(model.config), indent=2) + "\n", encoding="utf-8")
    written = 0
    with h5py.File(folder / WEIGHTS, "w") as file, torch.no_grad():
        for name, (form, part) in _places(model):
            file.create_dataset(name, data=form.theirs(part).float().cpu().contiguous().numpy())
            written += part.numel()
            progress(written * torch.float32.itemsize)
    return written


def elmo_files(folder: Path) -> tuple[Path, Path] | None:
    """The options and the weights in a folder of a released ELMo; None where it is none."""
    options = sorted(path for path in folder.glob(f"*{OPTIONS}") if path.name == OPTIONS or path.stem[-8] in "_-.")
    weights = sorted(folder.glob(f"*{WEIGHTS}")) or sorted(folder.glob("*.hdf5"))
    return (options[0], weights[0]) if len(options) == len(weights) == 1 else None


def _found(folder: Path) -> tuple[Path, Path]:
    files = elmo_files(folder)
    if files is None:
        raise InputError(
            f"{folder}: a released ELMo is a folder with one {OPTIONS} and one {WEIGHTS}, or the two files"
        )
    return files


def read_options(path: Path) -> Config:
    """The config that the options ask for; what would change the network and is not known is refused."""
    data = read_object(path)
    try:
        if data.get("bidirectional") is False:
            raise InputError(f"{path}: bidirectional = false: both directions are needed")
        characters, lstm = _table(data, "char_cnn", path), _table(data, "lstm", path)
        embedding = _table(characters, "embedding", path)
        numbers = characters.pop("n_characters", CHARACTERS)
        if numbers not in (CHARACTERS, CHARACTERS - 1):  # files differ in whether 0, for no character, is counted
            raise InputError(
                f"{path}: char_cnn.n_characters = {shown(repr(numbers))}: only {CHARACTERS}, bytes and marks, is known"
            )
        values = {"character_dim": embedding.get("dim"), "skip": False, "cell_clip": None, "projection_clip": None}
        for name, table, known in (("char_cnn", characters, CHARACTER_OPTIONS), ("lstm", lstm, LSTM_OPTIONS)):
            for key in table.keys() - {"embedding"}:
                if key not in known:
                    raise InputError(f"{path}: {name}.{shown(key)} is not known{nearest(key, known)}")
                values[known[key]] = table[key]
        for key in (*CHARACTER_OPTIONS.values(), "dim", "hidden", "layers"):
            if key not in values:
                raise InputError(f"{path}: nothing in it gives {key}")
        return build(Config, values, str(path))
    except InputError as error:
        raise CheckpointError(str(error)) from None


def write_options(config: Config) -> dict[str, Any]:
    """The options of a config, as the released files have them."""
    characters = {theirs: getattr(config, ours) for theirs, ours in CHARACTER_OPTIONS.items()}
    return {
        "lstm": {theirs: getattr(config, ours) for theirs, ours in LSTM_OPTIONS.items()},
        "char_cnn": {"embedding": {"dim": config.character_dim}, "n_characters": CHARACTERS, **characters},
    }


def _table(data: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise InputError(f"{path}: {key} must be there, and a table of keys and values")
    return value


def _places(model: Elmo) -> Iterator[tuple[str, tuple[Form, Tensor]]]:
    """The name in the file of every weight, or part of one, and how it stands there."""
    words = model.word_encoder
    yield "char_embed", (TABLE, words.embed.weight)
    for number, convolution in enumerate(words.convolutions):
        yield f"CNN/W_cnn_{number}", (FILTER, convolution.weight)
        yield f"CNN/b_cnn_{number}", (SAME, _bias(convolution))
    for number, highway in enumerate(words.highways):
        for name, linear in (("carry", highway.gate), ("transform", highway.transform)):
            yield f"CNN_high_{number}/W_{name}", (TRANSPOSED, linear.weight)
            yield f"CNN_high_{number}/b_{name}", (SAME, linear.bias)
    yield "CNN_proj/W_proj", (TRANSPOSED, words.project.weight)
    yield "CNN_proj/b_proj", (SAME, words.project.bias)
    for number, layer in enumerate(model.layers):
        for direction in (0, 1):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
            yield f"{cell}/W_0", (SAME, layer.gates[direction])
            yield f"{cell}/B", (SAME, layer.bias[direction])
            yield f"{cell}/W_P_0", (SAME, layer.project[direction])


def _read(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors of an HDF5 file that holds just these, as plain numbers, and nothing besides."""
    h5py = _h5py()
    try:
        with open_bytes(path) as opened, h5py.File(opened, "r") as file:
            size = os.fstat(opened.fileno()).st_size
            _check_group(h5py, file, "", shapes, path)
            for name, shape in shapes.items():
                _check_dataset(file[name], name, shape, path, size)
            tensors = {name: torch.from_numpy(file[name][()].astype("float32")) for name in shapes}
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # the library has all of these
        raise CheckpointError(f"{path}: cut short or altered: not a readable HDF5 file: {error}") from None
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"{path}: {name} holds values that are not finite")
    return tensors


def _check_group(h5py: ModuleType, group: Any, above: str, names: Mapping[str, Any], path: Path) -> None:
    """Raise unless a group holds what the names say, each as a thing of its own in this file, and so on below it."""
    inside = {name.removeprefix(above).partition("/")[0] for name in names if name.startswith(above)}
    if len(group) > len(inside):  # before their names are taken into memory
        extra = next(name for name in group if name not in inside)
        raise CheckpointError(f"{path}: {above}{extra} is not part of the model")
    for name in sorted(inside):
        if name not in group:
            raise CheckpointError(f"{path}: {above}{name} is missing")
        if type(group.get(name, getlink=True)) is not h5py.HardLink:
            raise CheckpointError(f"{path}: {above}{name} is a link to another place, which is not followed")
        kind = h5py.Dataset if above + name in names else h5py.Group
        if group.get(name, getclass=True) is not kind:
            raise CheckpointError(f"{path}: {above}{name} must be a {kind.__name__.lower()}")
        if kind is h5py.Group:
            _check_group(h5py, group[name], f"{above}{name}/", names, path)


def _check_dataset(dataset: Any, name: str, shape: tuple[int, ...], path: Path, size: int) -> None:
    if dataset.shape != shape:
        raise CheckpointError(f"{path}: {name} has shape {dataset.shape}, the options ask for {shape}")
    if dataset.dtype.kind != "f" or dataset.dtype.itemsize not in (2, 4, 8):
        raise CheckpointError(f"{path}: {name} is stored as {dataset.dtype}, not as numbers of 16, 32 or 64 bits")
    # A dataset can be kept in other files, in parts, packed, or not at all; only numbers that stand in this file, one
    # after another, take no more memory than the file has bytes.
    begin = dataset.id.get_offset()
    plain = dataset.chunks is None and not dataset.external and not dataset.is_virtual and begin is not None
    if not plain or dataset.id.get_storage_size() != dataset.nbytes or begin + dataset.nbytes > size:
        raise CheckpointError(f"{path}: {name} is not stored whole and in one piece: write the file again with h5py")


def _bias(layer: nn.Conv1d) -> Tensor:
    assert layer.bias is not None
    return layer.bias


def _h5py() -> ModuleType:
    try:
        import h5py
    except ImportError:
        raise InputError("ELMo's released files need h5py, which is not installed: pip install 'qkv[elmo]'") from None
    return h5py
