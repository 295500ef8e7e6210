"""Conversations of the Chit-Chat Challenge of Brigham Young University (Myers, Etchart and Fulda 2020)."""

from qkv.datasets.columns import DIALOGUE
from qkv.datasets.dataset import DialogueDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.dialogue import parse_dialogues
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import decode_lines
from qkv.registry import register

SPLITS = ("train", "valid", "test")
MAX_BYTES = 2**26  # of a decompressed file; the largest has 12 million


@register("dataset", "chitchat")
class ChitChat(TextDatasetConfig):
    """English conversations of two people by turns."""

    summary = "English conversations of two people by turns: 2,964 for training, 122,492 turns"
    license = "MIT (the package chitchat-dataset)"
    origin = (
        "the conversations are in the package chitchat-dataset 0.9.0 of PyPI; these files have them by turns, one JSON "
        "object on each line, split into 2,964, 124 and 155."
    )
    files = data_files(  # no URL: the package does not have the split files
        "chitchat",
        {
            "train.jsonl.gz": (4335430, "5f019a3691058742789b31264e6747d7d3dc696de13cc92706b17af07292047e"),
            "dev.jsonl.gz": (163463, "afa0adfdf83ccb7779a472ebc73f1f4afd1f48ccdd4dd3f3ffcee1f05001c5ac"),
            "test.jsonl.gz": (245094, "63c838d43ef1aed1662095aaf01ed53acc221edf0f8d360a9cdd4949a3e74b01"),
        },
    )
    dataset_class = DialogueDataset
    columns = DIALOGUE

    def read(self) -> DialogueDataset:
        paths = dict(zip(SPLITS, self.fetch(), strict=True))
        return DialogueDataset(
            {
                split: parse_dialogues(decode_lines(unpack(path, limit=MAX_BYTES), str(path)), str(path))
                for split, path in paths.items()
            }
        )
