"""Image encoders: plain loops, independence of images, and invalid inputs."""

import math

import pytest
import torch

from qkv.errors import ShapeError
from qkv.nn.encoders.image_encoder import Convolutions, Features, ImageEncoder, ImageSizes, PatchTransformer


def gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def test_convolutions_match_plain_loops():
    torch.manual_seed(0)
    layer = Convolutions(2, (4,)).double()
    x = torch.randn(1, 2, 6, 4, dtype=torch.float64)
    weight, bias = layer.convolutions[0].weight, layer.convolutions[0].bias
    actual = torch.zeros(4, 3, 2, dtype=torch.float64)
    for f in range(4):
        for row in range(3):
            for column in range(2):
                total = bias[f].item()
                for c in range(2):
                    for dy in range(4):
                        for dx in range(4):
                            y, z = 2 * row - 1 + dy, 2 * column - 1 + dx
                            if 0 <= y < 6 and 0 <= z < 4:
                                total += weight[f, c, dy, dx].item() * x[0, c, y, z].item()
                actual[f, row, column] = total
    # Eight groups cannot share four channels: all are normalised together.
    mean, variance = actual.mean(), ((actual - actual.mean()) ** 2).mean()
    torch.testing.assert_close(layer(x)[0], ((actual - mean) / (variance + 1e-5).sqrt()).apply_(gelu))


@pytest.mark.parametrize("filters", [(8, 8, 8), (32, 32, 32)])
def test_images_reduced_to_one_position_still_differ(filters):
    torch.manual_seed(0)
    layer, x = Convolutions(1, filters), torch.randn(2, 1, 8, 8)
    first, second = layer(x)
    assert first.shape == (filters[-1], 1, 1)
    assert (first - second).abs().max() > 0.1
    torch.testing.assert_close(layer(x[:1])[0], first)


def test_images_of_a_batch_are_independent():
    torch.manual_seed(0)
    encoder = ImageEncoder(Convolutions(3, (8, 8)), ImageSizes(3, 8, 12, 5), (2, 3)).double()
    x = torch.randn(3, 3, 8, 12, dtype=torch.float64)
    together = encoder(x)
    assert together.shape == (3, 6, 5)
    torch.testing.assert_close(together[1:2], encoder(x[1:2]))


@pytest.mark.parametrize("side", [1, 4])
def test_positions_are_numbered_row_by_row(side):
    """A change in one cell of the image or feature map affects only that position of the grid."""
    torch.manual_seed(0)
    backbone = Features(8) if side == 1 else PatchTransformer(8, 4, (2, 3), 8, 0, 2)
    encoder = ImageEncoder(backbone, ImageSizes(8, 2 * side, 3 * side, 8), (2, 3)).double()
    x = torch.randn(1, 8, 2 * side, 3 * side, dtype=torch.float64)
    for position in range(6):
        row, column = divmod(position, 3)
        changed = x.clone()
        changed[:, 0, side * row, side * column] += 3
        difference = (encoder(changed) - encoder(x)).abs().sum(dim=-1)[0]
        assert difference.gt(1e-12).nonzero().tolist() == [[position]]


def test_patches_attend_to_each_other():
    torch.manual_seed(0)
    backbone = PatchTransformer(1, 4, (2, 2), 8, 1, 2).double()
    x = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    changed = x.clone()
    changed[:, :, :4, :4] += 1
    assert ((backbone(changed) - backbone(x)).abs().amax(dim=1) > 1e-9).all()


def test_an_image_of_another_size_raises():
    encoder = ImageEncoder(Convolutions(3, (8,)), ImageSizes(3, 8, 8, 5), (4, 4))
    with pytest.raises(ShapeError, match=r"\[batch, 3, 8, 8\].*\[2, 3, 8, 10\]"):
        encoder(torch.zeros(2, 3, 8, 10))
