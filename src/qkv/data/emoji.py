"""Emoji as two vendors draw them, with their names: 3,786 pictures of 64 x 64 pixels each.

A captioner learns from Google's drawings of most names. Held out are the names that a hash picks, each with all its
skin tones, and all of Twitter's drawings:

    valid, test_google    Google's drawings of names that were never seen
    test_twitter          Twitter's drawings of names that were seen
    test                  Twitter's drawings of names that were never seen: another style and another name
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.data.files import digest, read_text
from qkv.data.store import Corpus, DataFile, Store

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from numpy import ndarray

    from qkv.data.captions import Captions

SIDE = 64  # pixels of a drawing
PITCH = SIDE + 2  # of a sheet: each has a pixel of nothing around it
ALONG = 62  # drawings a side of a sheet
SELECTOR = "-FE0F"  # which says that a character is to be drawn in colours; the two lists do not agree on where

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
CORPUS = Corpus(
    name="emoji",
    licence="drawings: Apache-2.0 (Google), CC-BY-4.0 (Twitter); names: MIT (emojibase)",
    origin=(
        "the sheets are img/google/sheets/64.png and img/twitter/sheets/64.png of the npm packages "
        "emoji-datasource-google and emoji-datasource-twitter, emoji.json is in both, and emojibase_en_data.json is "
        "en/data.json of emojibase-data."
    ),
    files=FILES,
)


@dataclass(frozen=True)
class Glyph:
    """An emoji: what it is called, where it stands on a sheet, and which split its name belongs to."""

    name: str
    row: int
    column: int
    split: str


def read(store: Store) -> dict[str, "Captions"]:
    """The drawings of each split."""
    *sheets, places, names = store.provide(CORPUS, FILES)
    google, twitter = map(_sheet, sheets)
    glyphs = _glyphs(places, names)
    seen, valid, held = ([one for one in glyphs if one.split == split] for split in ("train", "valid", "test"))
    return {
        "train": _captioned(google, seen),
        "valid": _captioned(google, valid),
        "test": _captioned(twitter, held),
        "test_google": _captioned(google, held),
        "test_twitter": _captioned(twitter, seen),
    }


def split_of(name: str) -> str:
    """Of ten names about eight train, one validates, one tests."""
    number = int.from_bytes(digest(name)[:4], "big") % 10
    return "test" if number == 0 else "valid" if number == 1 else "train"


def _glyphs(places: Path, names: Path) -> list[Glyph]:
    called = {code.replace(SELECTOR, ""): label for code, label in _labels(json.loads(read_text(names)))}
    found = []
    for entry in json.loads(read_text(places)):
        base = called[entry["unified"].replace(SELECTOR, "")]
        for drawn in (entry, *entry.get("skin_variations", {}).values()):
            name = called[drawn["unified"].replace(SELECTOR, "")].lower()
            found.append(Glyph(name, drawn["sheet_y"], drawn["sheet_x"], split_of(base)))
    return found


def _labels(entries: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        for one in (entry, *entry.get("skins", ())):
            yield one["hexcode"], one["label"]


def _sheet(path: Path) -> "UInt8[ndarray, '3 height width']":
    from qkv.data.picture_file import read_picture  # slow to import, for who only lists the data sets

    return read_picture(path, 3, ALONG * PITCH, ALONG * PITCH)


def _captioned(sheet: "UInt8[ndarray, '3 height width']", glyphs: list[Glyph]) -> "Captions":
    import numpy as np

    from qkv.data.captions import Captions

    corners = [(one.row * PITCH + 1, one.column * PITCH + 1) for one in glyphs]
    drawings = np.stack([sheet[:, top : top + SIDE, left : left + SIDE] for top, left in corners])
    return Captions(drawings, tuple((one.name,) for one in glyphs))
