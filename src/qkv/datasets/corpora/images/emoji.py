"""Emoji of two vendors with their names: 3,786 images of 64 x 64 pixels each.

The training split has Google's images of most names. Held out are names selected by a hash, each with all its skin
tones, and all of Twitter's images:

    valid, test_google    Google's images of unseen names
    test_twitter          Twitter's images of seen names
    test                  Twitter's images of unseen names
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from qkv.datasets.columns import CAPTIONS
from qkv.datasets.dataset import CaptionDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.captions import Captions
from qkv.datasets.formats.images import read_image
from qkv.datasets.formats.text_files import read_text, split_of
from qkv.registry import register

SIDE = 64  # pixels
PITCH = SIDE + 2  # pixels from one image of a sheet to the next, with a border of one pixel around each
PER_SIDE = 62  # images along a side of a sheet
SELECTOR = "-FE0F"  # requests color presentation; the two lists use it inconsistently

FILES = data_files(
    "emoji_captions",
    {
        "google_sheet_64.png": (3484610, "d84ade799c1905c8046c6446b14143aabe142a496bd47d27787c36769b0b87b4"),
        "twitter_sheet_64.png": (3008248, "3823598464719ad7cb3a7ba14537b7852c8a323e18b39f7ca4fa9b1e98e9cc68"),
        "emoji.json": (1313457, "1d602e65be88772bf8cc368ce16b855d719eeddbafe128d471b80203f494d29f"),
        "emojibase_en_data.json": (775157, "ed014f1049bd370c5794f815850156196ac382850f51c3e9f6a9e83553fb3f01"),
    },
)


class Glyph(NamedTuple):
    """An emoji: its name, and its row and column on a sheet."""

    name: str
    row: int
    column: int


@register("dataset", "emoji")
class Emoji(TextDatasetConfig):
    """Emoji of two vendors with their names."""

    summary = "emoji by Google and Twitter with their names, 64 x 64 pixels: 3,786 of each"
    license = "drawings: Apache-2.0 (Google), CC-BY-4.0 (Twitter); names: MIT (emojibase)"
    origin = (
        "the sheets are img/google/sheets/64.png and img/twitter/sheets/64.png of the npm packages "
        "emoji-datasource-google and emoji-datasource-twitter, emoji.json is in both, and emojibase_en_data.json is "
        "en/data.json of emojibase-data."
    )
    files = FILES
    dataset_class = CaptionDataset
    columns = CAPTIONS
    remarks: ClassVar = {
        "": "Trained on Google's designs. test: Twitter's designs of unseen names; test_google: Google's designs of "
        "these; test_twitter: Twitter's designs of seen names."
    }

    def read(self) -> CaptionDataset:
        *sheets, layout, names = self.fetch()
        google, twitter = (read_image(path, 3, PER_SIDE * PITCH, PER_SIDE * PITCH) for path in sheets)
        glyphs: dict[str, list[Glyph]] = {"train": [], "valid": [], "test": []}
        for split, glyph in _glyphs(layout, names):
            glyphs[split].append(glyph)
        splits = {
            "train": _captioned(google, glyphs["train"]),
            "valid": _captioned(google, glyphs["valid"]),
            "test": _captioned(twitter, glyphs["test"]),
            "test_google": _captioned(google, glyphs["test"]),
            "test_twitter": _captioned(twitter, glyphs["train"]),
        }
        return CaptionDataset(splits)


def _glyphs(layout: Path, names: Path) -> Iterator[tuple[str, Glyph]]:
    """Yield the split of each emoji, by a hash of its name without skin tone, and the emoji."""
    name_of = {
        variant["hexcode"].replace(SELECTOR, ""): variant["label"]
        for entry in json.loads(read_text(names))
        for variant in (entry, *entry.get("skins", ()))
    }
    for entry in json.loads(read_text(layout)):
        split = split_of(name_of[entry["unified"].replace(SELECTOR, "")])
        for variant in (entry, *entry.get("skin_variations", {}).values()):
            name = name_of[variant["unified"].replace(SELECTOR, "")].lower()
            yield split, Glyph(name, variant["sheet_y"], variant["sheet_x"])


def _captioned(sheet: UInt8[ndarray, "3 height width"], glyphs: list[Glyph]) -> Captions:
    corners = [(glyph.row * PITCH + 1, glyph.column * PITCH + 1) for glyph in glyphs]
    images = np.stack([sheet[:, top : top + SIDE, left : left + SIDE] for top, left in corners])
    return Captions(images, tuple((glyph.name,) for glyph in glyphs))
