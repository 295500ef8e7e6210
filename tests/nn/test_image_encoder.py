"""LabeledImages as grids of features: against plain loops, and what they refuse."""

import math

import pytest
import torch

from qkv.errors import ShapeError
from qkv.nn.image_encoder import Convolutions, ImageEncoder, PatchTransformer


def gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def test_convolutions_are_those_of_plain_loops():
    torch.manual_seed(0)
    layer = Convolutions(2, (4,)).double()
    x = torch.randn(1, 2, 6, 4, dtype=torch.float64)
    weight, bias = layer.convolve[0].weight, layer.convolve[0].bias
    found = torch.zeros(4, 3, 2, dtype=torch.float64)
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
                found[f, row, column] = total
    # Eight groups cannot share four channels: all are normalised together.
    mean, variance = found.mean(), ((found - found.mean()) ** 2).mean()
    torch.testing.assert_close(layer(x)[0], ((found - mean) / (variance + 1e-5).sqrt()).apply_(gelu))


@pytest.mark.parametrize("filters", [(8, 8, 8), (32, 32, 32)])
def test_a_picture_that_shrinks_to_one_place_still_tells_something(filters):
    torch.manual_seed(0)
    layer, x = Convolutions(1, filters), torch.randn(2, 1, 8, 8)
    one, other = layer(x)
    assert one.shape == (filters[-1], 1, 1)
    assert (one - other).abs().max() > 0.1
    torch.testing.assert_close(layer(x[:1])[0], one)


def test_no_picture_of_a_batch_makes_a_difference_to_another():
    torch.manual_seed(0)
    encoder = ImageEncoder(Convolutions(3, (8, 8)), 8, (2, 3), 5, (3, 8, 12)).double()
    x = torch.randn(3, 3, 8, 12, dtype=torch.float64)
    together = encoder(x)
    assert together.shape == (3, 6, 5)
    torch.testing.assert_close(together[1:2], encoder(x[1:2]))


@pytest.mark.parametrize("side", [1, 4])
def test_places_are_counted_row_by_row(side):
    """What changes at one place of the picture, or of given features, changes that place of the grid alone."""
    torch.manual_seed(0)
    find = torch.nn.Identity() if side == 1 else PatchTransformer(8, 4, (2, 3), 8, 0, 2)
    encoder = ImageEncoder(find, 8, (2, 3), 8, (8, 2 * side, 3 * side)).double()
    x = torch.randn(1, 8, 2 * side, 3 * side, dtype=torch.float64)
    for place in range(6):
        row, column = divmod(place, 3)
        changed = x.clone()
        changed[:, 0, side * row, side * column] += 3
        difference = (encoder(changed) - encoder(x)).abs().sum(dim=-1)[0]
        assert difference.gt(1e-12).nonzero().tolist() == [[place]]


def test_patches_look_at_each_other():
    torch.manual_seed(0)
    find = PatchTransformer(1, 4, (2, 2), 8, 1, 2).double()
    x = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    changed = x.clone()
    changed[:, :, :4, :4] += 1
    assert ((find(changed) - find(x)).abs().amax(dim=1) > 1e-9).all()


def test_a_picture_of_another_size_is_refused():
    encoder = ImageEncoder(Convolutions(3, (8,)), 8, (4, 4), 5, (3, 8, 8))
    with pytest.raises(
        ShapeError, match=r"must be \[batch, 3, 8, 8\] \(channels, height and width\), not \[2, 3, 8, 10\]"
    ):
        encoder(torch.zeros(2, 3, 8, 10))
