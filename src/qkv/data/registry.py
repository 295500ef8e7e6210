"""The data sets, by name: what a recipe's `data` table asks for."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from qkv.config import require
from qkv.data import dates
from qkv.data.dates import Split
from qkv.data.files import hold_out, read_pairs
from qkv.data.pair import Pair
from qkv.errors import InputError

HELD_OUT_DATES = 2000
LARGEST = 10_000_000  # pairs that are made; they are all held in memory


@dataclass(frozen=True)
class DataConfig:
    """Which pairs to train on, and how to split their texts into tokens."""

    name: Literal["dates", "pairs"] = "dates"
    vocabulary: str = "char"  # or "bpe:N"
    size: int = 20_000  # dates: how many training pairs to make
    train: tuple[str, ...] = ()  # pairs: one TSV file, or a source file and a target file
    valid: tuple[str, ...] = ()  # pairs: likewise; without it a share of the training pairs is held out
    test: tuple[str, ...] = ()
    valid_share: float = 0.05
    strict: bool = False  # pairs: whether a line with an empty side is an error

    def __post_init__(self) -> None:
        require(0 < self.size <= LARGEST, f"size must lie between 1 and {LARGEST:,}")
        require(0 < self.valid_share < 1, "valid_share must lie between 0 and 1")

    def with_whole_paths(self) -> "DataConfig":
        """The same files, to be found from any folder: a run is resumed and evaluated from elsewhere."""

        def whole(paths: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(str(Path(path).resolve()) for path in paths)

        return replace(self, train=whole(self.train), valid=whole(self.valid), test=whole(self.test))


@dataclass(frozen=True)
class Loaded:
    """The pairs of a data set by split, and notes for the user about what was passed over."""

    splits: dict[Split, list[Pair]]
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A hash of every pair of every split: equal only if the data are."""
        digest = hashlib.sha256()
        for split, pairs in sorted(self.splits.items()):
            digest.update(f"{split} {len(pairs)}\n".encode())
            for pair in pairs:
                digest.update(
                    f"{pair.source!r} {pair.target!r} {pair.gold}\n".encode()
                )  # quoted: no text can end early
        return digest.hexdigest()


@dataclass(frozen=True)
class DataSet:
    """A named data set: what it is, under which licence, and how to load it."""

    summary: str
    licence: str
    load: Callable[[DataConfig], Loaded]


def load_data(config: DataConfig) -> Loaded:
    """Load the data that a recipe asks for."""
    return DATA_SETS[config.name].load(config)


def _load_dates(config: DataConfig) -> Loaded:
    return Loaded(
        {
            "train": dates.generate(config.size, split="train"),
            "valid": dates.generate(HELD_OUT_DATES, split="valid"),
            "test": dates.generate(HELD_OUT_DATES, split="test"),
        }
    )


def _load_pairs(config: DataConfig) -> Loaded:
    if not config.train:
        raise InputError("no training pairs given: --data pairs.tsv, or --data source.txt --data target.txt")
    named: dict[Split, tuple[str, ...]] = {"train": config.train, "valid": config.valid, "test": config.test}
    read = {
        split: read_pairs([Path(path) for path in paths], strict=config.strict)
        for split, paths in named.items()
        if paths
    }
    splits = {split: found.pairs for split, found in read.items()}
    if "valid" not in splits:
        splits["train"], splits["valid"] = hold_out(splits["train"], config.valid_share)
    return Loaded(splits, tuple(note for found in read.values() for note in found.notes))


DATA_SETS = {
    "dates": DataSet(
        f"dates as people write them, in {len(dates.LANGUAGES)} languages, to ISO 8601; generated",
        "made by qkv (Apache-2.0)",
        _load_dates,
    ),
    "pairs": DataSet("your own pairs, from a TSV file or two text files (data.train)", "yours", _load_pairs),
}
