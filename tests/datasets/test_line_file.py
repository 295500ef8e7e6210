"""Text files read in chunks: the lines equal those of the whole file."""

from pathlib import Path

import pytest

from qkv.datasets.formats import text_files
from qkv.datasets.formats.text_files import LineFile, read_lines
from qkv.errors import InputError

CONTENTS = [
    b"a\nb\nc\n", b"a\nb\nc", b"a\r\nb\r\n", b"a\rb\rc", b"a\rb\r", b"a\rb\nc\rd\n", b"\xef\xbb\xbfa\nb",
    b"a\n\n\nb\n\n", b"\n\na", b"one", "é\u2028x\x0by\n\x85z\n".encode(), b"a\r\r\nb\n",
]  # fmt: skip


@pytest.mark.parametrize("data", CONTENTS)
def test_lines_equal_those_of_the_whole_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(data)
    lines = read_lines(path)
    file = LineFile(path)
    assert file.count == len(lines)
    assert file.blank_count == sum(not line.strip() for line in lines)
    assert file.first_blank == next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    for size in (1, 2, 100):
        for first in range(len(lines) + 2):
            spans = list(file.spans(size, first))
            assert [line for span in spans for line in span.read()] == lines[first:]
            assert [span.first for span in spans] == list(range(first, len(lines), size))
            assert sum(span.count for span in spans) == max(0, len(lines) - first)


@pytest.mark.parametrize("data", [b"a\nb\nc\n", b"a\rb\rc"])
def test_lines_that_have_changed_are_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(data)
    first, second, third = LineFile(path).spans(1)
    path.write_bytes(data.replace(b"b", b"d"))
    assert first.read() + third.read() == ["a", "c"]
    with pytest.raises(InputError, match="changed"):
        second.read()
    path.write_bytes(b"a")
    with pytest.raises(InputError, match="changed"):
        third.read()


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf", b"a\xff\nb", b"a\nb\xc3\n", b"a\n\0b", b"\x89PNG\xff\n"])
def test_errors_equal_those_of_the_whole_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(data)
    with pytest.raises(InputError) as expected:
        read_lines(path)
    with pytest.raises(InputError) as raised:
        LineFile(path)
    assert str(raised.value) == str(expected.value)


def test_a_line_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 8)
    (tmp_path / "lines.txt").write_bytes(b"1234567\n12345678\n")
    with pytest.raises(InputError, match="line 2 "):
        LineFile(tmp_path / "lines.txt")
