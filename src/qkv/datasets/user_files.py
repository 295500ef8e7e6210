"""Base class of datasets read from files and folders of the user."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, Strict

from qkv.datasets.dataset import YOURS, Dataset, DatasetConfig, FilePath
from qkv.datasets.formats.folders import find_splits
from qkv.datasets.formats.roles import Role
from qkv.datasets.formats.text_files import hold_out
from qkv.datasets.hugging_face import name_exported
from qkv.errors import InputError
from qkv.registry import registered

FORMATS_PAGE = "how-to/your-own-data"  # of the documentation
UNRECOGNIZED = ("text", "pairs")  # kinds of files that are not recognized as those of another kind
MEDIA_KINDS = {"images", "captions", "speech"}

FilePaths = Annotated[tuple[FilePath, ...], Strict(False)]


class UserFiles(DatasetConfig):
    """Files of the user: training files, and optionally validation and test files."""

    license = YOURS
    usage: ClassVar[str]  # message if no training files are set
    description: ClassVar[str]  # of the examples, in messages
    section: ClassVar[str]  # of the page on formats
    recipe: ClassVar[str]  # that trains on such files
    roles: ClassVar[tuple[Role, ...]] = ()  # columns of its tables; empty: it has none
    hashed: ClassVar[str] = "their text"  # what determines which examples are held out
    unique: ClassVar[bool] = False  # whether examples of equal key are copies

    train: FilePaths = ()  # training files, or a folder with train, valid and test in it
    valid: FilePaths = ()  # validation files; unset: valid_share of the training examples is held out
    test: FilePaths = ()  # test files
    valid_share: Annotated[float, Field(gt=0, lt=1)] = 0.05  # share of the training examples held out
    column_names: dict[str, str] = Field(default_factory=dict)  # of tables, by role, e.g. { text = "review" }

    def read(self) -> Dataset[Any]:
        with naming_page(self.section):
            try:
                return self._read()
            except InputError as error:
                raise type(error)(f"{error}{self._other_kind()}") from None

    def _other_kind(self) -> str:
        """Return which recipe trains on the files if they look like data of another kind."""
        from qkv.datasets.detect import infer_kind  # which imports this module

        with suppress(InputError):
            kind = infer_kind([*map(Path, self.train)], self.column_names) if self.train else self.registered_name
            recognized = kind not in UNRECOGNIZED or {kind, self.registered_name} & MEDIA_KINDS
            if recognized and kind != self.registered_name:
                other = user_datasets()[kind]
                return f"; these look like {other.description}: qkv train {other.recipe}"
        return ""

    def _read(self) -> Dataset[Any]:
        files, notes = self.split_files(), list[str]()
        splits = self.finish({split: self.read_examples(paths, notes) for split, paths in files.items()})
        self.check(splits["train"])
        if "valid" not in splits:
            size, unit = len(splits["train"]), self.dataset_class.unit
            splits["train"], splits["valid"] = self.hold_out(splits["train"])
            notes.append(
                f"{len(splits['valid']):,} of {size:,} {unit} are held out for validation {self.describe_hold_out()} "
                f"(data.valid_share = {self.valid_share:g})"
            )
        return self.dataset_class(splits, tuple(notes))

    def split_files(self) -> dict[str, list[Path]]:
        """Return the files of each split; those of a training folder that has files or subfolders for splits."""
        if not self.train:
            raise InputError(self.usage)
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        files = {split: [*map(Path, paths)] for split, paths in named.items() if paths}
        if len(self.train) == 1 and files["train"][0].is_dir():
            found = find_splits(files["train"][0])
            files = {
                **files,
                **{split: [path] for split, path in found.items() if split == "train" or split not in files},
            }
        return files

    @classmethod
    def read_files(cls, paths: Sequence[Path], split: str, **options: Any) -> Dataset[Any]:
        """Read files as one split, with empty training and validation splits; options of other formats are ignored."""
        config = cls(**{key: value for key, value in options.items() if key in cls.model_fields})
        notes: list[str] = []
        with naming_page(cls.section):
            for path in paths:
                if path.is_dir() and (splits := find_splits(path)):
                    raise InputError(f"{path}: has several splits: pass one of them, e.g. {[*splits.values()][-1]}")
            examples = config.read_examples(paths, notes)
        return cls.dataset_class({"train": examples[:0], "valid": examples[:0], split: examples}, tuple(notes))

    @abstractmethod
    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> Any:
        """Read the examples of files; notes about skipped ones are appended to `notes`."""

    def finish(self, splits: dict[str, Any]) -> dict[str, Any]:
        """Return the examples of all splits after they have been read."""
        return splits

    def check(self, examples: Any) -> None:
        """Raise if the training examples do not look like those of this format."""

    def hold_out(self, examples: Any) -> tuple[Any, Any]:
        """Split into training and validation examples; examples of equal key stay together."""
        keys = self.keys(examples)
        _, _, what = self.hashed.partition(" ")  # without its article
        kept, held_out = hold_out(range(len(keys)), self.valid_share, keys.__getitem__, what)
        return self.select(examples, kept), self.select(examples, held_out)

    def describe_hold_out(self) -> str:
        """Describe how examples are held out."""
        return f"by a hash of {self.hashed}"

    def keys(self, examples: Any) -> list[str]:
        """Return the text of each example that determines its split, equal for duplicates; none for running text."""
        return [self.key(example) for example in examples]

    def select(self, examples: Any, rows: Sequence[int]) -> Any:
        """Return some of the examples."""
        return [examples[row] for row in rows]

    @staticmethod
    def key(example: Any) -> str:
        """Return the text that determines the split of an example."""
        raise NotImplementedError

    @property
    def train_names(self) -> str:
        """Names of the training files in messages."""
        return " and ".join(self.train)

    def duplicates(self, splits: Mapping[str, Any]) -> Iterator[str]:
        """Yield a warning for each split with examples that are also in a split before it, and for each of these."""
        seen: dict[str, str] = {}
        for split, examples in splits.items():
            keys = self.keys(examples)
            repeated = Counter(seen[key] for key in keys if key in seen)
            for earlier, count in repeated.items():
                yield (
                    f"{count:,} of {len(keys):,} {self.dataset_class.unit} of {split} are also in {earlier}: scores on "
                    "them are too high"
                )
            seen |= {key: split for key in keys if key not in seen}

    @classmethod
    def column_overrides(cls, columns: Mapping[str, str]) -> dict[str, str]:
        """Return recipe keys that select columns of tables by role."""
        return {f"data.column_names.{role}": name for role, name in columns.items()}


@contextmanager
def naming_page(section: str) -> Iterator[None]:
    """Add the page on formats, and its section unless that is "", to the messages of input errors.

    Files of data in memory, which are in the cache, are named as such.
    """
    try:
        yield
    except InputError as error:
        if FORMATS_PAGE in str(error):
            raise
        page = f"{FORMATS_PAGE}{section and f'#{section}'}"
        raise type(error)(
            f"{name_exported(str(error))}; see {page} in the documentation, or --data in qkv train --help"
        ) from None


def user_dataset(kind: str) -> type[UserFiles] | None:
    """Return the dataset of user files with this kind of examples; None if there is none."""
    cls = registered("dataset").get(kind)
    return cls if cls is not None and issubclass(cls, UserFiles) else None


def user_datasets() -> dict[str, type[UserFiles]]:
    """Return all datasets of user files by name."""
    return {name: cls for name, cls in registered("dataset").items() if issubclass(cls, UserFiles)}
