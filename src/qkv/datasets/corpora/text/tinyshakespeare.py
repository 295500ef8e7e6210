"""Tiny Shakespeare: a million characters of plays (Karpathy 2015)."""

from typing import ClassVar

from qkv.datasets.columns import Column
from qkv.datasets.dataset import TextDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.formats.archive import unpack
from qkv.registry import register

TRAIN_SHARE = 0.9  # first characters, as in nanoGPT


@register("dataset", "tinyshakespeare")
class TinyShakespeare(TextDatasetConfig):
    """Plays by Shakespeare."""

    summary = "Shakespeare plays: 1,115,394 characters"
    license = "the plays are in the public domain; the collection is MIT (karpathy/char-rnn)"
    origin = "it is in data/tinyshakespeare of https://github.com/karpathy/char-rnn."
    files = data_files(
        "tinyshakespeare",
        {"input.txt": (1115394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")},
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare",
    )
    dataset_class = TextDataset
    columns = (Column("nats", "nats per character", digits=4, higher_is_better=False),)
    remarks: ClassVar = {"": "Published: nanoGPT's Transformer of 6 layers and width 384, 1.4697 (its README)."}

    def read(self) -> TextDataset:
        (path,) = self.fetch()
        text = unpack(path).decode()
        cut = int(TRAIN_SHARE * len(text))
        return TextDataset({"train": text[:cut], "valid": text[cut:]})
