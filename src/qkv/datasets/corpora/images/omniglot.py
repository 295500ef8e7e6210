"""Omniglot: 1,623 characters of 50 alphabets, each drawn once by 20 people (Lake, Salakhutdinov and Tenenbaum 2015).

Rotations by 90, 180 and 270 degrees are separate classes (Santoro et al. 2016). The split is that of Vinyals et al.
(2016): the first 1,200 characters for training, the other 423 for test. Of the 1,200, five alphabets with 172
characters are held out for validation, as in later work, which leaves 1,028. No alphabet is in two splits except
Gurmukhi, which contains the 1,200th character. Published results of SNAIL are of models trained on all 1,200: once the
settings are chosen, `train_on_valid` does the same, and the validation accuracy is then one on training characters.
"""

import io
from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Bool, UInt8
from numpy import ndarray
from PIL import Image
from pydantic import Field

from qkv.datasets.columns import ACCURACY, Column
from qkv.datasets.dataset import DatasetConfig, EpisodeDataset
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.episodes import FewShotDataset
from qkv.datasets.formats.archive import unpack
from qkv.registry import register

SIDE = 28  # pixels, after resizing
ORIGINAL_SIDE = 105  # pixels
PER_CLASS = 20  # drawings of a character
ROTATIONS = ("rot000", "rot090", "rot180", "rot270")  # counterclockwise
TRAIN_CHARACTERS = 1200
VALID_ALPHABETS = ("Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)")
ALPHABETS = {  # with their numbers of characters
    "Arcadian": 26, "Armenian": 41, "Asomtavruli_(Georgian)": 40, "Balinese": 24, "Bengali": 46,
    "Blackfoot_(Canadian_Aboriginal_Syllabics)": 14, "Braille": 26, "Cyrillic": 33, "Early_Aramaic": 22,
    "Syriac_(Estrangelo)": 23, "Anglo-Saxon_Futhorc": 29, "Futurama": 26, "Grantha": 43, "Greek": 24, "Gujarati": 48,
    "Hebrew": 22, "Japanese_(hiragana)": 52, "Inuktitut_(Canadian_Aboriginal_Syllabics)": 16,
    "Malay_(Jawi_-_Arabic)": 40, "Japanese_(katakana)": 47, "Korean": 40, "Latin": 26, "Alphabet_of_the_Magi": 20,
    "Mkhedruli_(Georgian)": 41, "Burmese_(Myanmar)": 34, "N_Ko": 33, "Ojibwe_(Canadian_Aboriginal_Syllabics)": 14,
    "Sanskrit": 42, "Tagalog": 17, "Tifinagh": 55,  # end of the first file
    "Angelic": 20, "Atemayar_Qelisayer": 26, "Atlantean": 26, "Aurek-Besh": 26, "Avesta": 26, "Ge_ez": 26,
    "Glagolitic": 45, "Gurmukhi": 45, "Kannada": 41, "Keble": 26, "Malayalam": 47, "Manipuri": 40, "Mongolian": 30,
    "Old_Church_Slavonic_(Cyrillic)": 45, "Oriya": 46, "Syriac_(Serto)": 23, "Sylheti": 28, "Tengwar": 25,
    "Tibetan": 42, "ULOG": 26,
}  # fmt: skip

FILES = data_files(
    "omniglot",
    {
        "images_background.npz": (3340794, "8bf84167413cd00beacdce3fe582f780ab538d8dbef043a6d688f2527bbce199"),
        "images_evaluation.npz": (2415269, "0b84c7ffd94c4841c0040e529c86a82eaaccb986d8eadad5673f7991b7475276"),
    },
    "https://raw.githubusercontent.com/bitsandscraps/omniglot/b0481240b7eb42393285a93ce7d2f266ff10c62b",
)


@register("dataset", "omniglot")
class Omniglot(DatasetConfig):
    """Handwritten characters for few-shot learning."""

    summary = "handwritten characters for few-shot learning: 1,028 for training, 172 for validation, 423 for test"
    license = "MIT, Brenden Lake"
    origin = "it is in the repository bitsandscraps/omniglot on GitHub, made of the pictures in brendenlake/omniglot."
    files = FILES
    dataset_class = EpisodeDataset
    columns = (*ACCURACY, Column("margin", "±, %", 100, higher_is_better=False))
    remarks: ClassVar = {
        "": "Published: SNAIL 99.07 % of five classes and 97.64 % of twenty (Mishra et al. 2018). ± is half the "
        "width of the 95 % confidence interval over the episodes of one seed."
    }

    ways: Annotated[int, Field(ge=2, le=1024)] = 5  # classes per episode (N)
    shots: Annotated[int, Field(ge=1, le=1024)] = 1  # support examples per class (K)
    train_on_valid: bool = False  # also train on the validation characters, for a final run with chosen settings

    def read(self) -> EpisodeDataset:
        arrays = (np.load(io.BytesIO(unpack(path, "images.npy")), allow_pickle=False) for path in self.fetch())
        drawings = np.concatenate([_resize(images) for images in arrays])
        characters = list(_characters())
        splits = {}
        for split in ("train", "valid", "test"):
            included = ("train", "valid") if split == "train" and self.train_on_valid else (split,)
            indices = [index for index, (character_split, _) in enumerate(characters) if character_split in included]
            rotated = [np.rot90(drawings[indices], k, axes=(-2, -1)) for k in range(len(ROTATIONS))]
            pixels = np.stack(rotated, axis=1).reshape(-1, PER_CLASS, 1, SIDE, SIDE)
            names = tuple(f"{characters[index][1]}/{rotation}" for index in indices for rotation in ROTATIONS)
            splits[split] = FewShotDataset(pixels, names, self.ways, self.shots)
        return EpisodeDataset(splits)


def _characters() -> Iterator[tuple[str, str]]:
    """Yield the split and the name of each character, in the order of the files."""
    total = 0
    for alphabet, count in ALPHABETS.items():
        for number in range(1, count + 1):
            total += 1
            split = "valid" if alphabet in VALID_ALPHABETS else "train"
            yield split if total <= TRAIN_CHARACTERS else "test", f"{alphabet}/character{number:02}"


def _resize(
    images: Bool[ndarray, "characters each height width"],
) -> UInt8[ndarray, "characters each small small"]:
    """Resize by averaging, with bright ink on a dark background; True is white."""
    resized = np.empty((len(images), PER_CLASS, SIDE, SIDE), dtype=np.uint8)
    for index, drawings in enumerate(images):  # stacked vertically; the box filter does not mix neighbors
        sheet = Image.fromarray(np.where(drawings, 0, 255).astype(np.uint8).reshape(-1, ORIGINAL_SIDE))
        small = np.asarray(sheet.resize((SIDE, PER_CLASS * SIDE), Image.Resampling.BOX))
        resized[index] = small.reshape(PER_CLASS, SIDE, SIDE)
    return resized
