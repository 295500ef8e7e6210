"""A model folder that announces more weights than there is memory for."""

import json
from pathlib import Path

import pytest
import torch

from qkv.errors import InputError
from qkv.hub import load
from qkv.registry import lookup
from qkv.runtime import memory


def write_sparse_model(folder: Path) -> int:
    """Write a config.json and a weights file that fits it, all zeros and no blocks on the disk; gives its size."""
    network = lookup("model", "gpt2")
    config = network.config_class
    sizes = config(vocab_size=2**20, dim=2**14, heads=16, layers=2)
    with torch.device("meta"):
        parameters = dict(network(sizes).named_parameters())
    header, end = {}, 0
    for name, weight in parameters.items():
        header[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": [end, end + weight.nbytes]}
        end += weight.nbytes
    text = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps({"library": "qkv", "model_type": "gpt2", **sizes.to_dict()}))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return end


def test_weights_beyond_free_memory_are_refused_before_they_are_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = write_sparse_model(tmp_path)
    assert size > 90e9
    monkeypatch.setattr(memory, "free_memory", lambda device: 20 * 10**9)
    monkeypatch.setattr("qkv.hub.model_folder.empty_model", lambda *arguments: pytest.fail("allocated"))
    with pytest.raises(InputError, match="free"):
        load(tmp_path)
