"""Tests of caption datasets: Flickr8k and COCO folders, and precomputed features."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from qkv.datasets.examples.captions import read_features
from qkv.errors import InputError
from tests.datasets.build import dataset, load

NAMES = [f"{number}.jpg" for number in range(1, 5)]


def pictures(folder: Path, names: list[str] = NAMES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, start=1):
        Image.new("RGB", (12, 8), (40 * number, 0, 0)).save(folder / name)


def flickr(folder: Path) -> Path:
    pictures(folder / "Flicker8k_Dataset")
    lines = [f"{name}#{count}\tA {word} of {name} ." for name in NAMES for count, word in enumerate(("dog", "cat"))]
    (folder / "Flickr8k.token.txt").write_text("\n".join(lines))
    for split, some in (("train", NAMES[:2]), ("dev", NAMES[2:3]), ("test", [*NAMES[3:], "none.jpg"])):
        (folder / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{name}\n" for name in some))
    return folder


def test_flickr8k_has_its_own_splits_and_several_captions_per_image(tmp_path):
    found = load("flickr8k", folder=str(flickr(tmp_path)), side=6).splits
    assert {split: len(some) for split, some in found.items()} == {"train": 2, "valid": 1, "test": 1}
    assert found["train"].images.shape == (2, 3, 6, 6)
    assert found["train"].texts[1] == ("A dog of 2.jpg .", "A cat of 2.jpg .")
    assert abs(int(found["test"].images[0, 0].mean()) - 160) < 5  # a JPEG is not exact
    assert len(load("flickr8k", folder=str(tmp_path), side=6, size=1).splits["train"]) == 1


def test_repeated_names_and_names_without_image_are_skipped_with_a_note(tmp_path):
    (flickr(tmp_path) / "Flickr_8k.trainImages.txt").write_text("1.jpg\n\n5.jpg\n1.jpg\n2.jpg\n")
    found = load("flickr8k", folder=str(tmp_path), side=4, size=2)
    assert [texts[0] for texts in found.splits["train"].texts] == ["A dog of 1.jpg .", "A dog of 2.jpg ."]
    note, other = found.notes
    assert note.endswith(
        "trainImages.txt: skipped 2 name(s) that are repeated or of an image without caption, the first 5.jpg"
    )
    assert "testImages.txt: skipped 1" in other


def test_missing_or_overlapping_split_lists_are_rejected(tmp_path):
    valid = flickr(tmp_path) / "Flickr_8k.devImages.txt"
    valid.write_text("3.jpg\n2.jpg\n")
    with pytest.raises(InputError, match=r"2\.jpg is also in Flickr_8k\.trainImages\.txt"):
        load("flickr8k", folder=str(tmp_path), side=4)
    valid.unlink()
    with pytest.raises(InputError, match=r"Flickr_8k\.devImages\.txt missing"):
        load("flickr8k", folder=str(tmp_path), side=4)


def test_the_first_line_of_captions_txt_may_be_a_header(tmp_path):
    pictures(tmp_path / "Images")
    for split, name in zip(("train", "dev", "test"), NAMES, strict=False):
        (tmp_path / f"Flickr_8k.{split}Images.txt").write_text(name)
    rows = "".join(f"{name},A dog.\n" for name in NAMES)
    for heading in ("", "image,caption\n", "Image, Caption\n"):
        (tmp_path / "captions.txt").write_text(heading + rows)
        assert load("flickr8k", folder=str(tmp_path), side=4).splits["train"].texts == (("A dog.",),)


def test_captions_txt_without_split_lists_is_split_by_hash(tmp_path):
    names = [f"{number}.jpg" for number in range(40)]
    pictures(tmp_path / "flickr8k" / "Images", names)
    rows = [f'{name},"A dog, {name}"' for name in names]
    (tmp_path / "flickr8k" / "captions.txt").write_text("image,caption\n" + "\n".join(rows))
    found = load("flickr8k", folder=str(tmp_path), side=4).splits
    assert sum(map(len, found.values())) == 40
    assert len(found["train"]) > 20
    texts = {texts for some in found.values() for texts in some.texts}
    assert ("A dog, 7.jpg",) in texts


def write_coco(folder: Path, split: str, texts: list[tuple[int, str]]) -> None:
    pictures(folder / split)
    annotations = {
        "images": [{"id": 10 * number, "file_name": name} for number, name in enumerate(NAMES)],
        "annotations": [{"image_id": number, "caption": text} for number, text in texts],
    }
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / "annotations" / f"captions_{split}.json").write_text(json.dumps(annotations))


def test_coco_refers_to_images_by_id(tmp_path):
    for split in ("train2017", "val2017"):
        write_coco(tmp_path, split, [(0, " A  dog. "), (30, "A cat."), (0, "One dog.")])
    found = load("coco", folder=str(tmp_path), side=4).splits
    assert set(found) == {"train", "valid"}
    assert found["valid"].texts == (("A dog.", "One dog."), ("A cat.",))


def test_coco_files_without_captions_are_rejected_for_every_split(tmp_path):
    write_coco(tmp_path, "train2017", [(0, "A dog.")])
    write_coco(tmp_path, "val2017", [(0, " ")])
    with pytest.raises(InputError, match=r"captions_val2017\.json: there are no captions"):
        load("coco", folder=str(tmp_path), side=4)
    write_coco(tmp_path, "train2017", [])
    with pytest.raises(InputError, match=r"captions_train2017\.json: there are no captions"):
        load("coco", folder=str(tmp_path), side=4)


def test_features_replace_images(tmp_path):
    rng = np.random.default_rng(0)
    grids = {name: rng.standard_normal((5, 2, 3)).astype(np.float16) for name in NAMES}
    save_file(grids, tmp_path / "found.safetensors")
    asked = dataset("flickr8k", folder=str(flickr(tmp_path)), features=str(tmp_path / "found.safetensors"))
    found = asked.load().splits["valid"]
    assert found.images.dtype == np.float16  # a file of float16 takes half the memory
    assert (found.images[0] == grids["3.jpg"]).all()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"1.jpg": np.ones((5, 2, 2), np.float32)}, r"has no features of 2\.jpg"),
        ({name: np.ones((5, 2), np.float32) for name in NAMES}, r"1\.jpg is F32 \[5, 2\]"),
        ({name: np.ones((5, 2, 2), np.int32) for name in NAMES}, r"1\.jpg is I32"),
        ({name: np.ones((5, 2, k + 1), np.float32) for k, name in enumerate(NAMES)}, "one shape"),
        ({name: np.full((5, 2, 2), np.nan, np.float32) for name in NAMES}, "not finite"),
    ],
)
def test_invalid_features_are_rejected_by_name(tmp_path, tensors, words):
    save_file(tensors, tmp_path / "found.safetensors")
    with pytest.raises(InputError, match=words):
        read_features(tmp_path / "found.safetensors", NAMES)


def test_invalid_caption_folders_are_rejected(tmp_path, monkeypatch):
    monkeypatch.delenv("QKV_DATA", raising=False)  # it may have a Flickr8k
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="not a valid safetensors file"):
        read_features(tmp_path / "broken.safetensors")
    for name, words in (("flickr8k", "no Flickr8k.token.txt or captions.txt"), ("coco", "no annotations/captions")):
        with pytest.raises(InputError, match=words):
            load(name, folder=str(tmp_path), side=4)
    folder = flickr(tmp_path)
    (folder / "Flicker8k_Dataset" / "1.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"1\.jpg: not an image"):
        load("flickr8k", folder=str(folder), side=4)
    with (folder / "Flickr8k.token.txt").open("a") as captions:
        captions.write("\n../../secret.png#0\tA dog.\n")
    (folder / "Flickr_8k.trainImages.txt").write_text("../../secret.png\n")
    with pytest.raises(InputError, match=r"secret\.png' is not the name of an image"):
        load("flickr8k", folder=str(folder), side=4)
    (folder / "Flickr_8k.devImages.txt").write_text("another.png\n")
    with pytest.raises(InputError, match=r"devImages\.txt: none of its images has a caption"):
        load("flickr8k", folder=str(folder), side=4)
    for split in ("train", "dev", "test"):
        (folder / f"Flickr_8k.{split}Images.txt").unlink()
    (folder / "Flickr8k.token.txt").write_text("1.jpg#0\tA dog.\n")
    with pytest.raises(InputError, match="no images for the split"):
        load("flickr8k", folder=str(folder), side=4)
    (folder / "Flickr8k.token.txt").write_text("1.jpg A dog.\n")
    with pytest.raises(InputError, match="line 1 must have"):
        load("flickr8k", folder=str(folder), side=4)
    (folder / "annotations").mkdir()
    for content, words in (
        ("{", "not valid JSON"),
        ("[]", 'no lists "images"'),
        ('{"images": [1], "annotations": []}', "an entry without id"),
    ):
        for split in ("train2017", "val2017"):
            (folder / "annotations" / f"captions_{split}.json").write_text(content)
        with pytest.raises(InputError, match=words):
            load("coco", folder=str(folder), side=4)


def jpeg(color: int, size: tuple[int, int] = (12, 8)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (color, 0, 0)).save(file, "JPEG")
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def archived(folder: Path) -> Path:
    """Two images each for training, validation and test; the order in the archives differs from captions.tsv."""
    folder.mkdir(exist_ok=True)
    lines = ["image\tsplit\tcaption1\tcaption2"]
    for split, base in (("train", 0), ("dev", 80), ("test", 160)):
        names = [f"{split}{number}.jpg" for number in range(2)]
        lines += [f"{name}\t{split}\tA dog , in a T-shirt .\tThe dog runs" for name in names]
        members = {name: jpeg(base + 40 * number) for number, name in enumerate(names)}
        write_tar(folder / f"{split}.tar", dict(reversed(members.items())))
    (folder / "captions.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_images_are_read_from_archives_of_the_splits(tmp_path):
    found = load("flickr8k", folder=str(archived(tmp_path)), side=4).splits
    assert {split: len(some) for split, some in found.items()} == {"train": 2, "valid": 2, "test": 2}
    reds = [int(image[0].mean()) for split in ("train", "valid", "test") for image in found[split].images]
    assert all(abs(red - 40 * number) < 5 for number, red in enumerate(reds))  # a JPEG is not exact
    assert found["test"].texts[0] == ("A dog , in a T-shirt .", "The dog runs")
    stripped = load("flickr8k", folder=str(tmp_path), side=4, strip_punctuation=True).splits
    assert stripped["train"].texts[1] == ("A dog in a Tshirt", "The dog runs")


def test_damaged_archives_are_rejected(tmp_path, monkeypatch):
    folder = archived(tmp_path)

    def reject(words: str) -> None:
        with pytest.raises(InputError, match=words):
            load("flickr8k", folder=str(folder), side=4)

    whole = (folder / "test.tar").read_bytes()
    (folder / "test.tar").write_bytes(whole[:700])  # inside the first image
    reject(r"test\.tar: truncated or corrupt")
    (folder / "test.tar").write_bytes(b"no archive")
    reject(r"test\.tar: truncated or corrupt")
    (folder / "test.tar").unlink()
    reject(r"test\.tar: no such file")
    write_tar(folder / "test.tar", {"test0.jpg": jpeg(0)})
    reject(r"no image test1\.jpg in this archive")
    write_tar(folder / "test.tar", {"test0.jpg": jpeg(0), "test1.jpg": b"no picture"})
    reject(r"test1\.jpg: not an image")
    write_tar(folder / "test.tar", {"test0.jpg": jpeg(0), "test1.jpg": jpeg(0, (64, 64))[:-100]})
    reject(r"test1\.jpg: truncated or corrupt")
    monkeypatch.setattr("qkv.datasets.examples.captions.MAX_IMAGE_BYTES", 100)
    reject(r"train1\.jpg has [\d,]+ bytes, more than 100")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a.jpg\ttrain"], "line 1 must have an image name"),
        (["a.jpg"], "line 1 must have an image name"),
        (["a.jpg\tother\tA dog"], "line 1 must have an image name"),
        (["a.jpg\ttrain\tA dog", "a.jpg\tdev\tA dog"], r"line 2: a\.jpg is in the file more than once"),
        (["a.jpg\ttrain\tA dog"], "no images for the split valid"),
    ],
)
def test_invalid_tables_of_captions_are_rejected_by_line(tmp_path, lines, words):
    (tmp_path / "captions.tsv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=words):
        load("flickr8k", folder=str(tmp_path), side=4)


def test_features_of_a_backbone_are_found_in_a_data_folder(tmp_path):
    folder = archived(tmp_path / "flickr8k")
    names = [f"{split}{number}.jpg" for split in ("train", "dev", "test") for number in range(2)]
    options = {"folder": str(tmp_path), "backbone": "some_net"}
    with pytest.raises(InputError, match="qkv data features flickr8k"):
        load("flickr8k", **options)
    grids = {name: np.full((5, 2, 3), number, np.float16) for number, name in enumerate(names)}
    save_file(grids, folder / "some_net.safetensors", metadata={"backbone": "some_net"})
    found = load("flickr8k", **options)
    assert found.backbone == "some_net"
    assert found.splits["valid"].images[:, 0, 0, 0].tolist() == [2, 3]
