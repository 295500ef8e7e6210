"""Reading small untrusted files, and errors."""

import json
from pathlib import Path

import pytest

from qkv.errors import CheckpointError
from qkv.runtime.documents import parse_json, read_bytes, read_text


def test_files_above_the_size_limit_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2**20))
    assert read_bytes(path, 2**20) == bytes(2**20)
    path.write_bytes(bytes(2**20 + 1))
    with pytest.raises(CheckpointError, match="1 MiB"):
        read_bytes(path, 2**20)


def test_text_is_utf8_with_normalized_line_endings(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("één\r\ntwo\n".encode())
    assert read_text(path, 100) == "één\ntwo\n"
    path.write_bytes(b"one\xff")
    with pytest.raises(CheckpointError, match="byte 3"):
        read_text(path, 100)


def test_a_missing_or_special_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path}/none"):
        read_text(tmp_path / "none", 100)
    with pytest.raises(CheckpointError, match=f"{tmp_path}: "):
        read_text(tmp_path, 2**20)


@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", '{"a": 1, "a": 1}', '[{"b": {"a\\n": 1, "a\\n": 2}}]', "[" * 100_000, "1" * 5000]
)
def test_invalid_json_and_duplicate_keys_are_one_line_errors(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"^here: .*JSON") as caught:
        parse_json(text, Path("here"))
    assert str(caught.value).isprintable()


def test_valid_json_is_parsed_like_json_loads() -> None:
    text = '{"a": [1, 2.5, null, true, "\\u00e9"], "b": {"a": {}}, "c": 1e400}'
    assert parse_json(text, Path("here")) == json.loads(text)
