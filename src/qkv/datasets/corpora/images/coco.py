"""COCO captions (Chen et al. 2015), or a folder in the same format.

    annotations/captions_train2017.json    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}
    annotations/captions_val2017.json      the same for validation
    train2017/, val2017/                   the images

Any other year works as well.
"""

from pathlib import Path
from typing import Any

from qkv.datasets.columns import CAPTIONS
from qkv.datasets.dataset import CaptionFolderConfig
from qkv.datasets.examples.captions import CaptionFiles
from qkv.datasets.formats.tables import parse_json
from qkv.datasets.formats.text_files import read_text
from qkv.errors import InputError
from qkv.registry import register

SPLITS = {"train": "train", "valid": "val", "test": "test"}  # our names and those in COCO file names


@register("dataset", "coco")
class COCO(CaptionFolderConfig):
    """A copy of COCO captions, or a folder in its format."""

    summary = "your copy of COCO captions, or captioned images in its format (data.folder)"
    columns = CAPTIONS

    def read_files(self) -> tuple[dict[str, CaptionFiles], tuple[str, ...]]:
        folder = self.find_folder("annotations/captions_train*.json")
        paths = {
            split: path
            for split, name in SPLITS.items()
            for path in sorted((folder / "annotations").glob(f"captions_{name}*.json"))[:1]
        }
        if "valid" not in paths:
            raise InputError(f"{folder}: no annotations/captions_val*.json for validation")
        return {
            split: CaptionFiles(_captions(path), folder / path.stem.removeprefix("captions_"))
            for split, path in paths.items()
        }, ()


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
