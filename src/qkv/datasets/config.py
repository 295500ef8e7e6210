"""The `data` table of a recipe."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from qkv.config import require
from qkv.datasets.corpora import movie_reviews
from qkv.runtime.files import absolute_path

LARGEST = 10_000_000  # generated examples, all held in memory
APPLIES_WHEN = {  # keys that apply to some datasets only, with the names of these
    **dict.fromkeys(("source", "target"), ("multi30k", "tatoeba")),
    **dict.fromkeys(("train", "valid", "test", "valid_share"), ("pairs", "labelled", "tagged", "questions", "text")),
    "strict": ("pairs", "labelled"),
    **dict.fromkeys(("side", "features"), ("flickr8k", "coco")),
    "column": ("ud_english_ewt", "tagged"),
    "fold": ("movie_reviews",),
    **dict.fromkeys(("ways", "shots"), ("omniglot",)),
    **dict.fromkeys(("arms", "pulls"), ("bandits",)),
    "target_vocabulary": ("dates", "pairs", "multi30k", "tatoeba", "cmudict"),
}


@dataclass(frozen=True)
class DataConfig:
    """Which dataset to train on, and how to tokenize it."""

    name: Literal[
        "dates",
        "pairs",
        "multi30k",
        "tatoeba",
        "cmudict",
        "tinyshakespeare",
        "text",
        "labelled",
        "sentence_polarity",
        "imdb",
        "movie_reviews",
        "tagged",
        "ud_english_ewt",
        "wnut17",
        "fashion_mnist",
        "shapes",
        "emoji",
        "flickr8k",
        "coco",
        "copy",
        "repeat_copy",
        "recall",
        "questions",
        "omniglot",
        "bandits",
    ]
    source: str = "en"  # multi30k, tatoeba: the languages
    target: str = "de"
    folder: str | None = None  # searched first for the files of the dataset
    vocabulary: str = "char"  # or "word", "word:N", "bpe:N", "wordpiece:N"
    target_vocabulary: str | None = None  # tokenizer of the target side; None: both sides share one
    lowercase: bool = False
    size: int | None = None  # number of training examples, or characters of a text; None: all, dates: 20,000
    side: int = 224  # flickr8k, coco: images are resized to side x side pixels
    features: str | None = None  # flickr8k, coco: safetensors file with precomputed image features
    train: tuple[str, ...] = ()  # pairs, labelled: one TSV file, or two parallel files (source may be CoNLL-U);
    # tagged: CoNLL columns or CoNLL-U; text: plain text; questions: SQuAD JSON
    valid: tuple[str, ...] = ()  # if empty, `valid_share` of the training examples is held out
    test: tuple[str, ...] = ()
    valid_share: float = 0.05
    strict: bool = False  # raise for lines with an empty side instead of skipping them
    fold: int = 0  # movie_reviews: index of the test fold, of ten
    column: Literal["upos", "xpos", "deprel"] = "upos"  # CoNLL-U column used as tags

    ways: int = 5  # omniglot: classes per episode (N)
    shots: int = 1  # omniglot: support examples per class (K)
    arms: int = 5  # bandits: number of arms
    pulls: int = 10  # bandits: pulls per game

    def __post_init__(self) -> None:
        require(self.size is None or 0 < self.size <= LARGEST, f"size must be between 1 and {LARGEST:,}")
        require(
            self.size is None or self.name != "bandits",
            "size does not apply to name = 'bandits': games are generated in every epoch; remove it",
        )
        require(1 <= self.side <= 4096, "side must be between 1 and 4,096")
        require(0 < self.valid_share < 1, "valid_share must be between 0 and 1")
        for key, minimum in (("ways", 2), ("shots", 1), ("arms", 2), ("pulls", 1)):
            require(minimum <= getattr(self, key) <= 1024, f"{key} must be between {minimum} and 1,024")
        require(0 <= self.fold < movie_reviews.FOLDS, f"fold must be between 0 and {movie_reviews.FOLDS - 1}")
        for field in fields(self):
            names = APPLIES_WHEN.get(field.name, (self.name,))
            require(
                self.name in names or getattr(self, field.name) == field.default,
                f"{field.name} does not apply to name = {self.name!r}: remove it, or set name to {' or '.join(names)}",
            )

    def with_absolute_paths(self) -> "DataConfig":
        """Return the config with absolute paths, so that a run can be resumed from another working directory."""

        def absolute(paths: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(str(absolute_path(path)) for path in paths)

        folder = None if self.folder is None else str(absolute_path(self.folder))
        features = None if self.features is None else str(absolute_path(self.features))
        train, valid, test = absolute(self.train), absolute(self.valid), absolute(self.test)
        return replace(self, train=train, valid=valid, test=test, folder=folder, features=features)

    def without_missing_folder(self) -> "DataConfig":
        """Return the config without a missing folder; files are identified by hash and may be elsewhere."""
        return replace(self, folder=None) if self.folder is not None and not Path(self.folder).is_dir() else self
