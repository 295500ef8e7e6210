"""COCO captions (Chen et al. 2015), or a folder in the same format.

    annotations/captions_train2017.json    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}
    annotations/captions_val2017.json      the same for validation
    train2017/, val2017/                   the images

Any other year works as well.
"""

from pathlib import Path
from typing import Any

from qkv.datasets.captions import Captions, read_captioned_images
from qkv.datasets.columns import CAPTIONS
from qkv.datasets.dataset import CaptionDataset, CaptionFolderConfig
from qkv.datasets.dataset_cache import DatasetCache
from qkv.datasets.tables import parse_json
from qkv.datasets.text_files import read_text
from qkv.errors import InputError
from qkv.registry import register

SPLITS = {"train": "train", "valid": "val", "test": "test"}  # our names and those in COCO file names


def read(cache: DatasetCache, side: int, size: int | None = None, features: Path | None = None) -> dict[str, Captions]:
    """Read the images and captions of each split, resized to side x side; at most `size` for training."""
    folder = _find_folder(cache)
    paths = {
        split: path
        for split, name in SPLITS.items()
        for path in sorted((folder / "annotations").glob(f"captions_{name}*.json"))[:1]
    }
    if "valid" not in paths:
        raise InputError(f"{folder}: no annotations/captions_val*.json for validation")
    captions = {split: _captions(path) for split, path in paths.items()}  # first: reading images takes minutes
    captions["train"] = dict(list(captions["train"].items())[:size])
    return {
        split: read_captioned_images(captions[split], folder / path.stem.removeprefix("captions_"), side, features)
        for split, path in paths.items()
    }


def _find_folder(cache: DatasetCache) -> Path:
    for folder in cache.folders:
        for candidate in (folder, folder / "coco"):
            if any((candidate / "annotations").glob("captions_train*.json")):
                return candidate
    searched = ", ".join(str(folder) for folder in cache.folders)
    raise InputError(
        f"coco: no annotations/captions_train*.json is in {searched}, or in a subfolder coco: set the folder of the "
        "images and captions with --data-dir FOLDER, or in a recipe with --set data.folder=FOLDER"
    )


def _captions(path: Path) -> dict[str, list[str]]:
    """Return the captions of each image that has any, by file name."""
    data = parse_json(read_text(path), str(path))
    match data:
        case {"images": [*images], "annotations": [*annotations]}:
            pass
        case _:
            raise InputError(f'{path}: not COCO captions: there are no lists "images" and "annotations"')
    names = dict(_entry(path, image, "id", "file_name") for image in images)
    captions: dict[str, list[str]] = {}
    for annotation in annotations:
        image_id, caption = _entry(path, annotation, "image_id", "caption")
        if image_id not in names:
            raise InputError(f"{path}: there is a caption for image {image_id}, which is not in the list of images")
        if caption.strip():
            captions.setdefault(names[image_id], []).append(" ".join(caption.split()))
    if not captions:
        raise InputError(f'{path}: there are no captions in "annotations"')
    return captions


def _entry(path: Path, entry: Any, id_key: str, text_key: str) -> tuple[int, str]:
    if isinstance(entry, dict):
        identifier, text = entry.get(id_key), entry.get(text_key)
        if isinstance(identifier, int) and isinstance(text, str):
            return identifier, text
    raise InputError(f"{path}: an entry without {id_key} (a number) and {text_key} (a string)")


@register("dataset", "coco")
class COCO(CaptionFolderConfig):
    """A copy of COCO captions, or a folder in its format."""

    summary = "your copy of COCO captions, or captioned images in its format (data.folder)"
    columns = CAPTIONS

    def read(self) -> CaptionDataset:
        return CaptionDataset(read(self.cache, self.side, self.size, self.features_path))
