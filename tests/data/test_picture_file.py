"""Pictures from files: any that people have come out as pixels, and what is none ends in one clear error."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.data.picture_file import MOST_PIXELS, read_picture
from qkv.errors import InputError

RED, WHITE = (255, 0, 0), (255, 255, 255)


def saved(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


def halves(left: tuple[int, ...], right: tuple[int, ...], mode: str = "RGB") -> Image.Image:
    """A picture 8 pixels wide and 4 high, of two colours."""
    image = Image.new(mode, (8, 4), left)
    image.paste(right, (4, 0, 8, 4))
    return image


def test_a_picture_keeps_its_sides_and_colours(tmp_path):
    pixels = read_picture(saved(halves(RED, WHITE), tmp_path / "a.png"), 3, 4, 8)
    assert pixels.shape == (3, 4, 8)
    assert pixels[:, 0, 0].tolist() == [*RED]
    assert pixels[:, 3, 7].tolist() == [*WHITE]


def test_it_is_scaled_to_the_size_that_is_asked_for_and_made_grey(tmp_path):
    pixels = read_picture(saved(halves(RED, WHITE), tmp_path / "a.bmp"), 1, 2, 16)
    assert pixels.shape == (1, 2, 16)
    assert pixels[0, :, [0, -1]].tolist() == [[76, 76], [255, 255]]  # 0.299 * 255 = 76


def test_it_is_turned_the_way_it_was_taken(tmp_path):
    rotated = Image.Exif()
    rotated[0x0112] = 6  # the camera was held upright: turn it by 90 degrees
    pixels = read_picture(saved(halves((0, 0, 0), WHITE), tmp_path / "a.png", exif=rotated), 1, 8, 4)
    assert (pixels[0, :3] == 0).all()
    assert (pixels[0, 5:] == 255).all()


def test_what_is_see_through_stands_on_white(tmp_path):
    pixels = read_picture(saved(halves((0, 0, 0, 0), (0, 0, 0, 255), "RGBA"), tmp_path / "a.png"), 3, 4, 8)
    assert pixels[:, 0, 0].tolist() == [*WHITE]
    assert pixels[:, 0, 7].tolist() == [0, 0, 0]


def test_sixteen_bits_are_scaled_to_eight_and_not_cut_off(tmp_path):
    deep = np.array([[0, 257 * 100, 65535, 257]], dtype=np.uint16)
    pixels = read_picture(saved(Image.fromarray(deep), tmp_path / "a.png"), 1, 1, 4)
    assert pixels[0, 0].tolist() == [0, 100, 255, 1]


def test_a_palette_is_looked_up_and_what_it_lets_through_stands_on_white(tmp_path):
    image = Image.new("P", (8, 4), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (4, 0, 8, 4))
    plain = read_picture(saved(image, tmp_path / "a.png"), 3, 4, 8)
    through = read_picture(saved(image, tmp_path / "b.png", transparency=0), 3, 4, 8)
    assert plain[:, 0, [0, 7]].T.tolist() == [[10, 20, 30], [200, 100, 50]]
    assert through[:, 0, [0, 7]].T.tolist() == [[*WHITE], [200, 100, 50]]


def test_grey_with_sixteen_bits_of_a_scanner_and_floats_of_a_camera_are_told_apart(tmp_path):
    deep = Image.fromarray(np.full((2, 2), 257 * 7, dtype=np.uint16))
    assert (read_picture(saved(deep, tmp_path / "a.tif"), 3, 2, 2) == 7).all()
    with pytest.raises(InputError, match=r"a\.tif: its pixels are floats"):
        read_picture(saved(Image.fromarray(np.ones((2, 2), dtype=np.float32)), tmp_path / "a.tif"), 3, 2, 2)


def test_four_colours_of_a_printer_are_read(tmp_path):
    pixels = read_picture(saved(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), tmp_path / "a.jpg"), 3, 4, 4)
    assert pixels[0].min() > 200 > 60 > pixels[1:].max()


def test_what_is_no_picture_is_said_in_one_line(tmp_path):
    whole = saved(Image.effect_noise((64, 64), 50), tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "empty.png").write_bytes(b"")
    side = int(MOST_PIXELS**0.5) + 1
    saved(Image.new("1", (side, side)), tmp_path / "bomb.png")
    saved(Image.new("1", (14_000, 14_000)), tmp_path / "larger.png")
    zero = bytearray(whole)
    zero[16:20] = bytes(4)  # the width
    (tmp_path / "zero.png").write_bytes(zero)
    for name, words in (
        ("none.png", "no such file"),
        (".", "is a folder, not a picture"),
        ("cut.png", "cut short or altered"),
        ("text.png", "not a picture that can be read"),
        ("empty.png", "not a picture that can be read"),
        ("bomb.png", "pixels are too many: scale it down"),
        ("larger.png", "has too many pixels: scale it down"),
        ("zero.png", "cut short or altered|not a picture"),
    ):
        with pytest.raises(InputError, match=words) as error:
            read_picture(tmp_path / name, 3, 4, 4)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="this model reads 4"):
        read_picture(tmp_path / "whole.png", 4, 4, 4)
