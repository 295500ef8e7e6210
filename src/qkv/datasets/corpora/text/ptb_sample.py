"""The sample of the Penn Treebank in NLTK: Wall Street Journal sentences with constituency trees (Marcus et al. 1993).

The trees have no traces and no function tags, and are split by file.
"""

from qkv.datasets.columns import BRACKETS
from qkv.datasets.dataset import TextDatasetConfig, TreeDataset
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.trees import Tree, parse_trees
from qkv.datasets.formats.text_files import read_lines
from qkv.registry import register


class TreebankConfig(TextDatasetConfig):
    """A treebank in three files, for training, validation and test."""

    dataset_class = TreeDataset
    columns = BRACKETS

    def read(self) -> TreeDataset:
        return TreeDataset(self.read_splits())

    def read_splits(self) -> dict[str, list[Tree]]:
        """Read the trees of each split."""
        paths = zip(("train", "valid", "test"), self.fetch(), strict=True)
        return {split: parse_trees(read_lines(path), str(path)) for split, path in paths}


@register("dataset", "ptb_sample")
class PTBSample(TreebankConfig):
    """Wall Street Journal sentences with constituency trees."""

    summary = "Wall Street Journal sentences with constituency trees: 3,396 for training"
    license = "sample of the LDC, non-commercial use only"
    origin = (
        "it is the corpus treebank of https://github.com/nltk/nltk_data (5db857e), one tree on each line with the root "
        "TOP, without traces and function tags, split by file."
    )
    files = data_files(
        "treebanks/ptb_sample",
        {
            "train.txt": (1222676, "561a4e6e91a2be8204832865a8b1672cbc8009cd7ae22ed36dd73fbeeaba9df9"),
            "dev.txt": (94851, "798c4e231a4bf3552a24cdd6e2bb672b705b2bdd49835cf5cc0c1f035dadff9a"),
            "test.txt": (89327, "ba6bff907dae0fd06dd833d30d7fa86b7657b180cee0eb99cb820e36ceaec77c"),
        },
    )
