"""Emoji of two vendors with their names: 3,786 images of 64 x 64 pixels each.

The training split has Google's images of most names. Held out are names selected by a hash, each with all its skin
tones, and all of Twitter's images:

    valid, test_google    Google's images of unseen names
    test_twitter          Twitter's images of seen names
    test                  Twitter's images of unseen names
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qkv.datasets.columns import CAPTIONS
from qkv.datasets.dataset import CaptionConfig, CaptionDataset
from qkv.datasets.dataset_cache import DataFile, DatasetCache, DatasetInfo
from qkv.datasets.text_files import digest, read_text
from qkv.registry import register

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from numpy import ndarray

    from qkv.datasets.captions import Captions

SIDE = 64  # pixels
PITCH = SIDE + 2  # pixels from one image of a sheet to the next, with a border of one pixel around each
PER_SIDE = 62  # images along a side of a sheet
SELECTOR = "-FE0F"  # requests colour presentation; the two lists use it inconsistently

FILES = (
    DataFile(
        "emoji_captions/google_sheet_64.png",
        "d84ade799c1905c8046c6446b14143aabe142a496bd47d27787c36769b0b87b4",
        3484610,
    ),
    DataFile(
        "emoji_captions/twitter_sheet_64.png",
        "3823598464719ad7cb3a7ba14537b7852c8a323e18b39f7ca4fa9b1e98e9cc68",
        3008248,
    ),
    DataFile(
        "emoji_captions/emoji.json",
        "1d602e65be88772bf8cc368ce16b855d719eeddbafe128d471b80203f494d29f",
        1313457,
    ),
    DataFile(
        "emoji_captions/emojibase_en_data.json",
        "ed014f1049bd370c5794f815850156196ac382850f51c3e9f6a9e83553fb3f01",
        775157,
    ),
)
INFO = DatasetInfo(
    name="emoji",
    license="drawings: Apache-2.0 (Google), CC-BY-4.0 (Twitter); names: MIT (emojibase)",
    origin=(
        "the sheets are img/google/sheets/64.png and img/twitter/sheets/64.png of the npm packages "
        "emoji-datasource-google and emoji-datasource-twitter, emoji.json is in both, and emojibase_en_data.json is "
        "en/data.json of emojibase-data."
    ),
    files=FILES,
)


@dataclass(frozen=True)
class Glyph:
    """An emoji: its name, its row and column on a sheet, and its split."""

    name: str
    row: int
    column: int
    split: str


def read(cache: DatasetCache) -> dict[str, "Captions"]:
    """Read the images of each split."""
    *sheets, layout, names = cache.fetch(INFO, FILES)
    google, twitter = map(_sheet, sheets)
    glyphs = _glyphs(layout, names)
    train, valid, test = ([glyph for glyph in glyphs if glyph.split == split] for split in ("train", "valid", "test"))
    return {
        "train": _captioned(google, train),
        "valid": _captioned(google, valid),
        "test": _captioned(twitter, test),
        "test_google": _captioned(google, test),
        "test_twitter": _captioned(twitter, train),
    }


def split_of(name: str) -> str:
    """Return the split of a name by its hash: 80 % train, 10 % valid, 10 % test."""
    bucket = int.from_bytes(digest(name)[:4], "big") % 10
    return "test" if bucket == 0 else "valid" if bucket == 1 else "train"


def _glyphs(layout: Path, names: Path) -> list[Glyph]:
    name_of = {code.replace(SELECTOR, ""): label for code, label in _labels(json.loads(read_text(names)))}
    glyphs = []
    for entry in json.loads(read_text(layout)):
        base = name_of[entry["unified"].replace(SELECTOR, "")]
        for variant in (entry, *entry.get("skin_variations", {}).values()):
            name = name_of[variant["unified"].replace(SELECTOR, "")].lower()
            glyphs.append(Glyph(name, variant["sheet_y"], variant["sheet_x"], split_of(base)))
    return glyphs


def _labels(entries: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        for variant in (entry, *entry.get("skins", ())):
            yield variant["hexcode"], variant["label"]


def _sheet(path: Path) -> "UInt8[ndarray, '3 height width']":
    from qkv.datasets.image_files import read_image  # slow import

    return read_image(path, 3, PER_SIDE * PITCH, PER_SIDE * PITCH)


def _captioned(sheet: "UInt8[ndarray, '3 height width']", glyphs: list[Glyph]) -> "Captions":
    import numpy as np

    from qkv.datasets.captions import Captions

    corners = [(glyph.row * PITCH + 1, glyph.column * PITCH + 1) for glyph in glyphs]
    images = np.stack([sheet[:, top : top + SIDE, left : left + SIDE] for top, left in corners])
    return Captions(images, tuple((glyph.name,) for glyph in glyphs))


@register("dataset", "emoji")
class Emoji(CaptionConfig):
    """Emoji of two vendors with their names."""

    summary = "emoji by Google and Twitter with their names, 64 x 64 pixels: 3,786 of each"
    info = INFO
    columns = CAPTIONS
    remarks: ClassVar = {
        "": "Trained on Google's drawings. test: Twitter's drawings of names that training never saw; test_google: "
        "Google's drawings of these; test_twitter: Twitter's drawings of names that were seen."
    }

    def read(self) -> CaptionDataset:
        return CaptionDataset(read(self.cache))
