"""The original ELMo release (Peters et al. 2018): options.json and TensorFlow weights in an HDF5 file.

HDF5 files can link to other files, to themselves, and to more data than they contain. Every name, link, shape, dtype
and offset is therefore validated against the options before any data is read.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from qkv.config import build
from qkv.errors import CheckpointError, InputError
from qkv.hub.meta_model import meta_model, require_model_memory
from qkv.hub.weight_map import OriginalRelease
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.registry import nearest
from qkv.runtime.documents import open_bytes, read_object, reading
from qkv.runtime.download import Progress
from qkv.runtime.text import printable
from qkv.tokenizers.characters import CHARACTERS
from qkv.types import Tensor

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"  # possibly prefixed
CHARACTER_OPTIONS = {
    "max_characters_per_token": "max_characters",
    "filters": "filters",
    "activation": "activation",
    "n_highway": "highway_layers",
}
LSTM_OPTIONS = {
    "projection_dim": "dim",
    "dim": "hidden_dim",
    "n_layers": "layers",
    "use_skip_connections": "skip_connections",
    "cell_clip": "cell_clip",
    "proj_clip": "projection_clip",
}


@dataclass(frozen=True)
class Form:
    """Conversion of a tensor between our layout and the file's."""

    theirs: Callable[[Tensor], Tensor]
    ours: Callable[[Tensor], Tensor]


SAME = Form(lambda ours: ours, lambda theirs: theirs)
TRANSPOSED = Form(lambda ours: ours.t(), lambda theirs: theirs.t())
FILTER = Form(lambda ours: ours.permute(2, 1, 0)[None], lambda theirs: theirs[0].permute(2, 1, 0))
TABLE = Form(lambda ours: ours[1:], lambda theirs: torch.cat((torch.zeros_like(theirs[:1]), theirs)))  # row 0: padding


def load_elmo(options: Path, weights: Path, device: torch.device, dtype: torch.dtype | None = None) -> Elmo:
    """Load a released ELMo in eval mode."""
    config = read_options(options)
    meta = meta_model(Elmo, config, options)
    require_model_memory(meta, options)
    entries = dict(_weight_entries(meta))
    stored = _read(weights, {name: tuple(form.theirs(part).shape) for name, (form, part) in entries.items()})
    model = Elmo(config)
    with torch.no_grad():
        for name, (form, part) in _weight_entries(model):
            part.copy_(form.ours(stored.pop(name)))
    return model.to(device=device, dtype=dtype).eval()


def write_elmo(model: Elmo, folder: Path, progress: Progress = lambda done: None) -> int:
    """Write the two files into an existing folder and return the number of weights written.

    The caller makes the write atomic.
    """
    if model.config.normalize_words:
        raise InputError("the released ELMo format cannot represent normalize_words; use --to qkv")
    h5py = _h5py()
    (folder / OPTIONS).write_text(json.dumps(write_options(model.config), indent=2) + "\n", encoding="utf-8")
    written = 0
    with h5py.File(folder / WEIGHTS, "w") as file, torch.no_grad():
        for name, (form, part) in _weight_entries(model):
            file.create_dataset(name, data=form.theirs(part).float().cpu().contiguous().numpy())
            written += part.numel()
            progress(written * torch.float32.itemsize)
    return written


def find_elmo(folder: Path) -> OriginalRelease | None:
    """Return the model of a released ELMo folder, or None."""
    files = elmo_files(folder)
    return None if files is None else OriginalRelease(Elmo, partial(load_elmo, *files))


def elmo_files(folder: Path) -> tuple[Path, Path] | None:
    """Return the (options, weights) files of a released ELMo folder, or None."""
    options = sorted(path for path in folder.glob(f"*{OPTIONS}") if path.name == OPTIONS or path.stem[-8] in "_-.")
    weights = sorted(folder.glob(f"*{WEIGHTS}")) or sorted(folder.glob("*.hdf5"))
    return (options[0], weights[0]) if len(options) == len(weights) == 1 else None


def read_options(path: Path) -> ElmoConfig:
    """Return the config described by the options; unknown options are an error."""
    data = read_object(path)
    with reading(path):
        if data.get("bidirectional") is False:
            raise InputError(f"{path}: bidirectional = false is not supported")
        characters, lstm = _table(data, "char_cnn", path), _table(data, "lstm", path)
        embedding = _table(characters, "embedding", path)
        n_characters = characters.pop("n_characters", CHARACTERS)
        if n_characters not in (CHARACTERS, CHARACTERS - 1):  # with or without padding
            raise InputError(
                f"{path}: char_cnn.n_characters = {printable(repr(n_characters))} is not supported, only {CHARACTERS}"
            )
        values = {
            "character_dim": embedding.get("dim"),
            "skip_connections": False,
            "cell_clip": None,
            "projection_clip": None,
        }
        for name, table, options in (("char_cnn", characters, CHARACTER_OPTIONS), ("lstm", lstm, LSTM_OPTIONS)):
            for key in table.keys() - {"embedding"}:
                if key not in options:
                    raise InputError(f"{path}: unknown option {name}.{printable(key)}{nearest(key, options)}")
                values[options[key]] = table[key]
        for key in (*CHARACTER_OPTIONS.values(), "dim", "hidden_dim", "layers"):
            if key not in values:
                raise InputError(f"{path}: missing option for {key}")
        return build(ElmoConfig, values, str(path))


