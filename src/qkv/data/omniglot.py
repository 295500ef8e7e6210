"""Omniglot: 1,623 characters of 50 alphabets, each drawn once by 20 people (Lake, Salakhutdinov and Tenenbaum 2015).

A character turned by a quarter, a half and three quarters counts as three more classes (Santoro et al. 2016), and the
characters are parted as in Vinyals et al. (2016): the first 1,200 to train on, the other 423 to test on. Of the 1,200,
five alphabets with 172 characters are held out to validate on, as their followers do, which leaves 1,028. No alphabet
is in two parts, but for Gurmukhi, which the 1,200th character divides.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.data.archive import unpack
from qkv.data.store import Corpus, DataFile, Store
from qkv.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, UInt8
    from numpy import ndarray

    from qkv.data.episodes import Examples

SIDE = 28  # pixels, to which the drawings are scaled
DRAWN = 105  # pixels, as they come
EACH = 20  # drawings of a character
TURNS = ("rot000", "rot090", "rot180", "rot270")  # against the clock
TRAINED = 1200
VALIDATED = ("Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)")
ALPHABETS = {  # and how many characters each has: they are numbered through all of them
    "Arcadian": 26, "Armenian": 41, "Asomtavruli_(Georgian)": 40, "Balinese": 24, "Bengali": 46,
    "Blackfoot_(Canadian_Aboriginal_Syllabics)": 14, "Braille": 26, "Cyrillic": 33, "Early_Aramaic": 22,
    "Syriac_(Estrangelo)": 23, "Anglo-Saxon_Futhorc": 29, "Futurama": 26, "Grantha": 43, "Greek": 24, "Gujarati": 48,
    "Hebrew": 22, "Japanese_(hiragana)": 52, "Inuktitut_(Canadian_Aboriginal_Syllabics)": 16,
    "Malay_(Jawi_-_Arabic)": 40, "Japanese_(katakana)": 47, "Korean": 40, "Latin": 26, "Alphabet_of_the_Magi": 20,
    "Mkhedruli_(Georgian)": 41, "Burmese_(Myanmar)": 34, "N_Ko": 33, "Ojibwe_(Canadian_Aboriginal_Syllabics)": 14,
    "Sanskrit": 42, "Tagalog": 17, "Tifinagh": 55,  # the first of the two files ends here
    "Angelic": 20, "Atemayar_Qelisayer": 26, "Atlantean": 26, "Aurek-Besh": 26, "Avesta": 26, "Ge_ez": 26,
    "Glagolitic": 45, "Gurmukhi": 45, "Kannada": 41, "Keble": 26, "Malayalam": 47, "Manipuri": 40, "Mongolian": 30,
    "Old_Church_Slavonic_(Cyrillic)": 45, "Oriya": 46, "Syriac_(Serto)": 23, "Sylheti": 28, "Tengwar": 25,
    "Tibetan": 42, "ULOG": 26,
}  # fmt: skip

RAW = "https://raw.githubusercontent.com/bitsandscraps/omniglot/b0481240b7eb42393285a93ce7d2f266ff10c62b"
FILES = (
    DataFile(
        "omniglot/images_background.npz",
        "8bf84167413cd00beacdce3fe582f780ab538d8dbef043a6d688f2527bbce199",
        3340794,
        (f"{RAW}/images_background.npz",),
    ),
    DataFile(
        "omniglot/images_evaluation.npz",
        "0b84c7ffd94c4841c0040e529c86a82eaaccb986d8eadad5673f7991b7475276",
        2415269,
        (f"{RAW}/images_evaluation.npz",),
    ),
)
CORPUS = Corpus(
    name="omniglot",
    licence="MIT, Brenden Lake",
    origin="it is in the repository bitsandscraps/omniglot on GitHub, made of the pictures in brendenlake/omniglot.",
    files=FILES,
)


def read(store: Store, ways: int, shots: int) -> dict[str, "Examples"]:
    """The classes of each split, for episodes of so many classes with so many examples each."""
    import numpy as np  # slow to import, for who only lists the data sets

    from qkv.data.episodes import Examples

    paths = store.provide(CORPUS, FILES)
    drawings = np.concatenate([_scaled(_drawn(path)) for path in paths])
    named = list(_characters())
    if len(drawings) != len(named):
        raise InputError(f"{paths[0].parent}: {len(drawings):,} characters, but Omniglot has {len(named):,}")
    places: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for place, (split, _) in enumerate(named):
        places[split].append(place)
    return {
        split: Examples(
            np.stack([np.rot90(drawings[where], turns, axes=(-2, -1)) for turns in range(len(TURNS))], axis=1)
            .reshape(-1, EACH, 1, SIDE, SIDE),
            tuple(f"{named[place][1]}/{turn}" for place in where for turn in TURNS),
            ways,
            shots,
        )
        for split, where in places.items()
    }  # fmt: skip


def _characters() -> Iterator[tuple[str, str]]:
    """The split and the name of each character, by their numbers."""
    number = 0
    for alphabet, count in ALPHABETS.items():
        for one in range(1, count + 1):
            number += 1
            trained = "valid" if alphabet in VALIDATED else "train"
            yield trained if number <= TRAINED else "test", f"{alphabet}/character{one:02}"


def _drawn(path: Path) -> "Bool[ndarray, 'characters each height width']":
    """The drawings of a file, true where the paper is white."""
    import numpy as np

    images: ndarray = np.load(io.BytesIO(unpack(path, "images.npy")), allow_pickle=False)
    if images.dtype != bool or images.shape[1:] != (EACH, DRAWN, DRAWN):
        raise InputError(f"{path}: not {EACH} drawings of {DRAWN} x {DRAWN} pixels of each character")
    return images


def _scaled(
    images: "Bool[ndarray, 'characters each height width']",
) -> "UInt8[ndarray, 'characters each small small']":
    """Ink as bright on dark, each pixel the mean of what it covers."""
    import numpy as np
    from PIL import Image

    small = np.empty((len(images), EACH, SIDE, SIDE), dtype=np.uint8)
    for place, drawings in enumerate(images):  # one below the other; a box does not reach over into its neighbour
        sheet = Image.fromarray(np.where(drawings, 0, 255).astype(np.uint8).reshape(-1, DRAWN))
        small[place] = np.asarray(sheet.resize((SIDE, EACH * SIDE), Image.Resampling.BOX)).reshape(EACH, SIDE, SIDE)
    return small
