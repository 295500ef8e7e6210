"""Nottingham Music Database: British and American folk tunes in ABC notation, cleaned by Jukedeck (2017).

A blank line separates tunes, so that each is a document for language models of documents.
"""

from qkv.datasets.columns import PERPLEXITY
from qkv.datasets.dataset import TextDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.formats.archive import unpack
from qkv.registry import register

SPLITS = ("train", "valid", "test")


@register("dataset", "nottingham")
class Nottingham(TextDatasetConfig):
    """Folk tunes in ABC notation."""

    summary = "folk tunes in ABC notation: 835 for training, 89 for validation, 107 for test"
    license = "GPL-3.0 (jukedeck/nottingham-dataset)"
    origin = (
        "the tunes are in ABC_cleaned of https://github.com/jukedeck/nottingham-dataset; these files have them split "
        "into 835, 89 and 107."
    )
    files = data_files(  # no URL: the repository does not have the split files
        "nottingham_abc",
        {
            "train.abc": (333024, "757800a13839dcf3765e6948f09b714c0d1264a3a8a32e771861f01f5c440c4c"),
            "valid.abc": (36753, "3260a04221ff4af8a803b6a734986bbe3bebc4b35184a9b0d6a99bc4fe1680ac"),
            "test.abc": (44509, "9ea935a0f3373c4c9e2d5a732a284216edd0e087fc8252285ed1b45ae6de5971"),
        },
    )
    dataset_class = TextDataset
    columns = (PERPLEXITY,)

    def read(self) -> TextDataset:
        return TextDataset({split: unpack(path).decode() for split, path in zip(SPLITS, self.fetch(), strict=True)})
