"""Small files from anywhere: what is read, and in which words the rest is refused."""

import json
from pathlib import Path

import pytest

from qkv.errors import CheckpointError
from qkv.runtime.document import parse_json, read_bytes, read_text


def test_a_file_is_read_up_to_the_size_allowed_and_not_beyond(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2**20))
    assert read_bytes(path, 2**20) == bytes(2**20)
    path.write_bytes(bytes(2**20 + 1))
    with pytest.raises(CheckpointError, match="larger than 1 MiB"):
        read_bytes(path, 2**20)


def test_a_text_is_utf8_with_its_lines_ended_as_on_any_machine(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("één\r\ntwo\n".encode())
    assert read_text(path, 100) == "één\ntwo\n"
    path.write_bytes(b"one\xff")
    with pytest.raises(CheckpointError, match="not UTF-8 at byte 3"):
        read_text(path, 100)


def test_a_file_that_is_not_there_or_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path}/none: no such file"):
        read_text(tmp_path / "none", 100)
    with pytest.raises(CheckpointError, match=f"{tmp_path}: is a folder"):
        read_text(tmp_path, 2**20)


@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", '{"a": 1, "a": 1}', '[{"b": {"a\\n": 1, "a\\n": 2}}]', "[" * 100_000, "1" * 5000]
)
def test_what_is_not_json_or_says_a_thing_twice_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"^here: cut short or altered: not valid JSON: .+$") as caught:
        parse_json(text, Path("here"))
    assert str(caught.value).isprintable()


def test_json_means_what_pythons_own_reader_says() -> None:
    text = '{"a": [1, 2.5, null, true, "\\u00e9"], "b": {"a": {}}, "c": 1e400}'
    assert parse_json(text, Path("here")) == json.loads(text)
