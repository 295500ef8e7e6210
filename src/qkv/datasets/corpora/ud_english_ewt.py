"""UD English EWT: web text with parts of speech and dependency trees (Silveira et al. 2014)."""

from typing import ClassVar

from qkv.datasets.archive import unpack
from qkv.datasets.columns import ACCURACY
from qkv.datasets.dataset import TaggedConfig, TaggedDataset
from qkv.datasets.dataset_cache import DataFile, DatasetCache, DatasetInfo
from qkv.datasets.tagged import Tagged, parse_conllu
from qkv.datasets.text_files import decode_lines
from qkv.datasets.user_files import Column as TagColumn
from qkv.registry import register

# No URL: the treebank is updated twice a year, and its source serves it uncompressed.
FILES = {
    "train": DataFile(
        "ud_english_ewt/en_ewt-ud-train.conllu.gz",
        "bd47e08c9e18ec12d319e84df2ccdb272ff6de1d0dba5761117d3caf8b358f7b",
        2605912,
        unpacked=DataFile(
            "ud_english_ewt/en_ewt-ud-train.conllu",
            "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
            14203025,
        ),
    ),
    "valid": DataFile(
        "ud_english_ewt/en_ewt-ud-dev.conllu.gz",
        "41086e3afc9ae572f899c9123f874d6d04a52e374a3d2ac7a6667ce48e3bf3e3",
        333837,
        unpacked=DataFile(
            "ud_english_ewt/en_ewt-ud-dev.conllu",
            "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
            1805545,
        ),
    ),
    "test": DataFile(
        "ud_english_ewt/en_ewt-ud-test.conllu.gz",
        "29c151eee8846d3f3ef7806c126ecac9932af2317c008c6d6b076c5e14950dbe",
        330912,
        unpacked=DataFile(
            "ud_english_ewt/en_ewt-ud-test.conllu",
            "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd",
            1804515,
        ),
    ),
}
INFO = DatasetInfo(
    name="ud_english_ewt",
    license="CC BY-SA 4.0",
    origin="it is the treebank UD_English-EWT of https://universaldependencies.org, its three .conllu files.",
    files=tuple(FILES.values()),
)


def read(cache: DatasetCache, column: str = "upos") -> dict[str, list[Tagged]]:
    """Read the sentences of each split, with a CoNLL-U column as tags."""
    paths = dict(zip(FILES, cache.fetch(INFO, INFO.files), strict=True))
    return {
        split: parse_conllu(decode_lines(unpack(path), str(path)), str(path), column) for split, path in paths.items()
    }


@register("dataset", "ud_english_ewt")
class UDEnglishEWT(TaggedConfig):
    """Web text with parts of speech and dependency trees."""

    summary = "web text with parts of speech and dependency trees: 12,544 training sentences"
    info = INFO
    columns = ACCURACY
    remarks: ClassVar = {
        "": "A model of trees is given those of the treebank, also when it is tested: they inform the label, and most "
        "of all what a word is to its head (deprel)."
    }

    column: TagColumn = "upos"  # CoNLL-U column used as tags

    def read(self) -> TaggedDataset:
        return TaggedDataset(read(self.cache, self.column))
