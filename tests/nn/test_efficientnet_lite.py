"""EfficientNet-lite: padding, blocks, folding of the normalisation, and the released weights."""

import pytest
import torch
from torch.nn import functional as F

from qkv.errors import InputError
from qkv.hub.backbones import BACKBONES, find_weights, load_backbone
from qkv.nn.encoders.efficientnet_lite import EfficientNetLite, MBConv, SamePadding, round_channels


def randomized(model: torch.nn.Module) -> torch.nn.Module:
    """Normalisations whose statistics are not those of initialisation."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor in (module.weight, module.running_var):
                torch.nn.init.uniform_(tensor, 0.5, 1.5)
            for tensor in (module.bias, module.running_mean):
                torch.nn.init.uniform_(tensor, -0.5, 0.5)
    return model.eval()


@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (8, 5, 2), (5, 5, 1), (3, 1, 1)])
def test_convolutions_are_padded_as_in_tensorflow(size, kernel, stride):
    torch.manual_seed(0)
    conv = SamePadding(1, 1, kernel, stride).double()
    x = torch.randn(1, 1, size, size + 1, dtype=torch.float64)
    rows, columns = -(-size // stride), -(-(size + 1) // stride)
    top = max(0, (rows - 1) * stride + kernel - size) // 2
    left = max(0, (columns - 1) * stride + kernel - size - 1) // 2
    expected = torch.zeros(rows, columns, dtype=torch.float64)
    for row in range(rows):
        for column in range(columns):
            for i in range(kernel):
                for j in range(kernel):
                    y, z = row * stride + i - top, column * stride + j - left
                    if 0 <= y < size and 0 <= z <= size:
                        expected[row, column] += conv.weight[0, 0, i, j].detach() * x[0, 0, y, z]
    torch.testing.assert_close(conv(x)[0, 0].detach(), expected)


def test_a_block_has_a_residual_connection_if_its_sizes_match():
    torch.manual_seed(0)
    block = randomized(MBConv(4, 4, 3, 1, 6)).double()
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64, requires_grad=True)

    def norm(h, layer):
        mean, scale = layer.running_mean, layer.weight / (layer.running_var + 1e-3).sqrt()
        return (h - mean[:, None, None]) * scale[:, None, None] + layer.bias[:, None, None]

    h = norm(torch.einsum("oi,bihw->bohw", block.expand_conv.weight[:, :, 0, 0], x), block.bn0).clamp(0, 6)
    depthwise = F.conv2d(h, block.depthwise_conv.weight, padding=1, groups=24)
    h = norm(depthwise, block.bn1).clamp(0, 6)
    y = norm(torch.einsum("oi,bihw->bohw", block.project_conv.weight[:, :, 0, 0], h), block.bn2)
    torch.testing.assert_close(block(x), x + y)
    assert torch.autograd.gradcheck(block, (x[:1, :, :3, :3],))
    assert not MBConv(4, 4, 3, 2, 6).residual
    assert not MBConv(4, 8, 3, 1, 6).residual


def test_folding_the_normalisation_keeps_the_function():
    torch.manual_seed(0)
    model = randomized(EfficientNetLite()).double()
    x = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    with torch.inference_mode():
        features, logits = model.features(x), model(x)
        folded = model.fold_batch_norm()
        assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
        torch.testing.assert_close(folded.features(x), features)
        torch.testing.assert_close(folded(x), logits)
    assert features.shape == (1, 1280, 2, 3)
    assert logits.shape == (1, 1000)


def test_sizes_are_those_of_the_paper():
    assert sum(weight.numel() for weight in EfficientNetLite().parameters()) == 4_652_008  # lite0: 4.7 M
    assert sum(weight.numel() for weight in EfficientNetLite(1.0, 1.1).parameters()) == 5_416_680  # lite1: 5.4 M
    assert [round_channels(size) for size in (16.0, 17.6, 26.4, 352.0)] == [16, 16, 24, 352]


def test_pixels_are_scaled_as_in_pretraining():
    assert EfficientNetLite.scale(torch.tensor([0, 127, 255], dtype=torch.uint8)).tolist() == [-127 / 128, 0, 1]


@pytest.mark.corpus
def test_logits_of_the_released_weights_equal_those_of_the_original_implementation():
    try:
        find_weights(BACKBONES["efficientnet_lite0"])
    except InputError as missing:
        pytest.skip(f"no weights of EfficientNet-lite0 here: {missing}")
    x = torch.sin(torch.arange(3 * 224 * 224, dtype=torch.float64) / 50).float().view(1, 3, 224, 224)
    with torch.inference_mode():
        logits = load_backbone("efficientnet_lite0")(x)
    # Computed in float64 with efficientnet_lite_pytorch 0.1.0.
    expected = [-1.8201218843, 0.0174329393, 0.0973894000, 2.8525469303, -1.3438407183]
    torch.testing.assert_close(logits[0, ::200], torch.tensor(expected), atol=2e-5, rtol=0)
    assert logits.topk(5).indices.tolist() == [[905, 858, 753, 549, 879]]
