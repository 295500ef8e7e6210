"""Tests of image files: supported formats, and errors for invalid or hostile files."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.datasets.formats.images import MAX_PIXELS, MAX_SCANS, MAX_SIDE, read_image, short_names
from qkv.errors import InputError

RED, WHITE = (255, 0, 0), (255, 255, 255)


def saved(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


def halves(left: tuple[int, ...], right: tuple[int, ...], mode: str = "RGB") -> Image.Image:
    """A picture 8 pixels wide and 4 high, of two colors."""
    image = Image.new(mode, (8, 4), left)
    image.paste(right, (4, 0, 8, 4))
    return image


def test_a_picture_keeps_its_sides_and_colors(tmp_path):
    pixels = read_image(saved(halves(RED, WHITE), tmp_path / "a.png"), 3, 4, 8)
    assert pixels.shape == (3, 4, 8)
    assert pixels[:, 0, 0].tolist() == [*RED]
    assert pixels[:, 3, 7].tolist() == [*WHITE]


def test_images_are_resized_and_converted_to_grayscale(tmp_path):
    pixels = read_image(saved(halves(RED, WHITE), tmp_path / "a.bmp"), 1, 2, 16)
    assert pixels.shape == (1, 2, 16)
    assert pixels[0, :, [0, -1]].tolist() == [[76, 76], [255, 255]]  # 0.299 * 255 = 76


def test_it_is_turned_the_way_it_was_taken(tmp_path):
    rotated = Image.Exif()
    rotated[0x0112] = 6  # the camera was held upright: turn it by 90 degrees
    pixels = read_image(saved(halves((0, 0, 0), WHITE), tmp_path / "a.png", exif=rotated), 1, 8, 4)
    assert (pixels[0, :3] == 0).all()
    assert (pixels[0, 5:] == 255).all()


def test_transparent_pixels_are_white(tmp_path):
    pixels = read_image(saved(halves((0, 0, 0, 0), (0, 0, 0, 255), "RGBA"), tmp_path / "a.png"), 3, 4, 8)
    assert pixels[:, 0, 0].tolist() == [*WHITE]
    assert pixels[:, 0, 7].tolist() == [0, 0, 0]


def test_sixteen_bits_are_scaled_to_eight_and_not_cut_off(tmp_path):
    deep = np.array([[0, 257 * 100, 65535, 257]], dtype=np.uint16)
    pixels = read_image(saved(Image.fromarray(deep), tmp_path / "a.png"), 1, 1, 4)
    assert pixels[0, 0].tolist() == [0, 100, 255, 1]


def test_palettes_are_applied_and_transparent_entries_are_white(tmp_path):
    image = Image.new("P", (8, 4), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (4, 0, 8, 4))
    plain = read_image(saved(image, tmp_path / "a.png"), 3, 4, 8)
    through = read_image(saved(image, tmp_path / "b.png", transparency=0), 3, 4, 8)
    assert plain[:, 0, [0, 7]].T.tolist() == [[10, 20, 30], [200, 100, 50]]
    assert through[:, 0, [0, 7]].T.tolist() == [[*WHITE], [200, 100, 50]]


def test_16_bit_grayscale_is_read_and_float_pixels_are_rejected(tmp_path):
    deep = Image.fromarray(np.full((2, 2), 257 * 7, dtype=np.uint16))
    assert (read_image(saved(deep, tmp_path / "a.tif"), 3, 2, 2) == 7).all()
    with pytest.raises(InputError, match=r"a\.tif"):
        read_image(saved(Image.fromarray(np.ones((2, 2), dtype=np.float32)), tmp_path / "a.tif"), 3, 2, 2)


def test_four_colors_of_a_printer_are_read(tmp_path):
    pixels = read_image(saved(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), tmp_path / "a.jpg"), 3, 4, 4)
    assert pixels[0].min() > 200 > 60 > pixels[1:].max()


def test_invalid_images_are_rejected_with_a_one_line_error(tmp_path):
    whole = saved(Image.effect_noise((64, 64), 50), tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "empty.png").write_bytes(b"")
    side = int(MAX_PIXELS**0.5) + 1
    saved(Image.new("1", (side, side)), tmp_path / "bomb.png")
    saved(Image.new("1", (14_000, 14_000)), tmp_path / "larger.png")
    zero = bytearray(whole)
    zero[16:20] = bytes(4)  # the width
    (tmp_path / "zero.png").write_bytes(zero)
    for name, words in (
        ("none.png", "no such file"),
        (".", "folder"),
        ("cut.png", "corrupt"),
        ("text.png", "image"),
        ("empty.png", "image"),
        ("bomb.png", "pixels"),
        ("larger.png", "pixels"),
        ("zero.png", "corrupt|image"),
    ):
        with pytest.raises(InputError, match=words) as error:
            read_image(tmp_path / name, 3, 4, 4)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="4"):
        read_image(tmp_path / "whole.png", 4, 4, 4)


@pytest.mark.parametrize("suffix", ["png", "gif", "bmp", "tif"])
@pytest.mark.parametrize("tall", [False, True])
def test_too_long_sides_are_rejected_before_decoding(tmp_path, monkeypatch, suffix, tall):
    size = (1, MAX_SIDE + 1) if tall else (MAX_SIDE + 1, 1)
    if suffix == "gif":  # which cannot say so
        monkeypatch.setattr("qkv.datasets.formats.images.MAX_SIDE", 100)
        size = (1, 101) if tall else (101, 1)
    saved(Image.new("L", size), tmp_path / f"a.{suffix}")
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("decoded"))
    with pytest.raises(InputError, match="many"):
        read_image(tmp_path / f"a.{suffix}", 3, 4, 4)


def test_the_longest_side_is_read(tmp_path):
    path = saved(Image.new("L", (2, MAX_SIDE), 7), tmp_path / "a.png")
    assert (read_image(path, 1, 4, 4) == 7).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L", "1", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_converting_in_parts_is_converting_at_once(tmp_path, monkeypatch, mode, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (50, 30, 4), dtype=np.uint8)
    image = Image.fromarray(pixels, "RGBA")
    image = Image.fromarray(pixels.view(np.uint16)[..., 0].copy()) if mode == "I;16" else image.convert(mode)
    path = saved(image, tmp_path / "a.png")
    whole = read_image(path, channels, 20, 20)
    monkeypatch.setattr("qkv.datasets.formats.images.ROWS", 7)
    assert (read_image(path, channels, 20, 20) == whole).all()


def test_only_the_first_frame_is_decoded(tmp_path):
    frames = [Image.new("L", (8, 8), value) for value in (10, 200, 90)]
    for suffix in ("gif", "tif", "png", "webp"):
        options = {"lossless": True} if suffix == "webp" else {}
        saved(frames[0], tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:], **options)
        assert (read_image(tmp_path / f"a.{suffix}", 1, 4, 4) == 10).all()


def test_a_jpeg_with_too_many_scans_is_rejected(tmp_path):
    path = saved(Image.effect_noise((64, 64), 50), tmp_path / "a.jpg", progressive=True)
    data = path.read_bytes()
    assert read_image(path, 3, 4, 4).shape == (3, 4, 4)
    last = data.rindex(b"\xff\xda")
    path.write_bytes(data[:last] + data[last:-2] * (MAX_SCANS + 1) + data[-2:])
    with pytest.raises(InputError, match="scans"):
        read_image(path, 3, 4, 4)


def test_a_picture_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "loop.png").symlink_to("loop.png")
    for name in ("fifo.png", "zero.png", "loop.png"):
        with pytest.raises(InputError, match=name):
            read_image(tmp_path / name, 3, 4, 4)


def test_files_with_equal_names_are_told_apart_by_their_folders():
    assert short_names(["a/cat.png", "b/dog.png"]) == ["cat.png", "dog.png"]
    assert short_names(["a/1.png", Path("b/1.png"), "b/2.png"]) == ["a/1.png", "b/1.png", "2.png"]
    assert short_names(["/x/test/cross/1.png", "x/valid/cross/1.png"]) == ["test/cross/1.png", "valid/cross/1.png"]
    assert short_names(["a/1.png", "./a/1.png"]) == ["1.png", "1.png"]  # the same file
    assert short_names(["1.png", "a/1.png"]) == ["1.png", "a/1.png"]
    assert short_names([Image.new("L", (1, 1))] * 2) == ["image", "image"]
    assert short_names([]) == []
