"""Read and write released models in the format of other libraries.

A family's weight map relates our parameters to the tensors of the released files. Each file tensor is a view of one of
our parameters: a block of rows, transposed if the file stores [in, out]. Loading copies into the views, saving copies
out of them. Before memory is allocated, the views of a meta model are compared with the file headers: names and shapes
must match one to one.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from qkv.errors import CheckpointError
from qkv.hub.meta_model import check_vocab_size, checked_meta_model, empty_model, require_model_memory
from qkv.hub.tensors import WEIGHT_DTYPES, WEIGHTS, StoredTensor, read_headers, write_tensors
from qkv.hub.weight_map import Family, WeightMap
from qkv.runtime.documents import reading
from qkv.runtime.download import Progress
from qkv.runtime.text import printable
from qkv.tokenizers.pretrained import read_tokenizer
from qkv.types import Tensor

CONFIG = "config.json"
MAX_NAMES_SHOWN = 3  # tensor names listed in an error message


def load_released(
    folder: Path, family: Family, config_json: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None = None
) -> Any:
    """Load a released model in eval mode, with `.config` and `.tokenizer`.

    Weights are converted to float32 unless `dtype` is given.
    """
    stored = read_headers(folder)
    with reading(folder / CONFIG):
        config = family.read_config(config_json, stored)
    table = family.weights(config)
    sources = _match_tensors(folder, table, stored)
    meta = checked_meta_model(family.network, config, folder / CONFIG)
    for name, view in views(table, dict(meta.named_parameters())).items():
        for tensor in sources[name]:
            tensor.check(view.shape)
    require_model_memory(meta, folder)
    model = empty_model(family.network, config, dtype)
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        for weight in table.weights:
            if None in weight.theirs:
                parameters[weight.ours].zero_()
        for name, view in views(table, parameters).items():
            tensor, *copies = sources[name]
            for copy in copies:
                if not torch.equal(copy.read(), tensor.read()):
                    raise CheckpointError(f"{copy.where} must equal {printable(tensor.name)} but differs")
            tensor.copy_into(view)
    with reading(folder):
        model.tokenizer = read_tokenizer(folder, family.model_type)
        if model.tokenizer is not None:
            check_vocab_size(folder, model.tokenizer, config)
    return model.to(device=device)


def write_released(model: Any, family: Family, folder: Path, progress: Progress = lambda done: None) -> None:
    """Write config.json and model.safetensors in the family's format into an existing folder."""
    written = family.write_config(model.config)  # raises if the family has no such model
    tensors = views(family.weights(model.config), dict(model.named_parameters()))
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    config = {**written, "model_type": family.model_type, "torch_dtype": dtype}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tensors(tensors | family.constants(model), folder / WEIGHTS, progress)


def views(table: WeightMap, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return every released tensor, by name, as a view of our parameters; the map must be one to one."""
    ours = Counter(weight.ours for weight in table.weights)
    names = Counter([*(name for weight in table.weights for name in weight.names), *table.copies])
    duplicates = {name for counts in (ours, names) for name, count in counts.items() if count > 1}
    assert not duplicates, f"duplicate names in the weight map: {sorted(duplicates)}"
    assert ours.keys() == parameters.keys(), (
        f"weight map does not match the model: {sorted(ours.keys() ^ parameters.keys())}"
    )
    theirs: dict[str, Tensor] = {}
    for weight in table.weights:
        parameter = parameters[weight.ours]
        rows = (parameter,)
        if len(weight.theirs) > 1:
            rows = parameter.split(weight.rows or len(parameter) // len(weight.theirs))
        for name, part in zip(weight.theirs, rows, strict=True):
            if name is None:
                continue
            theirs[name] = part.T if weight.transposed else part[None] if weight.batched else part
    return theirs


def released_dtype(folder: Path) -> torch.dtype:
    """Return the dtype of a folder's weights; for mixed dtypes, the promoted type."""
    dtypes = {WEIGHT_DTYPES[stored.dtype] for stored in read_headers(folder).values() if stored.dtype in WEIGHT_DTYPES}
    return reduce(torch.promote_types, dtypes) if dtypes else torch.float32


def _match_tensors(folder: Path, table: WeightMap, stored: Mapping[str, StoredTensor]) -> dict[str, list[StoredTensor]]:
    """Map each released name to its stored tensor and the duplicates under other names; only names are compared."""
    names = [name for weight in table.weights for name in weight.names]
    tensors = _normalize_names(table, names, stored)
    sources = {}
    for name in names:
        spellings = [name, *(copy for copy, original in table.copies.items() if original == name)]
        sources[name] = [tensors.pop(spelling) for spelling in spellings if spelling in tensors]
    problems = [
        *_list_names([name for name in names if not sources[name]], "missing"),
        *_list_names([tensor.name for tensor in tensors.values()], "not part of the model"),
    ]
    if problems:
        raise CheckpointError(f"{folder}: {', and '.join(problems)}")
    return sources


def _normalize_names(
    table: WeightMap, names: Iterable[str], stored: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the stored tensors by their names in the weight map, without ignored ones."""
    expected = {*names, *table.copies}
    missing_prefix = "" if any(name.startswith(table.prefix) for name in stored) else table.prefix
    ignored = [re.compile(pattern) for pattern in table.ignored]
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        key = next((name.removesuffix(old) + new for old, new in table.spellings.items() if name.endswith(old)), name)
        if missing_prefix + key in expected:
            key = missing_prefix + key
        candidates = (name, missing_prefix + name)
        if key not in expected and any(pattern.fullmatch(text) for pattern in ignored for text in candidates):
            continue
        if key in tensors:
            raise CheckpointError(f"{tensor.where} is the same weight as {printable(tensors[key].name)}")
        tensors[key] = tensor
    return tensors


def _list_names(names: list[str], what: str) -> Iterable[str]:
    if names:
        more = f" and {len(names) - MAX_NAMES_SHOWN:,} more" if len(names) > MAX_NAMES_SHOWN else ""
        yield f"{', '.join(map(printable, names[:MAX_NAMES_SHOWN]))}{more} {'is' if len(names) == 1 else 'are'} {what}"
