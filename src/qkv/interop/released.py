"""Released models: the folders that other libraries write, read into our networks and written back.

A family's map of weights says which of our parameters are which of their tensors. Taken by it, each of theirs is a
view of ours: some rows of it, turned round where the file has [in, out]. To read a file is to copy into the views; to
write one is to copy out of them. Before memory is taken for a network, the views of its skeleton, which are shapes and
nothing else, are laid beside the headers of the files: every tensor has its place, and every place its tensor.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from qkv.errors import CheckpointError
from qkv.interop.document import read_object, reading, shown
from qkv.interop.skeleton import require_model_memory, unfilled, without_memory
from qkv.interop.tensors import (
    DTYPES,
    NUMBERS,
    WEIGHTS,
    Progress,
    Stored,
    check_weight,
    stored_in_folder,
    write_tensors,
)
from qkv.interop.vocabularies import check_room
from qkv.interop.weight_map import Family, WeightMap
from qkv.runtime.device import pick_device
from qkv.types import Tensor

CONFIG = "config.json"
MOST_NAMED = 3  # tensors that an error message names; of more it gives the number


def load_released(
    folder: Path, family: Family, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Any:
    """The network of a released folder, in eval mode, with `.config` and `.tokenizer`.

    Its weights are float32, whatever the files hold, unless `dtype` is given.
    """
    where = pick_device(device)
    stored = stored_in_folder(folder)
    config = read_released_config(folder, family, stored)
    table = family.weights(config)
    found = _found(folder, table, stored)
    skeleton = without_memory(family.network, config, folder / CONFIG)
    for name, view in views(table, dict(skeleton.named_parameters())).items():
        found[name].check(view.shape)
    require_model_memory(skeleton, folder)
    model = unfilled(family.network, config, dtype)
    with torch.no_grad():
        for name, view in views(table, dict(model.named_parameters())).items():
            found[name].copy_into(view)
    with reading(folder):
        model.tokenizer = family.read_tokenizer(folder, config)
        if model.tokenizer is not None:
            check_room(folder, model.tokenizer, config)
    return model.to(device=where)


def write_released(model: Any, family: Family, folder: Path, progress: Progress = lambda done: None) -> None:
    """Write config.json and model.safetensors as the family's own library does, into a folder that must exist."""
    tensors = views(family.weights(model.config), dict(model.named_parameters()))
    numbers = str(next(iter(tensors.values())).dtype).removeprefix("torch.")  # in which transformers then loads it
    config = {**family.write_config(model.config), "model_type": family.model_type, "torch_dtype": numbers}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tensors(tensors, folder / WEIGHTS, progress)


def views(table: WeightMap, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor of theirs, by name, as a view of ours; the map has each of these and of those once."""
    ours = Counter(weight.ours for weight in table.weights)
    names = Counter([*(name for weight in table.weights for name in weight.theirs), *table.copies])
    twice = {name for counts in (ours, names) for name, count in counts.items() if count > 1}
    assert not twice, f"the map of weights has {sorted(twice)} twice"
    assert ours.keys() == parameters.keys(), f"the map is wrong about {sorted(ours.keys() ^ parameters.keys())}"
    theirs: dict[str, Tensor] = {}
    for weight in table.weights:
        whole = parameters[weight.ours]
        rows = whole.chunk(len(weight.theirs)) if len(weight.theirs) > 1 else (whole,)
        for name, part in zip(weight.theirs, rows, strict=True):
            theirs[name] = part.T if weight.transposed else part
    return theirs


def read_released_config(folder: Path, family: Family, names: Collection[str]) -> Any:
    """Our config for a released folder whose files hold tensors of these names."""
    data = read_object(folder / CONFIG)
    with reading(folder / CONFIG):
        return family.read_config(data, names)


def released_dtype(folder: Path) -> torch.dtype:
    """The dtype of a folder's weights; where there are several, the narrowest that holds them all."""
    found = {DTYPES[stored.dtype] for stored in stored_in_folder(folder).values() if stored.dtype in NUMBERS}
    return reduce(torch.promote_types, found) if found else torch.float32


@dataclass(frozen=True)
class Found:
    """Where a tensor of theirs is stored: once, or several times over."""

    stored: Stored
    copies: tuple[Stored, ...]

    def check(self, shape: torch.Size) -> None:
        for tensor in (self.stored, *self.copies):
            check_weight(tensor, shape)

    def copy_into(self, view: Tensor) -> None:
        """Give a part of our weights the values that are stored; copies that differ would be another model."""
        for copy in self.copies:
            if not torch.equal(copy.read(), self.stored.read()):
                raise CheckpointError(f"{copy.where} differs from {shown(self.stored.name)}, but must be a copy of it")
        self.stored.copy_into(view)


def _found(folder: Path, table: WeightMap, stored: Mapping[str, Stored]) -> dict[str, Found]:
    """Where each tensor of theirs is stored; by the names alone, for a model too large is most soon told by those."""
    wanted = [name for weight in table.weights for name in weight.theirs]
    tensors = _by_name(table, wanted, stored)
    found = {}
    for name in wanted:
        same = [tensors.pop(name)] if name in tensors else []
        same += [tensors.pop(copy) for copy, of in table.copies.items() if of == name and copy in tensors]
        if same:
            found[name] = Found(same[0], tuple(same[1:]))
    wrong = [
        *_listed([name for name in wanted if name not in found], "missing"),
        *_listed([tensor.name for tensor in tensors.values()], "not part of the model"),
    ]
    if wrong:
        raise CheckpointError(f"{folder}: {', and '.join(wrong)}")
    return found


def _by_name(table: WeightMap, wanted: Iterable[str], stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """The stored tensors by the names that the map has for them, without those that it ignores."""
    known = {*wanted, *table.copies}
    absent = "" if any(name.startswith(table.prefix) for name in stored) else table.prefix
    ignored = [re.compile(pattern) for pattern in table.ignored]
    tensors: dict[str, Stored] = {}
    for name, tensor in stored.items():
        today = next((name.removesuffix(old) + new for old, new in table.spellings.items() if name.endswith(old)), name)
        if absent + today in known:
            today = absent + today
        if today not in known and any(one.fullmatch(name) or one.fullmatch(absent + name) for one in ignored):
            continue
        if today in tensors:
            raise CheckpointError(f"{tensor.where} is the same weight as {shown(tensors[today].name)}")
        tensors[today] = tensor
    return tensors


def _listed(names: list[str], what: str) -> Iterable[str]:
    if names:
        more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
        yield f"{', '.join(map(shown, names[:MOST_NAMED]))}{more} {'is' if len(names) == 1 else 'are'} {what}"
