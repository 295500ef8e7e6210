"""Texts in files of several formats, read in parts."""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.datasets.shards import text_source
from qkv.datasets.shards.text_source import Part, TextSource, find_files, open_text
from qkv.errors import InputError

DOCUMENTS = ["One short document.", "Another,\nof two lines.", "Grüße aus Köln 👋", "the last   one"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few bytes, so that short texts have many."""
    monkeypatch.setattr(text_source, "BLOCK_BYTES", 16)
    monkeypatch.setattr(text_source, "WINDOW_BYTES", 8)


def read(source: TextSource, size: int, documents: bool = False) -> list[str]:
    """Read the whole text in parts of `size` bytes."""
    _, parts = source.split(0)
    reader = source.documents if documents else source.pieces
    return [text for group in source.divide(parts, size) for part in group for text in reader(part)]


TEXTS = st.text(st.sampled_from("ab \n\té好👋\u3000\r."), max_size=200)


@given(TEXTS, st.integers(1, 80))
def test_parts_of_a_text_are_the_text(tmp_path_factory: pytest.TempPathFactory, text: str, size: int) -> None:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(text.encode())
    source = TextSource((str(path),))
    assert "".join(read(source, size)) == text
    expected = [document for document in re.split(r"\n\s*\n", text) if document.strip()]
    assert read(source, size, documents=True) == expected


def test_running_text_is_split_before_single_spaces(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("some words  with spaces\nand lines " * 20)
    pieces = read(TextSource((str(path),)), 50)
    assert len(pieces) > 10
    assert all(re.match(r" \S", piece) for piece in pieces[1:])


def test_text_without_spaces_is_split_between_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_source, "SPACES", text_source.SPACES._replace(max_bytes=32))
    path = tmp_path / "text.txt"
    path.write_text("好" * 100)
    pieces = read(TextSource((str(path),)), 40)
    assert len(pieces) > 5
    assert "".join(pieces) == "好" * 100


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts)))
    return path


def write_gz(path: Path, texts: list[str]) -> Path:
    path.write_bytes(gzip.compress(write_jsonl(path.with_suffix(".plain"), texts).read_bytes()))
    return path


def write_zst(path: Path, texts: list[str]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(write_jsonl(path.with_suffix(".plain"), texts).read_bytes())
    return path


def write_array(path: Path, texts: list[str]) -> Path:
    path.write_text(json.dumps([{"text": text, "id": 1} for text in texts], indent=1))
    return path


def write_parquet(path: Path, texts: list[str]) -> Path:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": texts, "id": [*range(len(texts))]}), path, row_group_size=3)
    return path


def write_arrow(path: Path, texts: list[str]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": texts})
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def write_dataset(path: Path, texts: list[str]) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(path))
    return path


WRITERS: dict[str, Callable[[Path, list[str]], Path]] = {
    "texts.jsonl": write_jsonl,
    "texts.ndjson": write_jsonl,
    "texts.json": write_array,
    "texts.jsonl.gz": write_gz,
    "texts.jsonl.zst": write_zst,
    "texts.parquet": write_parquet,
    "texts.arrow": write_arrow,
    "saved": write_dataset,
}


@pytest.mark.parametrize("name", WRITERS)
def test_documents_of_every_format(tmp_path: Path, name: str) -> None:
    texts = [*DOCUMENTS, "", *(f"{text} {number}" for number in range(5) for text in DOCUMENTS)]
    source = TextSource((str(WRITERS[name](tmp_path / name, texts)),))
    expected = [text for text in texts if text]
    for size in (10, 200, 10**6):
        assert read(source, size, documents=True) == expected
        assert "".join(read(source, size)) == "".join(f"{text}\n\n" for text in expected)
    held_out, train = source.split(60)
    head, rest = (list(chain.from_iterable(map(source.documents, parts))) for parts in (held_out, train))
    assert head + rest == expected
    assert 2 <= len(head) <= 4


def test_the_head_of_a_text_is_whole_files_and_the_beginning_of_the_next(tmp_path: Path) -> None:
    for number, size in enumerate((30, 40, 200)):
        (tmp_path / f"{number}.txt").write_text(f"{number} word" * (size // 6))
    source = TextSource(tuple(str(tmp_path / f"{number}.txt") for number in range(3)))
    head, rest = source.split(90)
    assert [(Path(part.path).name, part.begin, part.followed) for part in (*head, *rest)] == [
        ("0.txt", 0, True),
        ("1.txt", 0, True),
        ("2.txt", 0, False),
        ("2.txt", 24, False),
    ]
    texts = ["".join(chain.from_iterable(map(source.pieces, parts))) for parts in (head, rest)]
    assert "".join(texts) == "\n".join((tmp_path / f"{number}.txt").read_text() for number in range(3))


def test_small_files_share_a_group(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text("x" * 100)
    source = TextSource(tuple(map(str, find_files([tmp_path]))))
    groups = source.divide(source.split(0)[1], 500)
    assert [len(group) for group in groups] == [5, 5, 5, 5]
    assert read(source, 500) == ["x" * 100 + "\n"] * 19 + ["x" * 100]


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    names = ["b.txt", "a.txt", "sub/c.txt", ".hidden/d.txt", ".e.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [path.name for path in find_files([tmp_path])] == ["a.txt", "b.txt", "c.txt"]
    assert [path.name for path in find_files([f"{tmp_path}/?.txt", tmp_path / "sub"])] == ["a.txt", "b.txt", "c.txt"]
    assert find_files([tmp_path / "missing.txt"]) == [tmp_path / "missing.txt"]  # reported by its reader
    with pytest.raises(InputError, match="no files found"):
        find_files([f"{tmp_path}/*.jsonl"])


def failing(path: Path, column: str = "text") -> str:
    with pytest.raises(InputError) as error:
        list(open_text(path, column).documents(0, None))
    return str(error.value)


def test_errors_name_the_file_and_the_problem(tmp_path: Path) -> None:
    binary = tmp_path / "a.txt"
    binary.write_bytes(b"good " * 20 + b"\xff\xfe bad")
    assert failing(binary) == f"{binary}: not UTF-8 at byte 100: convert it first, e.g. with iconv"
    binary.write_bytes(b"nul\0")
    assert "contains NUL" in failing(binary)
    lines = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    assert "'body'" in (message := failing(lines, "body"))
    assert "text, id" in message
    lines.write_text('{"text": 3}\n')
    assert "no text in 'text'" in failing(lines)
    lines.write_text('{"text": "a"}\n{"text": \n')
    assert "not valid JSON" in failing(lines)
    compressed = write_gz(tmp_path / "a.jsonl.gz", DOCUMENTS * 50)
    compressed.write_bytes(compressed.read_bytes()[:-20])
    assert f"{compressed}: cannot be read" in failing(compressed)
    compressed.write_bytes(b"not compressed")
    assert f"{compressed}: cannot be read" in failing(compressed)
    assert "no such file" in failing(tmp_path / "missing.txt")


@pytest.mark.parametrize("name", ["texts.parquet", "texts.arrow", "saved"])
def test_errors_in_tables(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, DOCUMENTS)
    assert "'body'" in failing(path, "body")
    file = path if path.is_file() else next(path.glob("*.arrow"))
    file.write_bytes(b"damaged" + file.read_bytes()[:40])
    assert str(path) in failing(path)


def test_a_saved_dataset_with_splits_names_their_folders(tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets")
    saved = tmp_path / "saved"
    data = datasets.Dataset.from_dict({"text": DOCUMENTS})
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(saved))
    assert find_files([saved]) == [saved]
    assert f"{saved / 'train'}" in failing(saved)
    assert list(open_text(saved / "train", "text").documents(0, None)) == DOCUMENTS


def test_a_line_that_is_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_source, "LINES", text_source.LINES._replace(max_bytes=2**10))
    path = write_jsonl(tmp_path / "a.jsonl", ["x" * 5000])
    assert "longer than" in failing(path)


def test_reading_stops_at_the_end_of_a_part(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"first words here " * 10 + b"\xff" * 1000)
    pieces: Iterator[str] = TextSource((str(path),)).pieces(Part(str(path), 0, 100))
    assert "".join(pieces) == ("first words here " * 10)[:101]
