"""SQuADShifts: extractive questions about Wikipedia, Amazon reviews and Reddit (Miller et al. 2020).

A second test split is the English part of XQuAD (Artetxe, Ruder and Yogatama 2020), 240 paragraphs of SQuAD 1.1.
"""

from qkv.datasets.columns import EXACT, Column
from qkv.datasets.dataset import QuestionDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.squad import parse_squad
from qkv.datasets.formats.text_files import digest, read_text
from qkv.registry import register


@register("dataset", "squadshifts")
class SQuADShifts(TextDatasetConfig):
    """Questions about Wikipedia, Amazon reviews and Reddit, whose answers are spans of the text."""

    summary = "questions about Wikipedia, Amazon reviews and Reddit, answered by a span: 22,431 for training"
    license = "CC BY 4.0; XQuAD: CC BY-SA 4.0"
    origin = (
        "it is https://github.com/modestyachts/squadshifts-website (new_wiki, amazon_reviews and reddit, in SQuAD's "
        "format, split by article) and xquad.en.json of https://github.com/deepmind/xquad."
    )
    files = data_files(
        "squadshifts",
        {
            "train.json": (8266679, "07c82c323e9dc068994c2e6ec207622de6b33a79bc3175962848695985cf5fcc"),
            "dev.json": (918008, "41351ada71534d35e99ef095f876250860b84ca90cca97c869ca727d6706ace7"),
            "test.json": (1247171, "e0e791f73d4532de27b6d0d17b02e44f38842232cff35eab67ce91e00a7cd108"),
            "xquad.en.json": (609383, "e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29"),
        },
    )
    dataset_class = QuestionDataset
    columns = (EXACT, Column("f1", "F1 of words, %", 100))

    def read(self) -> QuestionDataset:
        """Read all splits; training and validation texts are ordered by hash, so that any prefix has all sources."""
        paths = dict(zip(("train", "valid", "test", "test_xquad_en"), self.fetch(), strict=True))
        splits = {split: parse_squad(read_text(path), str(path)) for split, path in paths.items()}
        for split in ("train", "valid"):
            splits[split].sort(key=lambda question: digest(question.text))
        return QuestionDataset(splits)
