"""Pictures with captions from folders of users: Flickr8k's form, COCO's, and features that were found before."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from qkv.data import coco, flickr8k
from qkv.data.captions import Captions, read_features
from qkv.data.dataset_cache import DatasetCache
from qkv.data.registry import DataConfig, load_data
from qkv.errors import InputError

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


def test_flickr8k_has_its_own_splits_and_several_captions_of_a_picture(tmp_path):
    found = load_data(DataConfig(name="flickr8k", folder=str(flickr(tmp_path)), side=6)).captions
    assert {split: len(some) for split, some in found.items()} == {"train": 2, "valid": 1, "test": 1}
    assert found["train"].images.shape == (2, 3, 6, 6)
    assert found["train"].texts[1] == ("A dog of 2.jpg .", "A cat of 2.jpg .")
    assert abs(int(found["test"].images[0, 0].mean()) - 160) < 5  # a JPEG is not exact
    assert len(load_data(DataConfig(name="flickr8k", folder=str(tmp_path), side=6, size=1)).captions["train"]) == 1


def test_names_in_a_list_that_are_repeated_or_of_no_picture_are_noted(tmp_path):
    (flickr(tmp_path) / "Flickr_8k.trainImages.txt").write_text("1.jpg\n\n5.jpg\n1.jpg\n2.jpg\n")
    found = load_data(DataConfig(name="flickr8k", folder=str(tmp_path), side=4, size=2)).captions
    assert [texts[0] for texts in found["train"].texts] == ["A dog of 1.jpg .", "A dog of 2.jpg ."]
    (note,) = found["train"].notes
    assert note.endswith(
        "trainImages.txt: skipped 2 name(s) that are repeated or of an image without caption, the first 5.jpg"
    )
    assert found["valid"].notes == ()


def test_lists_that_are_not_all_there_or_share_a_picture_are_refused(tmp_path):
    valid = flickr(tmp_path) / "Flickr_8k.devImages.txt"
    valid.write_text("3.jpg\n2.jpg\n")
    with pytest.raises(InputError, match=r"2\.jpg is also in Flickr_8k\.trainImages\.txt"):
        flickr8k.read(DatasetCache((tmp_path,)), 4)
    valid.unlink()
    with pytest.raises(InputError, match=r"Flickr_8k\.devImages\.txt missing"):
        flickr8k.read(DatasetCache((tmp_path,)), 4)


def test_the_first_line_of_a_table_of_captions_is_a_caption_unless_it_is_the_heading(tmp_path):
    pictures(tmp_path / "Images")
    for split, name in zip(("train", "dev", "test"), NAMES, strict=False):
        (tmp_path / f"Flickr_8k.{split}Images.txt").write_text(name)
    rows = "".join(f"{name},A dog.\n" for name in NAMES)
    for heading in ("", "image,caption\n", "Image, Caption\n"):
        (tmp_path / "captions.txt").write_text(heading + rows)
        assert flickr8k.read(DatasetCache((tmp_path,)), 4)["train"].texts == (("A dog.",),)


def test_a_table_of_captions_will_do_and_a_hash_decides_the_splits(tmp_path):
    names = [f"{number}.jpg" for number in range(40)]
    pictures(tmp_path / "flickr8k" / "Images", names)
    rows = [f'{name},"A dog, {name}"' for name in names]
    (tmp_path / "flickr8k" / "captions.txt").write_text("image,caption\n" + "\n".join(rows))
    found = flickr8k.read(DatasetCache((tmp_path,)), 4)
    assert sum(map(len, found.values())) == 40
    assert len(found["train"]) > 20
    texts = {texts for some in found.values() for texts in some.texts}
    assert ("A dog, 7.jpg",) in texts


def write_coco(folder: Path, split: str, texts: list[tuple[int, str]]) -> None:
    pictures(folder / split)
    said = {
        "images": [{"id": 10 * number, "file_name": name} for number, name in enumerate(NAMES)],
        "annotations": [{"image_id": number, "caption": text} for number, text in texts],
    }
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / "annotations" / f"captions_{split}.json").write_text(json.dumps(said))


def test_coco_names_its_pictures_by_numbers(tmp_path):
    for split in ("train2017", "val2017"):
        write_coco(tmp_path, split, [(0, " A  dog. "), (30, "A cat."), (0, "One dog.")])
    found = coco.read(DatasetCache((tmp_path,)), 4)
    assert set(found) == {"train", "valid"}
    assert found["valid"].texts == (("A dog.", "One dog."), ("A cat.",))


def test_a_file_of_coco_without_captions_is_refused_whatever_its_split(tmp_path):
    write_coco(tmp_path, "train2017", [(0, "A dog.")])
    write_coco(tmp_path, "val2017", [(0, " ")])
    with pytest.raises(InputError, match=r"captions_val2017\.json: there are no captions"):
        coco.read(DatasetCache((tmp_path,)), 4)
    write_coco(tmp_path, "train2017", [])
    with pytest.raises(InputError, match=r"captions_train2017\.json: there are no captions"):
        coco.read(DatasetCache((tmp_path,)), 4)


def test_features_take_the_place_of_pictures(tmp_path):
    rng = np.random.default_rng(0)
    grids = {name: rng.standard_normal((5, 2, 3)).astype(np.float16) for name in NAMES}
    save_file(grids, tmp_path / "found.safetensors")
    asked = DataConfig(name="flickr8k", folder=str(flickr(tmp_path)), features=str(tmp_path / "found.safetensors"))
    found = load_data(asked).captions["valid"]
    assert found.images.dtype == np.float32
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
def test_features_that_cannot_be_used_are_named(tmp_path, tensors, words):
    save_file(tensors, tmp_path / "found.safetensors")
    with pytest.raises(InputError, match=words):
        read_features(tmp_path / "found.safetensors", NAMES)


def test_what_is_wrong_with_a_folder_is_said(tmp_path):
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="not a valid safetensors file"):
        read_features(tmp_path / "broken.safetensors")
    for module, words in ((flickr8k, "neither Flickr8k.token.txt nor captions.txt"), (coco, "no annotations/captions")):
        with pytest.raises(InputError, match=words):
            module.read(DatasetCache((tmp_path,)), 4)
    folder = flickr(tmp_path)
    (folder / "Flicker8k_Dataset" / "1.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"1\.jpg: not an image"):
        flickr8k.read(DatasetCache((folder,)), 4)
    with (folder / "Flickr8k.token.txt").open("a") as captions:
        captions.write("\n../../secret.png#0\tA dog.\n")
    (folder / "Flickr_8k.trainImages.txt").write_text("../../secret.png\n")
    with pytest.raises(InputError, match=r"secret\.png' is not the name of an image"):
        flickr8k.read(DatasetCache((folder,)), 4)
    (folder / "Flickr_8k.devImages.txt").write_text("another.png\n")
    with pytest.raises(InputError, match=r"devImages\.txt: none of its images has a caption"):
        flickr8k.read(DatasetCache((folder,)), 4)
    for split in ("train", "dev", "test"):
        (folder / f"Flickr_8k.{split}Images.txt").unlink()
    (folder / "Flickr8k.token.txt").write_text("1.jpg#0\tA dog.\n")
    with pytest.raises(InputError, match="no images for the split"):
        flickr8k.read(DatasetCache((folder,)), 4)
    (folder / "Flickr8k.token.txt").write_text("1.jpg A dog.\n")
    with pytest.raises(InputError, match="line 1 must have"):
        flickr8k.read(DatasetCache((folder,)), 4)
    (folder / "annotations").mkdir()
    for content, words in (
        ("{", "not valid JSON"),
        ("[]", 'no lists "images"'),
        ('{"images": [1], "annotations": []}', "an entry without id"),
    ):
        for split in ("train2017", "val2017"):
            (folder / "annotations" / f"captions_{split}.json").write_text(content)
        with pytest.raises(InputError, match=words):
            coco.read(DatasetCache((folder,)), 4)


def test_every_picture_has_a_caption():
    blank = np.zeros((2, 3, 4, 4), np.uint8)
    with pytest.raises(InputError, match="image 1 has no caption"):
        Captions(blank, (("a",), ()))
    with pytest.raises(InputError, match="2 image"):
        Captions(blank, (("a",),))