def write_options(config: ElmoConfig) -> dict[str, Any]:
    """Return the options.json contents for a config."""
    characters = {theirs: getattr(config, ours) for theirs, ours in CHARACTER_OPTIONS.items()}
    return {
        "lstm": {theirs: getattr(config, ours) for theirs, ours in LSTM_OPTIONS.items()},
        "char_cnn": {"embedding": {"dim": config.character_dim}, "n_characters": CHARACTERS, **characters},
    }


def _table(data: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise InputError(f"{path}: {key} must be a table of keys and values")
    return value


def _weight_entries(model: Elmo) -> Iterator[tuple[str, tuple[Form, Tensor]]]:
    """Yield the file name, layout and tensor of every weight."""
    words: Any = model.word_encoder
    layers: Any = model.layers
    yield "char_embed", (TABLE, words.embed.weight)
    for number, convolution in enumerate(words.convolutions):
        yield f"CNN/W_cnn_{number}", (FILTER, convolution.weight)
        yield f"CNN/b_cnn_{number}", (SAME, convolution.bias)
    for number, highway in enumerate(words.highways):
        for name, linear in (("carry", highway.gate), ("transform", highway.transform)):
            yield f"CNN_high_{number}/W_{name}", (TRANSPOSED, linear.weight)
            yield f"CNN_high_{number}/b_{name}", (SAME, linear.bias)
    yield "CNN_proj/W_proj", (TRANSPOSED, words.project.weight)
    yield "CNN_proj/b_proj", (SAME, words.project.bias)
    for number, layer in enumerate(layers):
        for direction in (0, 1):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
            yield f"{cell}/W_0", (SAME, layer.gates[direction])
            yield f"{cell}/B", (SAME, layer.bias[direction])
            yield f"{cell}/W_P_0", (SAME, layer.project[direction])


def _read(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read the tensors of an HDF5 file; raise unless names and shapes match exactly."""
    h5py = _h5py()
    try:
        with open_bytes(path) as opened, h5py.File(opened, "r") as file:
            size = os.fstat(opened.fileno()).st_size
            _check_group(h5py, file, "", shapes, path)
            for name, shape in shapes.items():
                _check_dataset(file[name], name, shape, path, size)
            tensors = {name: torch.from_numpy(file[name][()].astype("float32")) for name in shapes}
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # h5py raises all of these
        raise CheckpointError(f"{path}: truncated or corrupt: not a readable HDF5 file: {error}") from None
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"{path}: {name} contains non-finite values")
    return tensors


def _check_group(h5py: ModuleType, group: Any, prefix: str, names: Mapping[str, Any], path: Path) -> None:
    """Raise unless a group contains exactly the expected entries, as hard links, recursively."""
    expected = {name.removeprefix(prefix).partition("/")[0] for name in names if name.startswith(prefix)}
    if len(group) > len(expected):  # before listing the group, which may be huge
        extra = next(name for name in group if name not in expected)
        raise CheckpointError(f"{path}: {prefix}{extra} is not part of the model")
    for name in sorted(expected):
        if name not in group:
            raise CheckpointError(f"{path}: {prefix}{name} is missing")
        if type(group.get(name, getlink=True)) is not h5py.HardLink:
            raise CheckpointError(f"{path}: {prefix}{name} is a link, which is not supported")
        kind = h5py.Dataset if prefix + name in names else h5py.Group
        if group.get(name, getclass=True) is not kind:
            raise CheckpointError(f"{path}: {prefix}{name} must be a {kind.__name__.lower()}")
        if kind is h5py.Group:
            _check_group(h5py, group[name], f"{prefix}{name}/", names, path)


def _check_dataset(dataset: Any, name: str, shape: tuple[int, ...], path: Path, size: int) -> None:
    if dataset.shape != shape:
        raise CheckpointError(f"{path}: {name} has shape {dataset.shape}, expected {shape}")
    if dataset.dtype.kind != "f" or dataset.dtype.itemsize not in (2, 4, 8):
        raise CheckpointError(f"{path}: {name} has dtype {dataset.dtype}; supported: float16, float32, float64")
    # Datasets can be external, chunked, compressed or unallocated; only contiguous data in this file is bounded by the
    # file size.
    begin = dataset.id.get_offset()
    plain = dataset.chunks is None and not dataset.external and not dataset.is_virtual and begin is not None
    if not plain or dataset.id.get_storage_size() != dataset.nbytes or begin + dataset.nbytes > size:
        raise CheckpointError(f"{path}: {name} is not stored contiguously; rewrite the file with h5py")


def _h5py() -> ModuleType:
    try:
        import h5py
    except ImportError:
        raise InputError("ELMo weights require h5py, which is not installed: pip install 'qkv[elmo]'") from None
    return h5py
