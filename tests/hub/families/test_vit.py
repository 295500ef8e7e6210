"""ViT folders as transformers writes them: what it computes, qkv computes, and reads back what qkv writes."""

import json

import pytest
import torch

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.hub import save_model
from qkv.hub.families.vit import FAMILY
from qkv.hub.released import write_released
from qkv.models.vit import ViT, ViTConfig

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
         "image_size": 16, "patch_size": 4, "num_labels": 5, "attn_implementation": "eager"}  # fmt: skip
ODD = {
    "plain": {},
    "head size 40, one layer": {"hidden_size": 120, "num_attention_heads": 3, "num_hidden_layers": 1},
    "one channel, no bias of q, k and v": {"num_channels": 1, "qkv_bias": False},
    "rectangular": {"image_size": [8, 20]},
    "tanh gelu, large eps": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    "relu, one patch": {"hidden_act": "relu", "image_size": 4},
    "swish, one class, deep": {"hidden_act": "swish", "num_labels": 1, "num_hidden_layers": 4},
}


def theirs(kind: str = "ViTForImageClassification", **changes: object):
    """A model of transformers with random weights."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.ViTConfig(**SMALL | changes)).eval()
    for parameter in model.parameters():  # biases and norms begin at 0 and 1, where a mistake could hide
        alpha = parameter[0].numel() ** -0.5 if parameter.ndim in (2, 4) else 0.2
        parameter.data.add_(torch.randn(parameter.shape), alpha=alpha)
    return model


def pixels(config, rows: int = 2, size: tuple[int, int] | None = None) -> torch.Tensor:
    side = config.image_size
    size = size or (tuple(side) if isinstance(side, list) else (side, side))
    return torch.randn(rows, config.num_channels, *size, generator=torch.Generator().manual_seed(1))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_logits_hidden_states_and_attention_equal_transformers(tmp_path, changes):
    model = theirs(**changes)
    model.save_pretrained(tmp_path)
    images = pixels(model.config)
    expected = model(images, output_hidden_states=True, output_attentions=True)
    ours = qkv.load(tmp_path)
    states = []
    for block in ours.encoder:
        block.register_forward_hook(lambda block, given, made: states.append(made))
    with qkv.watch(ours) as seen:
        close(ours(images), expected.logits)
    for state, known in zip(states, expected.hidden_states[1:], strict=True):
        close(state, known)
    for record, known in zip(seen.values(), expected.attentions, strict=True):
        close(record.weights, known)


@torch.no_grad()
@pytest.mark.parametrize("pooler", [True, False])
def test_a_base_model_returns_the_class_token_or_pooler_output(tmp_path, pooler):
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(**SMALL), add_pooling_layer=pooler).eval()
    model.save_pretrained(tmp_path)
    ours, expected = qkv.load(tmp_path), model(pixels(model.config))
    close(ours.encode(pixels(model.config)), expected.last_hidden_state)
    close(ours(pixels(model.config)), expected.pooler_output if pooler else expected.last_hidden_state[:, 0])
    assert (ours.config.classes, ours.config.pooler) == (None, pooler)


@torch.no_grad()
@pytest.mark.parametrize("size", [(8, 8), (20, 20), (32, 12), (4, 16), (8, 32)])
def test_interpolated_positions_equal_transformers(tmp_path, size):
    model = theirs()
    model.save_pretrained(tmp_path)
    images = pixels(model.config, size=size)
    ours = qkv.load(tmp_path)
    tokens = torch.zeros(1, 1 + size[0] * size[1] // 16, 24)
    grid = (size[0] // 4, size[1] // 4)
    expected = model.vit.embeddings.interpolate_pos_encoding(tokens, *size)[0]
    close(ours.interpolate_positions(ours.positions.weight, grid), expected)
    close(ours(images), model(images, interpolate_pos_encoding=True).logits)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_read_exactly(tmp_path, dtype):
    model = theirs().to(dtype)
    model.save_pretrained(tmp_path)
    ours = qkv.load(tmp_path)
    close(ours(pixels(model.config)), model.float()(pixels(model.config)).logits)
    assert qkv.load(tmp_path, dtype=dtype)(pixels(model.config)).dtype == dtype


@torch.no_grad()
@pytest.mark.parametrize("kind", ["ViTForImageClassification", "ViTModel"])
@pytest.mark.parametrize("changes", [{}, {"image_size": [8, 20]}, {"qkv_bias": False, "hidden_act": "gelu_new"}])
def test_round_trip_is_bit_exact_and_loads_in_transformers(tmp_path, kind, changes):
    model = theirs(kind, **changes)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    model.save_pretrained(tmp_path / "theirs")
    ours = qkv.load(tmp_path / "theirs")
    write_released(ours, FAMILY, tmp_path / "ours")
    again = qkv.load(tmp_path / "ours")
    assert again.config == ours.config
    back, report = getattr(transformers, kind).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    for name, weight in model.state_dict().items():
        assert back.state_dict()[name].equal(weight), name
    for one, other in zip(ours.parameters(), again.parameters(), strict=True):
        assert one.equal(other)
    close(back.eval()(pixels(model.config))[0], model(pixels(model.config))[0])


def test_label_names_round_trip(tmp_path):
    names = {0: "T-shirt", 1: "trouser", 2: "pullover"}
    model = theirs(id2label=names, label2id={name: number for number, name in names.items()}, num_labels=3)
    model.save_pretrained(tmp_path)
    ours = qkv.load(tmp_path)
    assert ours.config.label_names == tuple(names.values())
    assert FAMILY.write_config(ours.config)["id2label"] == {str(number): name for number, name in names.items()}


def test_a_pooler_next_to_a_classifier_is_ignored(tmp_path):
    from safetensors.torch import load_file, save_file

    model = theirs()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    more = {"vit.pooler.dense.weight": torch.ones(24, 24), "vit.pooler.dense.bias": torch.ones(24)}
    save_file(load_file(file) | more, file, metadata={"format": "pt"})
    ours = qkv.load(tmp_path)
    assert not ours.config.pooler
    close(ours(pixels(model.config)), model(pixels(model.config)).logits)


@torch.no_grad()
def test_a_released_model_can_be_saved_in_qkv_format(tmp_path):
    theirs().save_pretrained(tmp_path / "theirs")
    ours = qkv.load(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    save_model(ours, None, tmp_path / "ours")
    again = qkv.load(tmp_path / "ours")
    assert again.config == ours.config
    images = torch.randn(2, 3, 16, 16)
    assert again(images).equal(ours(images))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "quick_gelu"}, "unknown activation 'quick_gelu'"),
        ({"patch_size": [4, 8]}, "4 x 8"),
        ({"image_size": [16, 16, 16]}, "image_size must be"),
        ({"image_size": 18}, "height 18"),
        ({"image_size": "large"}, "image_size must be"),
        ({"head_dim": 40}, "head_dim 40"),
        ({"num_hidden_layers": 10**6}, "layers"),
        ({"hidden_size": 10**12}, "dim must"),
        ({"num_channels": True}, "num_channels must be an integer"),
        ({"layer_norm_eps": -1.0}, "eps must"),
        ({"id2label": {"a": "b"}}, "id2label must map"),
        ({"num_attention_heads": 5}, "heads"),
        ({"qkv_bias": False}, "attention.attention.query.bias"),
        ({"num_hidden_layers": 1}, "not part of the model"),
        ({"image_size": 8}, "position_embeddings has shape"),
    ],
)
def test_unsupported_configs_are_errors(tmp_path, changes, words):
    theirs().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(CheckpointError, match=words):
        qkv.load(tmp_path)


def test_unsupported_heads_are_errors(tmp_path):
    transformers.ViTForMaskedImageModeling(transformers.ViTConfig(**SMALL)).save_pretrained(tmp_path / "masked")
    with pytest.raises(CheckpointError, match="masked image modeling"):
        qkv.load(tmp_path / "masked")
    pooled = transformers.ViTModel(transformers.ViTConfig(**SMALL, pooler_act="relu"))
    pooled.save_pretrained(tmp_path / "pooled")
    with pytest.raises(CheckpointError, match="relu is not supported"):
        qkv.load(tmp_path / "pooled")


@pytest.mark.parametrize(
    "changes",
    [{"score": "dot"}, {"position": "alibi"}, {"pooler": True}, {"pool": "mean"}, {"attention_position": "quadratic"}],
)
def test_a_model_without_transformers_counterpart_is_not_written(changes):
    config = ViTConfig(classes=5, height=8, width=8, patch=4, dim=8, layers=1, heads=2, ffn_dim=8, **changes)
    with torch.device("meta"):
        ViT(config)  # a model that we do have
    with pytest.raises(InputError, match="transformers' vit"):
        FAMILY.write_config(config)


def test_the_initial_scale_of_positions_does_not_matter_to_transformers():
    config = ViTConfig(classes=5, height=8, width=8, patch=4, dim=8, layers=1, heads=2, ffn_dim=8)
    assert FAMILY.write_config(config.replace(position={"name": "learned", "std": 0.5})) == FAMILY.write_config(config)
