"""What a recipe's `data` table may say."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from qkv.config import require
from qkv.data import movie_reviews
from qkv.data.kinds import require_kind
from qkv.runtime.files import absolute_path

LARGEST = 10_000_000  # pairs that are made; they are all held in memory
MEANT_FOR = {  # the keys that mean something for some data sets only
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
    """Which texts to train on, and how to split them into tokens."""

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
    folder: str | None = None  # where to look for the files of a data set first
    vocabulary: str = "char"  # or "word", "word:N", "bpe:N", "wordpiece:N"
    target_vocabulary: str | None = None  # likewise, for the target side; without it both sides share one
    lowercase: bool = False
    size: int | None = None  # how many training examples, or characters of a text, to take; None: all, of dates 20,000
    side: int = 224  # flickr8k, coco: pixels of the square that pictures are scaled to
    features: str | None = None  # flickr8k, coco: a safetensors file with what a network has found in each picture
    train: tuple[str, ...] = ()  # pairs, labelled: one TSV file, or two, of which the first may be CoNLL-U; tagged:
    # CoNLL columns or CoNLL-U; text: any; questions: JSON as SQuAD has it
    valid: tuple[str, ...] = ()  # likewise; without it a share of the training examples is held out
    test: tuple[str, ...] = ()
    valid_share: float = 0.05
    strict: bool = False  # whether a line with an empty side is an error
    fold: int = 0  # movie_reviews: which of its ten folds is tested on
    column: Literal["upos", "xpos", "deprel"] = "upos"  # of CoNLL-U: the parts of speech, or what words are to heads

    ways: int = 5  # omniglot: how many classes an episode has
    shots: int = 1  # and how many examples of each
    arms: int = 5  # bandits: how many arms there are
    pulls: int = 10  # and how many pulls

    def __post_init__(self) -> None:
        require(self.size is None or 0 < self.size <= LARGEST, f"size must lie between 1 and {LARGEST:,}")
        require(
            self.size is None or self.name != "bandits",
            "size has no meaning with name = 'bandits', whose games are made anew in every epoch: leave it out",
        )
        require(1 <= self.side <= 4096, "side must lie between 1 and 4,096")
        require(0 < self.valid_share < 1, "valid_share must lie between 0 and 1")
        for count, least in (("ways", 2), ("shots", 1), ("arms", 2), ("pulls", 1)):
            require(least <= getattr(self, count) <= 1024, f"{count} must lie between {least} and 1,024")
        require(0 <= self.fold < movie_reviews.FOLDS, f"fold must lie between 0 and {movie_reviews.FOLDS - 1}")
        for key in fields(self):
            meant = MEANT_FOR.get(key.name, (self.name,))
            require(
                self.name in meant or getattr(self, key.name) == key.default,
                f"{key.name} has no meaning with name = {self.name!r}: leave it out, or set name to "
                f"{' or '.join(meant)}",
            )
        require_kind(self.vocabulary)
        if self.target_vocabulary is not None:
            require_kind(self.target_vocabulary, "target_vocabulary")

    def with_whole_paths(self) -> "DataConfig":
        """The same files, to be found from any folder: a run is resumed and evaluated from elsewhere."""

        def whole(paths: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(str(absolute_path(path)) for path in paths)

        folder = None if self.folder is None else str(absolute_path(self.folder))
        features = None if self.features is None else str(absolute_path(self.features))
        train, valid, test = whole(self.train), whole(self.valid), whole(self.test)
        return replace(self, train=train, valid=valid, test=test, folder=folder, features=features)

    def without_lost_folder(self) -> "DataConfig":
        """The same, but for a folder that is not there any more: the files, known by their hashes, may be elsewhere."""
        return replace(self, folder=None) if self.folder is not None and not Path(self.folder).is_dir() else self
