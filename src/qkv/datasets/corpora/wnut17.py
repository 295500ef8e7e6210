"""WNUT 17: rare and emerging entities in web text (Derczynski et al. 2017)."""

from qkv.datasets.archive import unpack
from qkv.datasets.columns import Column
from qkv.datasets.dataset import TaggedConfig, TaggedDataset
from qkv.datasets.dataset_cache import DataFile, DatasetCache, DatasetInfo
from qkv.datasets.tagged import Tagged, parse_columns
from qkv.datasets.text_files import decode_lines
from qkv.registry import register

URL = "https://raw.githubusercontent.com/leondz/emerging_entities_17/master/"
FILES = {
    "train": DataFile(
        "wnut17/wnut17train.conll",
        "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5",
        493781,
        (URL + "wnut17train.conll",),
    ),
    "valid": DataFile(
        "wnut17/emerging.dev.conll",
        "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8",
        114749,
        (URL + "emerging.dev.conll",),
    ),
    "test": DataFile(
        "wnut17/emerging.test.annotated",
        "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0",
        192425,
        (URL + "emerging.test.annotated",),
    ),
}
INFO = DatasetInfo(
    name="wnut17",
    license="CC BY 4.0",
    origin="it is https://github.com/leondz/emerging_entities_17.",
    files=tuple(FILES.values()),
)


def read(cache: DatasetCache) -> dict[str, list[Tagged]]:
    """Read the sentences of each split."""
    paths = dict(zip(FILES, cache.fetch(INFO, INFO.files), strict=True))
    return {split: parse_columns(decode_lines(unpack(path), str(path)), str(path)) for split, path in paths.items()}


@register("dataset", "wnut17")
class WNUT17(TaggedConfig):
    """Web text with rare named entities."""

    summary = "web text with rare named entities: 3,394 training sentences"
    info = INFO
    columns = (Column("f1", "F1 of entities, %", 100),)

    def read(self) -> TaggedDataset:
        return TaggedDataset(read(self.cache))
