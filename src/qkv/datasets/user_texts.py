"""Datasets of texts read from files of the user."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from qkv.datasets.columns import ACCURACY, BRACKETS, DIALOGUE, EXACT, PAIRS, ROUGE
from qkv.datasets.columns import Column as ResultColumn
from qkv.datasets.dataset import (
    Dataset,
    DialogueDataset,
    LabeledTextDataset,
    PairConfig,
    QuestionDataset,
    StoryDataset,
    TaggedDataset,
    TextDataset,
    TextDatasetConfig,
    TreeDataset,
)
from qkv.datasets.examples.dialogue import Dialogue, parse_dialogues
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.squad import Question, parse_squad, question_of_row
from qkv.datasets.examples.stories import StoryQuestion, parse_stories
from qkv.datasets.examples.tagged import Tagged, parse_columns, parse_conllu, tagged_of_row
from qkv.datasets.examples.trees import Tree, parse_trees
from qkv.datasets.formats.roles import LABELED_TEXT, PAIR, QUESTION, TAGGED
from qkv.datasets.formats.sniff import check_labels, looks_like_texts
from qkv.datasets.formats.tables import CSV, JSON, JSON_LINES, TABLES, as_json_lines
from qkv.datasets.formats.text_files import (
    is_parsed,
    read_lines,
    read_pairs,
    read_table,
    read_text,
    skipped_note,
    table_notes,
)
from qkv.datasets.shards.large_text import LARGE_BYTES, LargeText
from qkv.datasets.shards.text_source import DOCUMENT_END, PlainText, TextSource, find_files, open_text
from qkv.datasets.user_files import UserFiles, naming_page
from qkv.errors import InputError
from qkv.registry import register

COLUMNS_EXPECTED = "expected CoNLL columns: a word and its tag on each line, an empty line after each sentence"

Column = Literal["upos", "xpos", "deprel"]


@register("dataset", "pairs")
class UserPairs(UserFiles, PairConfig):
    """Pairs of texts from a TSV, CSV or JSONL file, or from two parallel text files."""

    summary = "your own pairs, from a TSV, CSV or JSONL file or two text files (data.train)"
    usage = "no training pairs given: --data pairs.tsv, or --data source.txt --data target.txt"
    description = "pairs of a source and a target"
    section = "pairs"
    recipe = "pairs-gru"
    roles = PAIR
    hashed = "the source"
    columns = (*PAIRS, *ROUGE)

    strict: bool = False  # raise for lines with an empty side instead of skipping them

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[Pair]:
        labelled = issubclass(self.dataset_class, LabeledTextDataset)
        pairs, skipped = read_pairs(paths, strict=self.strict, labelled=labelled, columns=self.column_names)
        notes.extend(skipped)
        return pairs

    @staticmethod
    def key(example: Pair) -> str:
        return example.source


@register("dataset", "labelled")
class UserLabeledTexts(UserPairs):
    """Texts with labels from a TSV, CSV or JSONL file, or from two parallel text files."""

    summary = "your own labeled texts, from a TSV, CSV or JSONL file or two text files (data.train)"
    usage = "no texts with labels given: --data texts.tsv, or --data texts.txt --data labels.txt"
    description = "texts with labels"
    section = "labeled-texts"
    recipe = "polarity-bert"
    roles = LABELED_TEXT
    hashed = "the text"
    columns = ACCURACY
    dataset_class = LabeledTextDataset
    target_tokenizer: None = None  # labels are not tokenized

    def check(self, examples: list[Pair]) -> None:
        check_labels([pair.source for pair in examples], [pair.target for pair in examples], self.train_names)


@register("dataset", "text")
class UserText(UserFiles, TextDatasetConfig):
    """Plain text from one or more files."""

    summary = "your own plain text, from one or more files (data.train)"
    usage = "no text given: --data book.txt, once for each file or folder"
    description = "running text"
    section = "plain-text"
    recipe = "shakespeare-gpt"
    columns = (ResultColumn("nats", "nats per token", digits=4, higher_is_better=False),)
    dataset_class = TextDataset

    column: str = "text"  # with the text in JSON Lines, Parquet and Arrow files, and folders of `datasets`
    shards: bool | None = None  # read tokenized shards from the cache; unset: for more than 8 MiB of training text
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None  # processes that tokenize it; unset: one per CPU

    def read(self) -> Dataset[Any]:
        with naming_page(self.section):
            files = self.split_files()
            source = TextSource(tuple(str(path) for path in find_files(files.pop("train"))), self.column)
            large = source.bytes > LARGE_BYTES if self.shards is None else self.shards
            if not large:
                return super().read()
            splits = {split: self.read_examples(paths, []) for split, paths in files.items()}
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

    def keys(self, examples: str) -> list[str]:
        return []

    def hold_out(self, examples: str) -> tuple[str, str]:
        cut = round((1 - self.valid_share) * len(examples))
        return examples[:cut], examples[cut:]

    def describe_hold_out(self) -> str:
        return "at the end of the text"

    @classmethod
    def column_overrides(cls, columns: Mapping[str, str]) -> dict[str, str]:
        if set(columns) - {"text"}:
            raise InputError(f"--column: running text has the column text only, not {', '.join(columns)}")
        return {"data.column": columns["text"]} if columns else {}


@register("dataset", "tagged")
class UserTagged(UserFiles, TextDatasetConfig):
    """Tagged sentences in CoNLL columns or CoNLL-U, or in a CSV or JSONL file."""

    summary = "your own tagged sentences, in CoNLL columns, CoNLL-U, CSV or JSONL (data.train)"
    usage = "no tagged sentences given: --data train.conllu, or a file with one word and tag per line"
    description = "words with tags"
    section = "tagged-words"
    recipe = "ewt-lstm"
    roles = TAGGED
    hashed = "the sentence"
    columns = (*ACCURACY, ResultColumn("f1", "F1, %", 100))
    dataset_class = TaggedDataset

    column: Column = "upos"  # CoNLL-U column used as tags

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[Tagged]:
        sentences = [sentence for path in paths for sentence in self._read_path(path, notes)]
        if not sentences:
            raise InputError(f"{' and '.join(map(str, paths))}: no sentences found")
        return sentences

    def _read_path(self, path: Path, notes: list[str]) -> list[Tagged]:
        if path.suffix.lower() not in (CSV, JSON, *JSON_LINES):
            return _read_conll(path, self.column)
        table = read_table(path, TAGGED, self.column_names)
        notes += table_notes(table, str(path))
        sentences, empty = [], []
        for row in table.rows:
            sentence = tagged_of_row(row.cells["tokens"], row.cells["tags"], f"{path}: line {row.number}")
            sentences.append(sentence) if sentence is not None else empty.append(row.number)
        notes += skipped_note(str(path), empty, "no words")
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
class UserQuestions(UserFiles, TextDatasetConfig):
    """Extractive question answering data in SQuAD format, or in a CSV, TSV or JSONL file."""

    summary = "your own extractive question answering data, in SQuAD format, CSV or JSONL (data.train)"
    usage = "no questions given: --data train.json in SQuAD's format, or a table with question, context and answer"
    description = "questions with answers in a text"
    section = "questions"
    recipe = "questions-bert"
    roles = QUESTION
    hashed = "the text that they are about"
    columns = (EXACT, ResultColumn("f1", "F1 of words, %", 100))
    dataset_class = QuestionDataset

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[Question]:
        return [question for path in paths for question in self._read_path(path, notes)]

    def _read_path(self, path: Path, notes: list[str]) -> list[Question]:
        if path.suffix.lower() not in TABLES and not (text := read_text(path)).lstrip().startswith("["):
            return parse_squad(text, str(path))
        table = read_table(path, QUESTION, self.column_names)
        notes += table_notes(table, str(path))
        filled = [row for row in table.rows if any(row.cells.values())]
        notes += skipped_note(str(path), [row.number for row in table.rows if row not in filled], "nothing")
        questions = [question_of_row(row.cells, f"{path}: line {row.number}") for row in filled]
        if unanswerable := sum(not question.answers for question in questions):
            notes.append(f"{path}: {unanswerable:,} question(s) have no answer and are read as unanswerable")
        if not questions:
            raise InputError(f"{path}: no questions found")
        return questions

    @staticmethod
    def key(example: Question) -> str:
        return example.text  # all questions about a text stay together


@register("dataset", "trees")
class UserTrees(UserFiles, TextDatasetConfig):
    """Constituency trees in brackets, one on each line."""

    summary = "your own constituency trees in brackets, one on each line (data.train)"
    usage = "no trees given: set data.train to a list of files with lines such as (TOP (S (NP (PRP It)) (VP (VBZ is))))"
    description = "trees in brackets"
    section = "trees"
    recipe = "gum-parse-gru"
    hashed = "the sentence"
    columns = BRACKETS
    dataset_class = TreeDataset

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[Tree]:
        return [tree for path in paths for tree in parse_trees(read_lines(path), str(path))]

    @staticmethod
    def key(example: Tree) -> str:
        return example.text


@register("dataset", "dialogues")
class UserDialogues(UserFiles, TextDatasetConfig):
    """Dialogues in JSON Lines, each with a list of turns or messages."""

    summary = "your own dialogues, in JSON Lines with a list of turns or messages each (data.train)"
    usage = 'no dialogues given: --data dialogues.jsonl with lines such as {"turns": ["Hello!", "Hi!"]}'
    description = "dialogues by turns"
    section = "dialogues"
    recipe = "chitchat-gru"
    hashed = "the turns"
    columns = DIALOGUE
    dataset_class = DialogueDataset

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[Dialogue]:
        files = ((as_json_lines(read_lines(path), path.suffix, str(path))[0], str(path)) for path in paths)
        return [dialogue for lines, name in files for dialogue in parse_dialogues(lines, name, notes)]

    @staticmethod
    def key(example: Dialogue) -> str:
        return example.text


@register("dataset", "stories")
class UserStories(UserFiles, TextDatasetConfig):
    """Stories with questions, in the format of bAbI."""

    summary = "your own stories with questions, in the format of bAbI (data.train)"
    usage = "no stories given: --data stories.txt, with numbered lines and a tab before each answer"
    description = "stories with questions"
    section = "stories"
    recipe = "babi-memory"
    hashed = "the story"
    columns = (ResultColumn("error", "mean error of the tasks, %", 100, higher_is_better=False),)
    dataset_class = StoryDataset

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> list[StoryQuestion]:
        stories = (story for path in paths for story in parse_stories(read_lines(path), str(path)))
        return [question for story in stories for question in story]

    def keys(self, examples: list[StoryQuestion]) -> list[str]:
        """Return the text of the last question of each story: its questions stay together."""
        keys: list[str] = []
        for question, following in zip(reversed(examples), [None, *reversed(examples)], strict=False):
            count = len(question.sentences)
            same = following is not None and following.sentences[:count] == question.sentences
            keys.append(keys[-1] if same else question.text)
        return keys[::-1]


def _read_conll(path: Path, column: str) -> list[Tagged]:
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
