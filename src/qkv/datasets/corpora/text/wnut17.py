"""WNUT 17: rare and emerging entities in web text (Derczynski et al. 2017)."""

from qkv.datasets.columns import Column
from qkv.datasets.dataset import TaggedDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.tagged import parse_columns
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import decode_lines
from qkv.registry import register

FILES = data_files(
    "wnut17",
    {
        "wnut17train.conll": (493781, "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5"),
        "emerging.dev.conll": (114749, "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8"),
        "emerging.test.annotated": (192425, "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0"),
    },
    "https://raw.githubusercontent.com/leondz/emerging_entities_17/master",
)


@register("dataset", "wnut17")
class WNUT17(TextDatasetConfig):
    """Web text with rare named entities."""

    summary = "web text with rare named entities: 3,394 training sentences"
    license = "CC BY 4.0"
    origin = "it is https://github.com/leondz/emerging_entities_17."
    files = FILES
    dataset_class = TaggedDataset
    columns = (Column("f1", "F1 of entities, %", 100),)

    def read(self) -> TaggedDataset:
        paths = dict(zip(("train", "valid", "test"), self.fetch(), strict=True))
        lines = {split: decode_lines(unpack(path), str(path)) for split, path in paths.items()}
        return TaggedDataset({split: parse_columns(lines[split], str(paths[split])) for split in paths})
