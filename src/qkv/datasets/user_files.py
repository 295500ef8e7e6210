"""Datasets read from files of the user."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Strict

from qkv.datasets.columns import ACCURACY, BRACKETS, EXACT, PAIRS, ROUGE
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
    TreeDataset,
)
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.speech import Recordings, SpeechDataset
from qkv.datasets.examples.squad import Question, parse_squad
from qkv.datasets.examples.tagged import Tagged, parse_columns, parse_conllu
from qkv.datasets.examples.trees import Tree, parse_trees
from qkv.datasets.formats.audio import WavFile
from qkv.datasets.formats.sniff import check_labels, looks_like_texts, looks_tagged
from qkv.datasets.formats.tables import TABLES
from qkv.datasets.formats.text_files import hold_out, is_parsed, read_lines, read_pairs, read_text
from qkv.datasets.shards.large_text import LARGE_BYTES, LargeText
from qkv.datasets.shards.text_source import COMPRESSIONS, DOCUMENT_END, PlainText, TextSource, find_files, open_text
from qkv.errors import InputError
from qkv.registry import lookup, register

COLUMNS_EXPECTED = "expected CoNLL columns: a word and its tag on each line, an empty line after each sentence"

Column = Literal["upos", "xpos", "deprel"]
FilePaths = Annotated[tuple[FilePath, ...], Strict(False)]


class UserFiles(TextDatasetConfig):
    """Files of the user: training files, and optionally validation and test files."""

    license = "yours"
    usage: ClassVar[str]  # message if no training files are set

    train: FilePaths = ()  # training files
    valid: FilePaths = ()  # validation files; unset: valid_share of the training examples is held out
    test: FilePaths = ()  # test files
    valid_share: Annotated[float, Field(gt=0, lt=1)] = 0.05  # share of the training examples held out

    def read(self) -> Dataset[Any]:
        if not self.train:
            raise InputError(self.usage)
        files = {"train": self.train, "valid": self.valid, "test": self.test}
        notes: list[str] = []
        splits = {split: self.read_examples([*map(Path, paths)], notes) for split, paths in files.items() if paths}
        self.check(splits["train"])
        if "valid" not in splits:
            splits["train"], splits["valid"] = self.hold_out(splits["train"])
        return self.dataset_class(splits, tuple(notes))

    @classmethod
    def read_files(cls, paths: Sequence[Path], split: str, **options: Any) -> Dataset[Any]:
        """Read files as one split, with empty training and validation splits; options of other formats are ignored."""
        config = cls(**{key: value for key, value in options.items() if key in cls.model_fields})
        notes: list[str] = []
        examples = config.read_examples(paths, notes)
        return cls.dataset_class({"train": examples[:0], "valid": examples[:0], split: examples}, tuple(notes))

    @abstractmethod
    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> Any:
        """Read the examples of files; notes about skipped ones are appended to `notes`."""

    def check(self, examples: Any) -> None:
        """Raise if the training examples do not look like those of this format."""

    def hold_out(self, examples: Any) -> tuple[Any, Any]:
        """Split into training and validation examples; examples of equal `key` stay together."""
        return hold_out(examples, self.valid_share, self.key)

    @staticmethod
    def key(example: Any) -> str:
        """Return the text that determines the split of an example."""
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

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[Pair]:
        labelled = issubclass(self.dataset_class, LabeledTextDataset)
        pairs, skipped = read_pairs(paths, strict=self.strict, labelled=labelled)
        notes.extend(skipped)
        return pairs

    @staticmethod
    def key(example: Pair) -> str:
        return example.source


@register("dataset", "labelled")
class UserLabeledTexts(UserPairs):
    """Texts with labels from a TSV, CSV or JSONL file, or from two parallel text files."""

    summary = "your own labelled texts, from a TSV, CSV or JSONL file or two text files (data.train)"
    usage = "no texts with labels given: --data texts.tsv, or --data texts.txt --data labels.txt"
    columns = ACCURACY
    dataset_class = LabeledTextDataset
    target_tokenizer: None = None  # labels are not tokenized

    def check(self, examples: list[Pair]) -> None:
        check_labels([pair.source for pair in examples], [pair.target for pair in examples], self.train_names)


@register("dataset", "text")
class UserText(UserFiles):
    """Plain text from one or more files."""

    summary = "your own plain text, from one or more files (data.train)"
    usage = "no text given: --data book.txt, once for each file or folder"
    columns = (ResultColumn("nats", "nats per token", digits=4, higher_is_better=False),)
    dataset_class = TextDataset

    column: str = "text"  # with the text in JSON Lines, Parquet and Arrow files, and folders of `datasets`
    shards: bool | None = None  # read tokenized shards from the cache; unset: for more than 8 MiB of training text
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None  # processes that tokenize it; unset: one per CPU

    def read(self) -> Dataset[Any]:
        source = TextSource(tuple(str(path) for path in find_files(self.train)), self.column)
        large = source.bytes > LARGE_BYTES if self.shards is None else self.shards
        if not large or not self.train:
            return super().read()
        others = {split: files for split, files in (("valid", self.valid), ("test", self.test)) if files}
        splits = {split: self.read_examples([*map(Path, paths)], []) for split, paths in others.items()}
        return LargeText.open(source, splits, self.valid_share, self.workers)

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> str:
        text = "\n".join(self._read_text(path) for path in find_files(paths))
        if not text.strip():
            raise InputError(f"{' and '.join(map(str, paths))}: is empty")
        return text

    def _read_text(self, path: Path) -> str:
        file = open_text(path, self.column)
        if type(file) is PlainText and file.extent is not None:  # neither JSON Lines nor compressed
            return read_text(path)
        return "".join(file.pieces(0, None)).removesuffix(DOCUMENT_END)

    def hold_out(self, examples: str) -> tuple[str, str]:
        cut = round((1 - self.valid_share) * len(examples))
        return examples[:cut], examples[cut:]


@register("dataset", "tagged")
class UserTagged(UserFiles):
    """Tagged sentences in CoNLL columns or CoNLL-U."""

    summary = "your own tagged sentences, in CoNLL columns or CoNLL-U (data.train)"
    usage = "no tagged sentences given: --data train.conllu, or a file with one word and tag per line"
    columns = (*ACCURACY, ResultColumn("f1", "F1, %", 100))
    dataset_class = TaggedDataset

    column: Column = "upos"  # CoNLL-U column used as tags

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[Tagged]:
        sentences = [sentence for path in paths for sentence in _read_tagged(path, self.column)]
        if not sentences:
            raise InputError(f"{' and '.join(map(str, paths))}: no sentences found")
        return sentences

    def check(self, examples: list[Tagged]) -> None:
        words = [word for sentence in examples for word in sentence.words]
        tags = [tag for sentence in examples for tag in sentence.tags]
        check_labels(words, tags, self.train_names, "word")
        if not self.valid and len(examples) == 1:
            raise InputError(
                f"{self.train_names}: contains a single sentence of {len(words):,} words, so none can be held out for "
                f"validation; {COLUMNS_EXPECTED}"
            )

    @staticmethod
    def key(example: Tagged) -> str:
        return example.text


@register("dataset", "questions")
class UserQuestions(UserFiles):
    """Extractive question answering data in SQuAD format."""

    summary = "your own extractive question answering data, in SQuAD format (data.train)"
    usage = "no questions given: set data.train to a list of files in SQuAD's format, such as train.json"
    columns = (EXACT, ResultColumn("f1", "F1 of words, %", 100))
    dataset_class = QuestionDataset

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[Question]:
        return [question for path in paths for question in parse_squad(read_text(path), str(path))]

    @staticmethod
    def key(example: Question) -> str:
        return example.text  # all questions about a text stay together


@register("dataset", "speech")
class UserSpeech(UserFiles):
    """WAV files, listed with their texts in a TSV, CSV or JSONL file."""

    summary = "your own recordings: WAV files, listed with their texts in a TSV file (data.train)"
    usage = "no recordings given: --data recordings.tsv, with the path of a WAV file, a tab and its text on each line"
    columns = (ResultColumn("wer", "word error rate, %", 100, higher_is_better=False), EXACT)
    dataset_class = SpeechDataset

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> Recordings:
        pairs, skipped = read_pairs(paths)
        notes.extend(skipped)
        files = [WavFile.open(paths[0].parent / pair.source) for pair in pairs]
        for file in files:
            if file.rate != files[0].rate:
                raise InputError(
                    f"{file.path}: has {file.rate:,} Hz, but {files[0].path} {files[0].rate:,} Hz: resample one of them"
                )
        return Recordings(tuple(files), tuple(pair.target for pair in pairs))

    def hold_out(self, examples: Recordings) -> tuple[Recordings, Recordings]:
        pairs = list(zip(examples.files, examples.texts, strict=True))
        parts = hold_out(pairs, self.valid_share, lambda pair: str(pair[0].path))
        train, valid = (Recordings(*map(tuple, zip(*part, strict=True))) for part in parts)
        return train, valid


@register("dataset", "trees")
class UserTrees(UserFiles):
    """Constituency trees in brackets, one on each line."""

    summary = "your own constituency trees in brackets, one on each line (data.train)"
    usage = "no trees given: set data.train to a list of files with lines such as (TOP (S (NP (PRP It)) (VP (VBZ is))))"
    columns = BRACKETS
    dataset_class = TreeDataset

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[Tree]:
        return [tree for path in paths for tree in parse_trees(read_lines(path), str(path))]

    @staticmethod
    def key(example: Tree) -> str:
        return example.text


def user_dataset(kind: str) -> type[UserFiles] | None:
    """Return the dataset of user files with this kind of examples; None if there is none."""
    kinds = ("pairs", "labelled", "text", "tagged", "questions", "speech", "trees")
    cls = lookup("dataset", kind) if kind in kinds else None
    return cls if cls is not None and issubclass(cls, UserFiles) else None


def infer_kind(paths: Sequence[Path]) -> str:
    """Infer the kind of data from the names and contents of user files."""
    suffix = paths[0].suffix.lower()
    if paths[0].is_dir() or suffix in (*COMPRESSIONS, ".parquet", ".arrow"):
        return "text"
    if len(paths) == 2 or suffix in TABLES:
        return "pairs"
    if is_parsed(paths[0]):
        return "tagged"
    if suffix == ".json":
        return "questions"
    text = PlainText(paths[0], "")
    lines = read_lines(text.path) if text.bytes <= LARGE_BYTES else next(text.pieces(0, None)).split("\n")
    if looks_tagged(lines):
        return "tagged"
    return "pairs" if any("\t" in line for line in lines) else "text"


def _read_tagged(path: Path, column: str) -> list[Tagged]:
    if is_parsed(path):
        return parse_conllu(read_lines(path), str(path), column)
    if column != "upos":
        raise InputError(f"{path}: data.column = {column!r} requires CoNLL-U files, named *.conllu")
    sentences = parse_columns(read_lines(path), str(path))
    if looks_like_texts([word for sentence in sentences for word in sentence.words]):
        raise InputError(
            f"{path}: has texts of several words in the first column, perhaps with labels; {COLUMNS_EXPECTED}"
        )
    return sentences
