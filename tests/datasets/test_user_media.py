"""Folders of images, captions and recordings of the user: what is read, and hostile files."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from qkv.datasets.detect import infer_kind
from qkv.datasets.formats.audio import WavFile
from qkv.errors import InputError
from qkv.training.data_warnings import data_warnings
from qkv.training.recipe import read_recipe
from tests.datasets.build import dataset, load
from tests.pipelines.recordings import write_wav


def save(path: Path, value: int, size: tuple[int, int] = (9, 7)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 255 - value, 7)).save(path)
    return path


def photos(folder: Path, count: int = 10) -> Path:
    """Two classes with distinct images in several formats and nested folders."""
    for number in range(count):
        save(folder / "cat" / f"{number}.png", number)
        save(folder / "dog" / "more" / f"{number}.{'BMP' if number % 2 else 'Tiff'}", 100 + number)
    return folder


def read(folder: Path, **options: Any) -> Any:
    return load("images", train=(str(folder),), **{"side": 8, **options})


def png_header(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (header, b"IDAT" + zlib.compress(bytes(100)))
    parts = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_subfolders_are_classes_and_some_images_of_each_are_held_out(tmp_path):
    data = read(photos(tmp_path / "a"), valid_share=0.2)
    train, valid = data.splits["train"], data.splits["valid"]
    assert (train.names, len(train), len(valid)) == (("cat", "dog"), 16, 4)
    assert np.bincount(valid.labels).tolist() == [2, 2]
    for split in (train, valid):
        for pixels, label, file in zip(split.pixels, split.labels, split.files, strict=True):
            number = int(Path(file).stem)
            assert pixels[:, 0, 0].tolist() == [number + 100 * label, 255 - number - 100 * label, 7]
            assert f"/{split.names[label]}/" in file
    again = read(photos(tmp_path / "b"), valid_share=0.2)
    assert again.fingerprint == data.fingerprint
    assert any("by a hash of their pixels" in note for note in data.notes)
    assert read(tmp_path / "a", channels=1).splits["train"].pixels.shape[1:] == (1, 8, 8)


def test_data_size_keeps_images_of_all_classes(tmp_path):
    assert set(read(photos(tmp_path), size=8).splits["train"].labels) == {0, 1}


def test_copies_of_an_image_stay_in_one_split(tmp_path):
    for number in range(12):
        save(photos(tmp_path) / "cat" / f"copy{number}.png", number % 3)
    train, valid = (read(tmp_path, valid_share=0.4).splits[split] for split in ("train", "valid"))
    assert not {image.tobytes() for image in train.pixels} & {image.tobytes() for image in valid.pixels}


def test_subfolders_for_splits_are_used_and_duplicates_are_noted(tmp_path):
    for split, count in (("train", 6), ("Val", 3), ("test", 2)):
        photos(tmp_path / split, count)
    data = read(tmp_path)
    assert {split: len(images) for split, images in data.splits.items()} == {"train": 12, "valid": 6, "test": 4}
    repeated = [*dataset("images", train=(str(tmp_path),)).duplicates(data.splits)]
    assert any("6 of 6 images of valid are also in train" in warning for warning in repeated)
    save(tmp_path / "test" / "bird" / "1.png", 3)
    with pytest.raises(InputError, match="bird"):
        read(tmp_path)


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train", "bus"):
        for number in range(4):
            save(tmp_path / name / f"{number}.png", number + 10 * len(name))
    assert read(tmp_path).splits["train"].names == ("bus", "train")


def test_a_table_names_images_and_labels(tmp_path):
    photos(tmp_path / "files")
    rows = [(f"files/cat/{number}.png", "meow") for number in range(10)]
    rows += [(f"files/dog/more/{number}.BMP", "woof") for number in (1, 3, 5)]
    table = tmp_path / "labels.csv"
    table.write_text("file_name,id,label\n" + "".join(f"{name},7,{label}\n" for name, label in rows))
    data = read(table)
    assert (data.splits["train"].names, len(data.splits["train"]) + len(data.splits["valid"])) == (("meow", "woof"), 13)
    table.write_text("image,label\nfiles/none.png,a\n")
    with pytest.raises(InputError, match=r"line 2: files/none\.png: no such file"):
        read(table)
    table.write_text("image,label\nmeow,files/cat/1.png\n")
    with pytest.raises(InputError, match="swapped"):
        read(table)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("note.png", b"no image at all", "not an image"),
        ("empty.jpg", b"", "not an image"),
        ("huge.png", png_header(100_000, 100_000), "pixels"),
        ("wide.png", png_header(2**31 - 1, 1), "pixels"),
    ],
)
def test_unreadable_images_are_named_and_counted_or_skipped(tmp_path, name, content, word):
    (photos(tmp_path) / "cat" / name).write_bytes(content)
    with pytest.raises(InputError, match=word) as error:
        read(tmp_path)
    assert name in str(error.value)
    assert "1 of 21 images" in str(error.value)
    data = read(tmp_path, skip_unreadable=True)
    assert len(data.splits["train"]) + len(data.splits["valid"]) == 20
    assert any("skipped 1 image" in note and name in note for note in data.notes)


def test_truncated_jpegs_are_errors(tmp_path):
    path = photos(tmp_path) / "cat" / "cut.JPEG"
    Image.effect_noise((64, 64), 50).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(InputError, match=r"cut\.JPEG: truncated or corrupt"):
        read(tmp_path)


def test_the_memory_of_all_images_is_checked_before_it_is_allocated(tmp_path, monkeypatch):
    photos(tmp_path)
    monkeypatch.setattr("qkv.runtime.memory.free_memory", lambda device: 3 * 4096**2 * 19)
    monkeypatch.setattr(np, "empty", lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(InputError, match=r"data\.side"):
        read(tmp_path, side=4096)


def test_links_are_followed_once_and_loops_are_errors_or_noted(tmp_path):
    photos(tmp_path / "photos")
    elsewhere = photos(tmp_path / "elsewhere")
    (tmp_path / "photos" / "bird").symlink_to(elsewhere / "cat")
    (tmp_path / "photos" / "cat" / "loop").symlink_to(tmp_path / "photos")
    data = read(tmp_path / "photos")
    assert data.splits["train"].names == ("bird", "cat", "dog")
    assert any("skipped 1 file(s) that are no images, the first loop" in note for note in data.notes)
    (tmp_path / "photos" / "again").symlink_to(tmp_path / "photos")
    with pytest.raises(InputError, match="link"):
        read(tmp_path / "photos")


def test_folders_without_two_classes_of_images_are_errors(tmp_path):
    with pytest.raises(InputError, match="no images found"):
        read(tmp_path)
    save(tmp_path / "1.png", 1)
    with pytest.raises(InputError, match="no subfolders"):
        read(tmp_path)
    save(tmp_path / "cat" / "1.png", 1)
    (tmp_path / "dog").mkdir()
    with pytest.raises(InputError, match="one class, 'cat'"):
        read(tmp_path)
    save(tmp_path / "dog" / "1.png", 2)
    with pytest.raises(InputError, match="single image"):
        read(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none")


def test_captions_are_read_from_tables_and_folders(tmp_path):
    photos(tmp_path / "files", 6)
    names = [f"files/cat/{number}.png" for number in range(6)]
    (tmp_path / "a.csv").write_text("image,caption\n" + "".join(f'{n},a cat\n{n},"sits, still"\n' for n in names))
    entries = [{"file_name": name, "captions": ["a cat", "sits, still"]} for name in names]
    (tmp_path / "files" / "metadata.jsonl").write_text(
        "\n".join(json.dumps({**entry, "file_name": entry["file_name"][6:]}) for entry in entries)
    )
    data = [load("captions", train=(str(tmp_path / name),), side=8) for name in ("a.csv", "files")]
    assert data[0].fingerprint == data[1].fingerprint
    train, valid = data[0].splits["train"], data[0].splits["valid"]
    assert (train.images.shape, len(valid)) == ((5, 3, 8, 8), 1)
    assert set(train.texts) == {("a cat", "sits, still")}
    assert infer_kind([tmp_path / "a.csv"]) == "captions"
    with pytest.raises(InputError, match="no table"):
        load("captions", train=(str(tmp_path / "files" / "cat"),))


def test_recordings_are_read_with_tables_or_text_files(tmp_path):
    for number in range(6):
        write_wav(tmp_path / f"{number}.{'WAV' if number % 2 else 'wav'}", 0.1, 8000, seed=number)
        (tmp_path / f"{number}.txt").write_text(f"number\n{number}\n")
    texts = load("speech", train=(str(tmp_path),))
    assert infer_kind([tmp_path]) == "speech"
    table = tmp_path / "list.csv"
    rows = [f"{number}.{'WAV' if number % 2 else 'wav'},number {number}\n" for number in range(6)]
    table.write_text("path,sentence\n" + "".join(rows))
    for data in (load("speech", train=(str(table),)), load("speech", train=(str(tmp_path),)), texts):
        assert data.fingerprint == texts.fingerprint
    assert len(texts.splits["train"]) == 5
    assert texts.splits["valid"].texts[0].startswith("number ")
    table.unlink()
    (tmp_path / "3.txt").unlink()
    with pytest.raises(InputError, match=r"3\.WAV: has no text.*1 of 6"):
        load("speech", train=(str(tmp_path),))
    (tmp_path / "3.txt").write_text(" \n")
    (tmp_path / "8.txt").write_text("no recording")
    notes = load("speech", train=(str(tmp_path),)).notes
    assert any("empty text" in note for note in notes)
    assert any("without a recording" in note for note in notes)
    (tmp_path / "3.WAV").write_bytes(b"RIFF")
    (tmp_path / "3.txt").write_text("three")
    with pytest.raises(InputError, match=r"3\.WAV"):
        load("speech", train=(str(tmp_path),))


def test_recordings_are_checked_and_listed_without_reading_their_samples(tmp_path, monkeypatch):
    for number in range(6):
        write_wav(tmp_path / f"{number}.wav", 0.5, 8000, seed=number)
        (tmp_path / f"{number}.txt").write_text(str(number))
    monkeypatch.setattr(WavFile, "read", None)
    recipe = read_recipe("speech-las", [f'data.train=["{tmp_path}"]'])
    data = recipe.data.load()
    assert {example["length"] for split in data.splits for example in data.preview(split)} == {"0.50 s"}
    assert not list(data_warnings(recipe, data))


def test_copies_of_a_recording_stay_in_one_split(tmp_path):
    for number in range(12):
        write_wav(tmp_path / f"{number}.wav", 0.05, 8000, seed=number % 3)
        (tmp_path / f"{number}.txt").write_text(str(number % 3))
    splits = load("speech", train=(str(tmp_path),), valid_share=0.3).splits
    train, valid = ({WavFile.read(file).tobytes() for file in splits[name].files} for name in ("train", "valid"))
    assert valid
    assert not train & valid
