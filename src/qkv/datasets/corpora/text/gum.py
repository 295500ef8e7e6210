"""GUM: English sentences of 15 genres with constituency trees (Zeldes 2017)."""

from qkv.datasets.corpora.text.ptb_sample import PTBSample, TreebankConfig
from qkv.datasets.dataset import TreeDataset
from qkv.datasets.dataset_cache import data_files
from qkv.registry import register


@register("dataset", "gum")
class GUM(TreebankConfig):
    """English sentences of 15 genres with constituency trees."""

    summary = "sentences of 15 English genres with constituency trees: 10,224 for training"
    license = "CC BY 4.0, some texts non-commercial"
    origin = (
        "it is the folder const of https://github.com/amir-zeldes/gum (72ce5ac), one tree on each line with the root "
        "TOP, without traces and function tags, in the splits of the corpus."
    )
    files = data_files(
        "treebanks/gum",
        {
            "train.txt": (2646910, "84f14f35a8cb93be04f2c74aef1ef9884f08fb74a87229dee321899e82c929e9"),
            "dev.txt": (420980, "c936c865ea655ce18bac3d21a5d97c1759f7fd764f8ab3c97894025032462e2f"),
            "test.txt": (426461, "8c7f8048891d48089edc5fd309fe9bf2a5a33929a87275cfed8c42d5e6bdabcc"),
        },
    )

    with_ptb_sample: bool = False  # add the training trees of ptb_sample to those of gum

    def read(self) -> TreeDataset:
        splits = self.read_splits()
        if self.with_ptb_sample:
            splits["train"] += PTBSample(folder=self.folder).read_splits()["train"]
        return TreeDataset(splits)
