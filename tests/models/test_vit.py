"""The vision Transformer against PyTorch's layers, and finite differences."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qkv
from qkv.errors import ConfigError, InputError, ShapeError
from qkv.models.vit import PRESETS, PatchEmbedding, StochasticDepth, ViT, ViTConfig

CONFIG = ViTConfig(classes=5, height=8, width=12, channels=2, patch=4, dim=12, layers=2, heads=3, ffn_dim=20)


def model_with(**changes: object) -> ViT:
    """A small model in float64, with biases, norms and tokens away from 0 and 1, which could hide a mistake."""
    torch.manual_seed(0)
    model = ViT(CONFIG.replace(**changes)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def images(rows: int = 3, height: int = 8, width: int = 12) -> torch.Tensor:
    return torch.randn(rows, 2, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def pytorch_twin(model: ViT) -> nn.TransformerEncoder:
    c = model.config
    layer = nn.TransformerEncoderLayer(
        c.dim, c.heads, c.ffn_dim, 0.0, c.activation, c.layer_norm_eps, batch_first=True, norm_first=True
    )
    twin = nn.TransformerEncoder(layer, c.layers, nn.LayerNorm(c.dim, c.layer_norm_eps), enable_nested_tensor=False)
    for theirs, ours in zip(twin.layers, model.encoder, strict=True):
        theirs.self_attn.in_proj_weight.copy_(ours.attention.qkv_proj.weight)
        theirs.self_attn.in_proj_bias.copy_(ours.attention.qkv_proj.bias)
        theirs.self_attn.out_proj.load_state_dict(ours.attention.out_proj.state_dict())
        theirs.norm1.load_state_dict(ours.attention_norm.state_dict())
        theirs.norm2.load_state_dict(ours.ffn_norm.state_dict())
        theirs.linear1.load_state_dict(ours.ffn.up_proj.state_dict())
        theirs.linear2.load_state_dict(ours.ffn.down_proj.state_dict())
    twin.norm.load_state_dict(model.norm.state_dict())
    return twin.double().eval()


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_it_matches_pytorch_layers_with_the_same_weights(activation):
    model = model_with(activation=activation)
    patches = F.conv2d(images(), model.patch_embed.weight, model.patch_embed.bias, stride=4).flatten(2).transpose(1, 2)
    tokens = torch.cat((model.class_token.expand(3, 1, 12), patches), dim=1) + model.positions.weight
    hidden = pytorch_twin(model)(tokens)
    torch.testing.assert_close(model.encode(images()), hidden)
    torch.testing.assert_close(model(images()), hidden[:, 0] @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize(("channels", "patch", "height", "width"), [(3, 16, 32, 48), (1, 4, 28, 28), (2, 1, 3, 5)])
def test_patch_embedding_matches_a_strided_convolution(channels, patch, height, width):
    embed = PatchEmbedding(channels, patch, 7).double()
    nn.init.normal_(embed.bias)
    pixels = torch.randn(2, channels, height, width, dtype=torch.float64)
    expected = F.conv2d(pixels, embed.weight, embed.bias, stride=patch)
    actual, grid = embed(pixels)
    assert grid == tuple(expected.shape[2:])
    torch.testing.assert_close(actual, expected.flatten(2).transpose(1, 2))


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("ti/16", 5_717_416), ("s/16", 22_050_664), ("b/16", 86_567_656), ("b/32", 88_224_232),
        ("l/16", 304_326_632), ("l/32", 306_535_400), ("h/14", 632_045_800),
    ],
)  # fmt: skip
def test_presets_have_the_published_parameter_counts(preset, parameters):
    with torch.device("meta"):
        model = ViT(ViTConfig(classes=1000, **PRESETS[preset]))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_without_a_head_it_returns_the_class_token_or_pooled_state():
    model = model_with(classes=None)
    assert model(images()).equal(model.encode(images())[:, 0])
    model = model_with(classes=None, pooler=True)
    state = model.encode(images())[:, 0]
    torch.testing.assert_close(model(images()), torch.tanh(state @ model.pooler.weight.T + model.pooler.bias))


def test_an_image_alone_matches_a_batch():
    model = model_with()
    together = model(images())
    for row in range(3):
        torch.testing.assert_close(model(images()[row : row + 1])[0], together[row])
    assert model(images(0)).shape == (0, 5)


def test_the_order_of_patches_matters_through_positions_only():
    model = model_with()
    flipped_images = torch.cat(images().split(4, dim=3)[::-1], dim=3)  # the columns of patches from right to left
    assert not torch.allclose(model(images()), model(flipped_images))
    nn.init.zeros_(model.positions.weight)
    torch.testing.assert_close(model(images()), model(flipped_images))


@pytest.mark.parametrize("position", ["rotary", "relative", "alibi", "quadratic", "sinusoidal"])
def test_other_positions_encode_the_order_of_patches(position):
    model = model_with(position=position)
    flipped_images = torch.cat(images().split(4, dim=3)[::-1], dim=3)
    assert (model.positions is None) == (position != "sinusoidal")
    assert not torch.allclose(model(images()), model(flipped_images))
    assert model(images(2, 12, 8)).shape == (2, 5)


@pytest.mark.parametrize("score", ["dot", "bilinear", "additive", "cosine", "concat", "location"])
def test_the_score_can_be_changed_by_name(score):
    assert not torch.allclose(model_with(score=score)(images()), model_with()(images()))


def test_only_patch_positions_are_interpolated():
    model = model_with()
    learned = model.positions.weight
    positions = model.interpolate_positions(learned, (4, 5))
    assert positions.shape == (21, 12)
    assert positions[0].equal(learned[0])
    flipped = torch.cat((learned[:1], learned[1:].unflatten(0, (2, 3)).flip(0, 1).flatten(0, 1)))
    expected = positions[1:].unflatten(0, (4, 5)).flip(0, 1).flatten(0, 1)
    torch.testing.assert_close(model.interpolate_positions(flipped, (4, 5))[1:], expected)
    alike = learned[[0, 1, 1, 1, 1, 1, 1]]  # a grid of equal positions stays one
    torch.testing.assert_close(model.interpolate_positions(alike, (4, 5))[1:], alike[1:2].expand(20, 12))
    assert model.interpolate_positions(learned, (2, 3)) is learned


def test_images_of_other_sizes_work():
    model = model_with()
    for height, width in [(4, 4), (16, 12), (12, 8), (8, 24)]:
        assert model(images(2, height, width)).shape == (2, 5)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 3, 8, 12), r"\[batch, 2 channels, height, width\], not \[2, 3, 8, 12\]"),
        ((2, 8, 12), r"not \[2, 8, 12\]"),
        ((2, 2, 9, 12), "9 x 12"),
        ((2, 2, 8, 2), "8 x 2 pixels"),
        ((2, 2, 0, 12), "0 x 12 pixels"),
    ],
)
def test_images_of_invalid_shape_raise(unchecked, shape, words):
    with pytest.raises(ShapeError, match=words):
        ViT(CONFIG)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"height": 10}, "height 10 must be a multiple of patch 4"),
        ({"width": 30}, "width 30 must be a multiple of patch 4"),
        ({"heads": 5}, "must be divisible by heads"),
        ({"layers": 2000}, "layers must be"),
        ({"classes": 0}, "classes must be"),
        ({"label_names": ("cat",)}, "label_names"),
        ({"channels": 10**12}, "channels must be"),
        ({"dim": 2**24, "heads": 1}, "too large"),
        ({"height": 2**24, "width": 2**24}, "too large"),
        ({"activation": "gelo"}, "activation = 'gelo'.*did you mean gelu"),
        ({"score": "scaled"}, "score.*unknown score 'scaled'"),
        ({"position": "sinusoid"}, "position.*unknown position 'sinusoid'"),
        ({"position": "rotary", "heads": 4}, "position 'rotary': .* must be even"),
        ({"attention_dropout": 1.0}, "attention_dropout must be"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps must be"),
    ],
)
def test_invalid_configs_raise(wrong, words):
    with pytest.raises(InputError, match=words):
        CONFIG.replace(**wrong)


def test_attention_over_patches_can_be_watched():
    model = model_with()
    with qkv.watch(model) as seen:
        model(images())
    assert list(seen) == ["encoder.0", "encoder.1"]
    weights = seen["encoder.1"].weights
    assert weights.shape == (3, 3, 7, 7)  # of 3 images in 3 heads, between the class token and 6 patches
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 3, 7, dtype=weights.dtype))


def test_gradients_match_finite_differences():
    model = model_with(pooler=True)
    pixels, labels = images(2, 8, 16), torch.tensor([1, 4])  # other than trained: through the interpolation

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(pixels), labels)

    loss().backward()
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    for _ in range(3):  # directions in the space of all weights
        directions = [torch.randn(p.shape, dtype=torch.float64, generator=generator) for p in model.parameters()]
        heights = []
        for step in (1e-6, -2e-6, 1e-6):
            with torch.no_grad():
                for parameter, direction in zip(model.parameters(), directions, strict=True):
                    parameter.add_(direction, alpha=step)
                heights.append(loss())
        grad = sum((p.grad * direction).sum() for p, direction in zip(model.parameters(), directions, strict=True))
        torch.testing.assert_close((heights[0] - heights[1]) / 2e-6, grad, rtol=1e-6, atol=1e-8)


def test_with_a_stem_patches_are_cut_from_its_output():
    model = model_with(stem=(5, 3))
    x = images()
    for layer in model.stem:
        x = F.conv2d(F.pad(x, (1, 1, 1, 1)), layer.convolve.weight, layer.convolve.bias)
        x = (x - x.mean((1, 2, 3), keepdim=True)) / (x.var((1, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        x = F.gelu(x * layer.norm.weight[:, None, None] + layer.norm.bias[:, None, None])
    patches = F.conv2d(x, model.patch_embed.weight, model.patch_embed.bias, stride=4).flatten(2).transpose(1, 2)
    tokens = torch.cat((model.class_token.expand(3, 1, 12), patches), dim=1) + model.positions.weight
    torch.testing.assert_close(model.encode(images()), pytorch_twin(model)(tokens))
    with pytest.raises(ShapeError, match="images must be"):
        model(torch.zeros(1, 3, 8, 12))
    with pytest.raises(InputError, match="stem"):
        CONFIG.replace(stem=(0,))


def test_it_overfits_eight_images():
    torch.manual_seed(0)
    model = ViT(CONFIG.replace(classes=8))
    pixels, labels = torch.randn(8, 2, 8, 12), torch.arange(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pixels), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


def test_each_kind_of_dropout_acts_separately_and_in_training_only():
    for kind in ("dropout", "attention_dropout"):
        model = model_with(**{kind: 0.5})
        assert model(images()).equal(model(images()))
        assert not model.train()(images()).equal(model(images()))
    full = ViT(CONFIG.replace(dropout=0.3, attention_dropout=0.0))
    assert full.encoder[0].attention.attend.dropout == 0.0
    assert ViT(CONFIG.replace(dropout=0.3)).encoder[0].attention.attend.dropout == 0.3


def test_it_runs_in_bfloat16_and_under_autocast():
    model = model_with().float()
    expected = model(images().float())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(images().float()).float(), expected, rtol=0.1, atol=0.1)
        assert model(images(2, 16, 16).float()).isfinite().all()
    assert model.bfloat16()(images().float()).dtype == torch.bfloat16


@pytest.mark.compiled
def test_compiled_model_matches_eager_with_and_without_watch():
    model, pixels = model_with(), images(3, 16, 8)  # other than trained: with the interpolation in it
    with qkv.watch(model) as expected:
        logits = model(pixels)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(pixels), logits)
    with qkv.watch(compiled) as seen:
        torch.testing.assert_close(compiled(pixels), logits)
    assert set(seen) == set(expected)
    for layer, record in seen.items():
        torch.testing.assert_close(record.weights, expected[layer].weights)


def test_stochastic_depth_drops_whole_examples_and_keeps_the_mean():
    torch.manual_seed(0)
    layer, x = StochasticDepth(0.2), torch.ones(5000, 2, 3)
    y = layer(x)
    kept = y[:, 0, 0] > 0
    torch.testing.assert_close(y, torch.where(kept, 1.25, 0.0)[:, None, None].expand_as(x))
    assert abs(kept.float().mean() - 0.8) < 4 * (0.2 * 0.8 / 5000) ** 0.5
    assert layer.eval()(x) is x


def test_stochastic_depth_grows_with_the_block():
    model = ViT(ViTConfig(height=8, width=8, patch=4, dim=16, layers=3, heads=2, ffn_dim=32, stochastic_depth=0.2))
    layers = [[part.p for part in block.modules() if isinstance(part, StochasticDepth)] for block in model.encoder]
    assert layers == [[], [0.1], [0.2]]


def test_the_mean_over_the_patches_replaces_the_class_token():
    model = model_with(pool="mean")
    mean = model.encode(images())[:, 1:].mean(dim=1)
    torch.testing.assert_close(model(images()), mean @ model.head.weight.T + model.head.bias)
    assert not torch.allclose(model(images()), model_with()(images()))


def test_a_position_inside_self_attention_is_used_in_addition_to_the_embedded_one():
    both = model_with(attention_position="quadratic")
    assert both.positions is not None
    weights = both.state_dict()
    for changes, zeroed in (
        ({"position": "quadratic"}, "positions.weight"),
        ({"position": "none", "attention_position": "quadratic"}, "positions.weight"),
        ({}, "log_sharpness"),
    ):
        other = model_with(**changes)
        other.load_state_dict({name: weights[name] for name in other.state_dict()})
        assert not torch.allclose(both(images()), other(images()))
        equal = model_with(attention_position="quadratic")
        equal.load_state_dict(weights)
        with torch.no_grad():
            for name, parameter in equal.named_parameters():
                if name.endswith(zeroed):
                    parameter.fill_(-math.inf if zeroed == "log_sharpness" else 0.0)
        torch.testing.assert_close(equal(images()), other(images()))


@pytest.mark.parametrize(
    ("position", "attention_position"), [("relative", "quadratic"), ("learned", "sinusoidal"), ("learned", "tree")]
)
def test_positions_that_do_not_combine_are_errors(position, attention_position):
    with pytest.raises(ConfigError, match="position"):
        CONFIG.replace(position=position, attention_position=attention_position)


def test_learned_positions_start_with_the_given_standard_deviation():
    for std in (0.02, 0.5):
        torch.manual_seed(0)
        model = ViT(CONFIG.replace(dim=240, height=80, width=80, position={"name": "learned", "std": std}))
        assert model.positions.weight.std().item() == pytest.approx(std, rel=0.05)
