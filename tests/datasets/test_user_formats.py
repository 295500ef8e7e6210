"""Every format of a user's own data, altered in many ways: an input error of one short line, or usable data."""

import codecs
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from qkv.cli.commands.encoders import _read_questions
from qkv.cli.texts import read_texts
from qkv.datasets.dataset import (
    CaptionDataset,
    Dataset,
    PairDataset,
    QuestionDataset,
    TaggedDataset,
    TextDataset,
)
from qkv.errors import InputError
from qkv.tasks.base.task import train_tokenizer
from tests.datasets.build import dataset, load

WORD_LIST = ("rain", "wind", "snow", "café", "夏")
TEXTS = [f"{WORD_LIST[number % 5]} falls {number} times, {WORD_LIST[number % 3]}" for number in range(12)]
TREE = "".join(
    f"# text = {word} falls\n1\t{word}\t_\tNOUN\tNN\t_\t2\tnsubj\t_\t_\n2\tfalls\t_\tVERB\tVB\t_\t0\troot\t_\t_\n\n"
    for word in WORD_LIST
)
QUESTIONS = {
    "data": [
        {"paragraphs": [{"context": text, "qas": [
            {"question": "What falls?", "answers": [{"text": text.split()[0], "answer_start": 0}]},
            {"question": "Why?", "answers": [], "is_impossible": True},
        ]}]}
        for text in TEXTS
    ]
}  # fmt: skip
PICTURES = [f"{number}.png" for number in range(12)]
COCO = {
    "images": [{"id": number, "file_name": name} for number, name in enumerate(PICTURES)],
    "annotations": [{"image_id": number, "caption": text} for number, text in enumerate(TEXTS)],
}


def file(name: str, kind: str) -> Callable[[Path, bytes], Dataset[Any]]:
    def load_file(folder: Path, content: bytes) -> Dataset[Any]:
        (folder / name).write_bytes(content)
        return load(kind, train=(str(folder / name),))

    return load_file


