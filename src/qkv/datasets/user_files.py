"""Datasets read from files of the user."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, Strict

from qkv.datasets.columns import ACCURACY, EXACT, PAIRS, ROUGE
from qkv.datasets.columns import Column as ResultColumn
from qkv.datasets.dataset import (
    Dataset,
    FilePath,
    LabeledTextDataset,
    PairConfig,
    QuestionDataset,
    TaggedDataset,
    TextDataset,
    TextDatasetConfig,
)
from qkv.datasets.sniff import check_labels, looks_like_texts, looks_tagged
from qkv.datasets.squad import Question, parse_squad
from qkv.datasets.tables import TABLES
from qkv.datasets.tagged import Tagged, parse_columns, parse_conllu
from qkv.datasets.text_files import hold_out, is_parsed, read_lines, read_pairs, read_text
from qkv.errors import InputError
from qkv.registry import lookup, register

COLUMNS_EXPECTED = "expected CoNLL columns: a word and its tag on each line, an empty line after each sentence"

Column = Literal["upos", "xpos", "deprel"]
FilePaths = Annotated[tuple[FilePath, ...], Strict(False)]
Example = TypeVar("Example")


class UserFiles(TextDatasetConfig):
    """Files of the user: training files, and optionally validation and test files."""

    license = "yours"
    usage: ClassVar[str]  # message if no training files are set

    train: FilePaths = ()  # training files
    valid: FilePaths = ()  # validation files; unset: valid_share of the training examples is held out
    test: FilePaths = ()  # test files
    valid_share: Annotated[float, Field(gt=0, lt=1)] = 0.05  # share of the training examples held out

    def read_splits(self, read: Callable[[Sequence[Path]], list[Example]]) -> dict[str, list[Example]]:
        """Read the files of each split."""
        if not self.train:
            raise InputError(self.usage)
        files = {"train": self.train, "valid": self.valid, "test": self.test}
        return {split: read([Path(path) for path in paths]) for split, paths in files.items() if paths}

    def hold_out_valid(self, splits: dict[str, list[Example]], key: Callable[[Example], str]) -> None:
        """Hold out validation examples if there are no validation files; examples of equal key stay together."""
        if "valid" not in splits:
            splits["train"], splits["valid"] = hold_out(splits["train"], self.valid_share, key)

    @classmethod
    def read_files(cls, paths: Sequence[Path], split: str, **options: Any) -> Dataset[Any]:
        """Read files as one split, with empty training and validation splits."""
        raise NotImplementedError

    @property
    def train_names(self) -> str:
        """Names of the training files in messages."""
        return " and ".join(self.train)


@register("dataset", "pairs")
class UserPairs(UserFiles, PairConfig):
    """Pairs of texts from a TSV, CSV or JSONL file, or from two parallel text files."""

    summary = "your own pairs, from a TSV, CSV or JSONL file or two text files (data.train)"
    usage = "no training pairs given: --data pairs.tsv, or --data source.txt --data target.txt"
    columns = (*PAIRS, *ROUGE)

    strict: bool = False  # raise for lines with an empty side instead of skipping them

    def read(self) -> Dataset[Any]:
        notes: list[str] = []
        splits = self.read_splits(lambda paths: self._read(paths, notes, self.strict))
        self._check(splits)
        self.hold_out_valid(splits, lambda pair: pair.source)
        return self.dataset_class(splits, tuple(notes))

    def _check(self, splits: dict[str, Any]) -> None:
        """Raise if the files do not look like examples of this dataset."""

    @classmethod
    def _read(cls, paths: Sequence[Path], notes: list[str], strict: bool) -> list[Any]:
        pairs = read_pairs(paths, strict=strict, labelled=issubclass(cls.dataset_class, LabeledTextDataset))
        notes.extend(pairs.notes)
        return pairs.pairs

    @classmethod
    def read_files(cls, paths: Sequence[Path], split: str, *, strict: bool = False, **options: Any) -> Dataset[Any]:
        notes: list[str] = []
        pairs = cls._read(paths, notes, strict)
        return cls.dataset_class({"train": [], "valid": [], split: pairs}, tuple(notes))


@register("dataset", "labelled")
class UserLabeledTexts(UserPairs):
    """Texts with labels from a TSV, CSV or JSONL file, or from two parallel text files."""

    summary = "your own labelled texts, from a TSV, CSV or JSONL file or two text files (data.train)"
    usage = "no texts with labels given: --data texts.tsv, or --data texts.txt --data labels.txt"
    columns = ACCURACY
    dataset_class = LabeledTextDataset
    target_tokenizer: None = None  # labels are not tokenized

    def _check(self, splits: dict[str, Any]) -> None:
        texts, labels = ([getattr(pair, side) for pair in splits["train"]] for side in ("source", "target"))
        check_labels(texts, labels, self.train_names)


@register("dataset", "text")
class UserText(UserFiles):
    """Plain text from one or more files."""

    summary = "your own plain text, from one or more files (data.train)"
    usage = "no text given: --data book.txt, once for each file"
    columns = (ResultColumn("nats", "nats per token", digits=4, higher_is_better=False),)
    dataset_class = TextDataset

    def read(self) -> TextDataset:
        texts = {split: text for split, (text,) in self.read_splits(lambda paths: [_read_texts(paths)]).items()}
        if "valid" not in texts:  # hold out the end of the text
            cut = round((1 - self.valid_share) * len(texts["train"]))
            texts["train"], texts["valid"] = texts["train"][:cut], texts["train"][cut:]
        return TextDataset(texts)

    @classmethod
    def read_files(cls, paths: Sequence[Path], split: str, **options: Any) -> TextDataset:
        return TextDataset({"train": "", "valid": "", split: _read_texts(paths)})


@register("dataset", "tagged")
class UserTagged(UserFiles):
    """Tagged sentences in CoNLL columns or CoNLL-U."""

    summary = "your own tagged sentences, in CoNLL columns or CoNLL-U (data.train)"
    usage = "no tagged sentences given: --data train.conllu, or a file with one word and tag per line"
    columns = (*ACCURACY, ResultColumn("f1", "F1, %", 100))
    dataset_class = TaggedDataset

    column: Column = "upos"  # CoNLL-U column used as tags

    def read(self) -> TaggedDataset:
        splits = self.read_splits(lambda paths: _read_tagged(paths, self.column))
        words = [word for sentence in splits["train"] for word in sentence.words]
        tags = [tag for sentence in splits["train"] for tag in sentence.tags]
        check_labels(words, tags, self.train_names, "word")
        if "valid" not in splits and len(splits["train"]) == 1:
            raise InputError(
                f"{self.train_names}: contains a single sentence of {len(words):,} words, so none can be held out for "
                f"validation; {COLUMNS_EXPECTED}"
            )
        self.hold_out_valid(splits, lambda sentence: " ".join(sentence.words))
        return TaggedDataset(splits)

    @classmethod
    def read_files(cls, paths: Sequence[Path], split: str, *, column: str = "upos", **options: Any) -> TaggedDataset:
        return TaggedDataset({"train": [], "valid": [], split: _read_tagged(paths, column)})


@register("dataset", "questions")
class UserQuestions(UserFiles):
    """Extractive question answering data in SQuAD format."""

    summary = "your own extractive question answering data, in SQuAD format (data.train)"
    usage = "no questions given: set data.train to a list of files in SQuAD's format, such as train.json"
    columns = (EXACT, ResultColumn("f1", "F1 of words, %", 100))
    dataset_class = QuestionDataset

    def read(self) -> QuestionDataset:
        splits = self.read_splits(_read_questions)
        self.hold_out_valid(splits, lambda question: question.text)  # all questions about a text stay together
        return QuestionDataset(splits)

    @classmethod
    def read_files(cls, paths: Sequence[Path], split: str, **options: Any) -> QuestionDataset:
        return QuestionDataset({"train": [], "valid": [], split: _read_questions(paths)})


def user_dataset(kind: str) -> type[UserFiles] | None:
    """Return the dataset of user files with this kind of examples; None if there is none."""
    cls = lookup("dataset", kind) if kind in ("pairs", "labelled", "text", "tagged", "questions") else None
    return cls if cls is not None and issubclass(cls, UserFiles) else None


def infer_kind(paths: Sequence[Path]) -> str:
    """Infer the kind of data from the names and contents of user files."""
    suffix = paths[0].suffix.lower()
    if len(paths) == 2 or suffix in TABLES:
        return "pairs"
    if is_parsed(paths[0]):
        return "tagged"
    if suffix == ".json":
        return "questions"
    lines = read_lines(paths[0])
    if looks_tagged(lines):
        return "tagged"
    return "pairs" if any("\t" in line for line in lines) else "text"


def _read_texts(paths: Sequence[Path]) -> str:
    text = "\n".join(read_text(path) for path in paths)
    if not text.strip():
        raise InputError(f"{' and '.join(map(str, paths))}: is empty")
    return text


def _read_tagged(paths: Sequence[Path], column: str) -> list[Tagged]:
    tagged: list[Tagged] = []
    for path in paths:
        if is_parsed(path):
            tagged.extend(parse_conllu(read_lines(path), str(path), column))
        elif column == "upos":
            sentences = parse_columns(read_lines(path), str(path))
            if looks_like_texts([word for sentence in sentences for word in sentence.words]):
                raise InputError(
                    f"{path}: has texts of several words in the first column, perhaps with labels; {COLUMNS_EXPECTED}"
                )
            tagged.extend(sentences)
        else:
            raise InputError(f"{path}: data.column = {column!r} requires CoNLL-U files, named *.conllu")
    if not tagged:
        raise InputError(f"{' and '.join(map(str, paths))}: no sentences found")
    return tagged


def _read_questions(paths: Sequence[Path]) -> list[Question]:
    return [question for path in paths for question in parse_squad(read_text(path), str(path))]
