"""UD English EWT: web text with parts of speech and dependency trees (Silveira et al. 2014)."""

from typing import ClassVar

from qkv.datasets.columns import ACCURACY
from qkv.datasets.dataset import TaggedDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.tagged import parse_conllu
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import decode_lines
from qkv.datasets.user_texts import Column as TagColumn
from qkv.registry import register

FILES = data_files(  # no URL: the treebank is updated twice a year, and its source serves it uncompressed
    "ud_english_ewt",
    {
        "en_ewt-ud-train.conllu.gz": (2605912, "bd47e08c9e18ec12d319e84df2ccdb272ff6de1d0dba5761117d3caf8b358f7b"),
        "en_ewt-ud-dev.conllu.gz": (333837, "41086e3afc9ae572f899c9123f874d6d04a52e374a3d2ac7a6667ce48e3bf3e3"),
        "en_ewt-ud-test.conllu.gz": (330912, "29c151eee8846d3f3ef7806c126ecac9932af2317c008c6d6b076c5e14950dbe"),
    },
    unpacked={
        "en_ewt-ud-train.conllu": (14203025, "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b"),
        "en_ewt-ud-dev.conllu": (1805545, "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6"),
        "en_ewt-ud-test.conllu": (1804515, "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd"),
    },
)


@register("dataset", "ud_english_ewt")
class UDEnglishEWT(TextDatasetConfig):
    """Web text with parts of speech and dependency trees."""

    summary = "web text with parts of speech and dependency trees: 12,544 training sentences"
    license = "CC BY-SA 4.0"
    origin = "it is the treebank UD_English-EWT of https://universaldependencies.org, its three .conllu files."
    files = FILES
    dataset_class = TaggedDataset
    columns = ACCURACY
    remarks: ClassVar = {
        "": "Models with trees get the gold trees, also in evaluation. Gold trees reveal information about the labels, "
        "most of all about dependency relations (deprel)."
    }

    column: TagColumn = "upos"  # CoNLL-U column used as tags

    def read(self) -> TaggedDataset:
        paths = dict(zip(("train", "valid", "test"), self.fetch(), strict=True))
        lines = {split: decode_lines(unpack(path), str(path)) for split, path in paths.items()}
        return TaggedDataset({split: parse_conllu(lines[split], str(paths[split]), self.column) for split in paths})