def parallel(folder: Path, content: bytes) -> Dataset[Any]:
    (folder / "source.txt").write_bytes(content)
    (folder / "target.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return load("pairs", train=(str(folder / "source.txt"), str(folder / "target.txt")))


def captions(name: str, kind: str, pictures: str) -> Callable[[Path, bytes], Dataset[Any]]:
    def load_folder(folder: Path, content: bytes) -> Dataset[Any]:
        for part in {str(Path(name).parent), *pictures.split()}:
            (folder / part).mkdir(exist_ok=True)
        for part in pictures.split():
            for picture in PICTURES:
                Image.new("RGB", (2, 2)).save(folder / part / picture)
        (folder / name).write_bytes(content)
        if kind == "coco":
            (folder / "annotations/captions_val2017.json").write_text(json.dumps(COCO))
        return load(kind, folder=str(folder), side=2)

    return load_folder


def prompts(folder: Path, content: bytes) -> Dataset[Any]:
    (folder / "prompts.txt").write_bytes(content)
    return TextDataset({"train": "\n".join(read_texts(None, folder / "prompts.txt", strict=True))})


def asked(folder: Path, content: bytes) -> Dataset[Any]:
    (folder / "asked.jsonl").write_bytes(content)
    return QuestionDataset({"train": _read_questions(None, None, folder / "asked.jsonl")})


LABELS = [f"{text}\t{'dry' if number % 3 else 'wet'}" for number, text in enumerate(TEXTS)]
FORMATS: dict[str, tuple[str, Callable[[Path, bytes], Dataset[Any]]]] = {
    "pairs": ("\n".join(f"{text}\t{text[::-1]}" for text in TEXTS), file("a.tsv", "pairs")),
    "parallel": ("\n".join(TEXTS), parallel),
    "labelled": ("\n".join(LABELS), file("a.tsv", "labelled")),
    "csv": ("\n".join(f'"{row}"'.replace("\t", '","') for row in LABELS), file("a.csv", "labelled")),
    "jsonl": (
        "\n".join(json.dumps(dict(zip(("text", "label"), row.split("\t"), strict=True))) for row in LABELS),
        file("a.jsonl", "labelled"),
    ),
    "columns": ("".join(f"{word}\tNOUN\nfalls\tVERB\n\n" for word in WORD_LIST), file("a.conll", "tagged")),
    "conllu": (TREE, file("a.conllu", "tagged")),
    "questions": (json.dumps(QUESTIONS, indent=0), file("a.json", "questions")),
    "text": ("\n".join(TEXTS), file("a.txt", "text")),
    "prompts": ("\n".join(TEXTS), prompts),
    "asked": ("\n".join(json.dumps({"question": "What?", "text": text}) for text in TEXTS), asked),
    "flickr table": (
        "\n".join(f"{name},{text.replace(',', '')}" for name, text in zip(PICTURES, TEXTS, strict=True)),
        captions("captions.txt", "flickr8k", "Images"),
    ),
    "flickr tokens": (
        "\n".join(f"{name}#0\t{text}" for name, text in zip(PICTURES, TEXTS, strict=True)),
        captions("Flickr8k.token.txt", "flickr8k", "Images"),
    ),
    "coco": (
        json.dumps(COCO, indent=0),
        captions("annotations/captions_train2017.json", "coco", "train2017 val2017"),
    ),
}  # fmt: skip


def mutations(text: str, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    data = text.encode()
    middle = data.index(b"\n", len(data) // 2)
    yield "as it is", data
    yield "empty", b""
    yield "blank lines", b"\n \n\t\n\n"
    yield "one character", b"x"
    yield "byte order mark", codecs.BOM_UTF8 + data
    yield "two byte order marks", codecs.BOM_UTF8 * 2 + data
    yield "CR LF", data.replace(b"\n", b"\r\n")
    yield "CR", data.replace(b"\n", b"\r")
    yield "mixed line ends", data.replace(b"\n", b"\r", 3)
    yield "UTF-16", text.encode("utf-16")
    yield "UTF-16 without a mark", text.encode("utf-16-le")
    yield "Latin-1", text.encode("latin-1", errors="replace")
    yield "no tabs", data.replace(b"\t", b" ")
    yield "many tabs", data.replace(b" ", b"\t")
    yield "quotes", data.replace(b" ", b'"')
    yield "half", data[: len(data) // 2]
    yield "twice", data + b"\n" + data
    yield "reversed lines", b"\n".join(reversed(data.split(b"\n")))
    yield "a comment", b"# comment\n" + data
    yield "deep", b"[" * 200_000 + data
    yield "deep objects", b'{"data":' * 20_000
    yield "a long first line", b"a" * 2**21 + b"\n" + data
    yield "a long line of columns", b"\t".join([b"a"] * 2**19) + b"\n" + data
    yield "a long line alone", b"a" * 2**21
    for name, inserted in {
        "NUL": b"\0",
        "surrogate": b"\xed\xa0\x80",
        "escaped surrogate": b"\\ud800",
        "control characters": b"\x1b[31m\x85\x0b\x0c",
        "line separator": "\u2028".encode(),
        "long": b"b" * 2**20,
        "digits": b"9" * 6000,
        "blank lines": b"\n\n\n",
        "path": b"../../etc/passwd",
    }.items():
        for offset in (0, middle, middle - 1, middle + 1):
            yield f"{name} at {offset}", data[:offset] + inserted + data[offset:]
        word = data.find(b"falls")
        yield f"{name} in a word", data[:word] + inserted + data[word:]
    for number in range(20):
        altered = bytearray(data)
        for _ in range(1 + number):
            altered[rng.randrange(len(altered))] = rng.choice(b'\t\n\r "{}[],:#0a\xff')
        yield f"altered {number}", bytes(altered)


def texts_of(loaded: Dataset[Any]) -> Iterator[str]:
    for examples in loaded.splits.values():
        if isinstance(loaded, PairDataset):
            yield from (text for pair in examples for text in (pair.source, pair.target))
        elif isinstance(loaded, TextDataset):
            yield examples
        elif isinstance(loaded, TaggedDataset):
            yield from (word for sentence in examples for word in (*sentence.words, *sentence.tags))
        elif isinstance(loaded, CaptionDataset):
            yield from (text for texts in examples.texts for text in texts)
        else:
            assert isinstance(loaded, QuestionDataset)
            yield from (text for question in examples for text in (question.question, question.text))


@pytest.mark.parametrize("name", FORMATS)
def test_corrupted_files_are_read_or_rejected_with_a_short_error(name: str, tmp_path: Path) -> None:
    text, load_format = FORMATS[name]
    outcomes = {}
    for number, (mutation, data) in enumerate(mutations(text, random.Random(0))):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            loaded = load_format(folder, data)
        except InputError as error:
            message = str(error).replace(str(folder), "")
            assert len(message) < 400, (mutation, len(message))
            assert message.isprintable(), (mutation, message)
            outcomes[mutation] = "refused"
            continue
        outcomes[mutation] = "read"
        texts = list(texts_of(loaded))
        assert any(one.strip() for one in texts), mutation
        assert b"\0" not in "".join(texts).encode(), mutation  # which raises for half of a surrogate pair
        assert len(loaded.fingerprint) == 64
        if "valid" in loaded.splits and isinstance(loaded, PairDataset):
            assert train_tokenizer(loaded, dataset("pairs")) is not None
    for mutation in ("as it is", "byte order mark", "CR LF"):
        assert outcomes[mutation] == "read", mutation
    for mutation in ("empty", "blank lines", "UTF-16", "UTF-16 without a mark", "NUL in a word", "surrogate in a word"):
        assert outcomes[mutation] == "refused", mutation


@pytest.mark.parametrize("name", ["pairs", "parallel", "labelled", "csv", "columns", "flickr tokens"])
def test_lines_may_end_with_carriage_returns_alone(name: str, tmp_path: Path) -> None:
    text, load_format = FORMATS[name]
    found = []
    for ending in ("\n", "\r"):
        folder = tmp_path / str(ord(ending))
        folder.mkdir()
        found.append(load_format(folder, text.replace("\n", ending).encode()).fingerprint)
    assert found[0] == found[1]
