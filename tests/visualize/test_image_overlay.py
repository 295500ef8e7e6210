"""Attention over image patches: the patch map and the figure."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.errors import InputError
from qkv.interpret.image_probe import PictureAnswer
from qkv.pipelines.output import AttentionMap
from qkv.visualize import over_patches, save_picture_png

PIXELS = np.full((8, 12, 3), (250, 10, 10), dtype=np.uint8)


def pictured(weights: list[float]) -> PictureAnswer:
    """A 2 by 3 patch grid with the given class-token attention; the second head attends only to the last patch."""
    tokens = ("[class]", *(f"{row},{column}" for row in (1, 2) for column in (1, 2, 3)))
    both = np.zeros((2, 8, 7))
    both[0, 0], both[1, 0, -1] = weights, 1.0
    return PictureAnswer(
        "", "", 0.0, (AttentionMap("encoder.0", (*tokens, "mean"), tokens, both),), pixels=PIXELS, grid=(2, 3)
    )


def test_the_map_has_the_layout_of_the_patches():
    found = over_patches(pictured([0.4, 0.1, 0.2, 0.3, 0.0, 0.0, 0.0]))
    assert (found.rows, found.columns) == (("1", "2"), ("1", "2", "3"))
    np.testing.assert_allclose(found.weights[0], [[0.1, 0.2, 0.3], [0, 0, 0]])
    assert found.weights[1, 1, 2] == 1.0


@pytest.mark.parametrize(("head", "patch"), [(0, (0, 1)), (1, (1, 2))])
def test_the_patch_with_the_largest_weight_is_most_colored(tmp_path: Path, head, patch):
    path = save_picture_png(pictured([0, 0, 0.8, 0.2, 0, 0, 0]), tmp_path / "a.png", head=head)
    image = np.asarray(Image.open(path)).astype(int)
    height, width = image.shape[0], (image.shape[1] - 16) // 2
    assert image[0, 0].tolist() == [250, 10, 10]  # the picture itself
    right = image[:, width + 16 :]
    blue = [
        [right[height * (2 * row + 1) // 4, width * (2 * column + 1) // 6, [2, 0]] for column in range(3)]
        for row in range(2)
    ]
    levels = {(row, column): int(b - r) for row, line in enumerate(blue) for column, (b, r) in enumerate(line)}
    assert max(levels, key=levels.__getitem__) == patch
    assert levels[1, 0] == 0  # what was not read is grey


def test_an_image_without_attention_stays_grey(tmp_path: Path):
    path = save_picture_png(pictured([1.0, 0, 0, 0, 0, 0, 0]), tmp_path / "a.png", head=0)
    image = np.asarray(Image.open(path))
    assert (image[:, -10:, 0] == image[:, -10:, 2]).all()


def test_an_unknown_layer_or_head_is_an_error(tmp_path: Path):
    with pytest.raises(InputError, match=r"'x'.*encoder\.0"):
        save_picture_png(pictured([0] * 7), tmp_path / "a.png", layer="x")
    with pytest.raises(InputError, match="head 2"):
        save_picture_png(pictured([0] * 7), tmp_path / "a.png", head=2)
