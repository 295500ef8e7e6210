"""Tokenized texts on disk: built in parallel or in several attempts, checked, and read in slices."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.datasets.shards.text_source import TextSource
from qkv.datasets.shards.token_shards import (
    INDEX,
    BuildPlan,
    TokenShards,
    build_shards,
    damaged_shards,
    discard_shards,
    read_index,
    shard_path,
)
from qkv.errors import InputError
from qkv.tokenizers import BPETokenizer, CharTokenizer, Tokenizer, WordTokenizer, load_tokenizer

VALUES: dict[str, Any] = {"text": "0" * 64, "files": ["a.txt"], "bytes": 1, "tokenizer": "char"}


def some_text(size: int = 300_000) -> str:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzäß", k=rng.randint(1, 9))) for _ in range(2000)]
    separators = [" "] * 20 + ["\n", "\n\n", "  ", ". ", ", "]
    return "".join(rng.choice(words) + rng.choice(separators) for _ in range(size // 6))


TEXT = some_text()


def plan_of(folder: Path, tokenizer: Tokenizer, text: str = TEXT, size: int = 40_000, **changes: Any) -> BuildPlan:
    """The plan to tokenize a text in several shards."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    path = folder / "text.txt"
    path.write_text(text)
    source = TextSource((str(path),))
    groups = source.divide(source.split(0)[1], size)
    return BuildPlan(source, groups, partial(load_tokenizer, folder), **{"dtype": "uint16", "end": None, **changes})


def build(folder: Path, plan: BuildPlan, workers: int = 1) -> TokenShards:
    build_shards(folder, plan, VALUES, workers, check=lambda: None)
    return TokenShards(folder)


@pytest.fixture
def shards(tmp_path: Path) -> TokenShards:
    return build(tmp_path, plan_of(tmp_path, CharTokenizer.train([TEXT]), dtype="uint8"))


@pytest.mark.parametrize(
    "train", [CharTokenizer.train, WordTokenizer.train, partial(BPETokenizer.train, vocab_size=300)]
)
def test_tokens_are_those_of_the_undivided_text(tmp_path: Path, train: Any) -> None:
    tokenizer = train([TEXT[:100_000]])
    shards = build(tmp_path, plan_of(tmp_path, tokenizer))
    expected = tokenizer.encode(TEXT)
    assert len(shards.index.shards) > 5
    assert len(shards) == shards.index.tokens == len(expected)
    assert shards[: len(shards)].tolist() == expected
    rng = random.Random(1)
    for _ in range(200):
        begin, end = sorted(rng.choices(range(len(expected) + 1), k=2))
        assert shards[begin:end].tolist() == expected[begin:end]
    assert shards[5:5].tolist() == []
    assert shards[len(expected) - 3 : len(expected) + 9].tolist() == expected[-3:]


def test_documents_end_with_the_end_token(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train([TEXT[:100_000]], vocab_size=300)
    end = tokenizer.special_tokens.end
    shards = build(tmp_path, plan_of(tmp_path, tokenizer, end=end))
    documents = [document for document in TEXT.split("\n\n") if document.strip()]
    assert shards[: len(shards)].tolist() == [t for ids in tokenizer.encode(documents) for t in (*ids, end)]
    assert sum(shard.documents for shard in shards.index.shards) == len(documents)


def test_processes_write_the_same_files(tmp_path: Path) -> None:
    tokenizer = CharTokenizer.train([TEXT])
    one = build(tmp_path / "one", plan_of(tmp_path / "one", tokenizer), workers=1)
    two = build(tmp_path / "two", plan_of(tmp_path / "two", tokenizer), workers=2)
    assert one.index == two.index
    assert not [*(tmp_path / "two").glob(".writing*"), *(tmp_path / "two").glob("0*.json")]


def test_errors_in_a_process_are_reported(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CharTokenizer.train([TEXT]))
    path = Path(plan.source.files[0])
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        build(tmp_path, plan, workers=2)
    assert not (tmp_path / INDEX).exists()


KILLED = """
import sys
from pathlib import Path
from qkv.datasets.shards import token_shards
from tests.datasets.test_token_shards import CharTokenizer, TEXT, build, plan_of
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    build(folder, plan_of(folder, CharTokenizer.train([TEXT]), dtype="uint8"), workers=2)
"""


@pytest.mark.slow
def test_a_killed_build_leaves_no_processes_and_continues(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    folder = tmp_path / "shards"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])}
    process = subprocess.Popen([sys.executable, str(script), str(folder)], env=environment)
    while process.poll() is None and not any(folder.glob("0*.json")):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # the workers end with their parent
    kept = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    time.sleep(2)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == kept
    assert not (folder / INDEX).exists()
    tokenizer = CharTokenizer.train([TEXT])
    shards = build(folder, plan_of(folder, tokenizer, dtype="uint8"))
    assert shards[: len(shards)].tolist() == tokenizer.encode(TEXT)


def test_an_interrupted_build_keeps_complete_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = CharTokenizer.train([TEXT])
    plan = plan_of(tmp_path, tokenizer, dtype="uint8")
    calls: list[int] = []
    encode = CharTokenizer.encode

    def failing(self: Tokenizer, texts: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return encode(self, texts, **options)

    monkeypatch.setattr(CharTokenizer, "encode", failing)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, plan)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.tokens")}
    assert len(written) == 3
    (tmp_path / ".writing-99999999-00004.tokens").write_bytes(b"of a killed process")
    shard_path(tmp_path, 1).write_bytes(b"short")  # not what its record says
    shards = build(tmp_path, plan)
    assert shards[: len(shards)].tolist() == tokenizer.encode(TEXT)
    kept = [path for path, changed in written.items() if path.stat().st_mtime_ns == changed]
    assert sorted(path.name for path in kept) == ["00000.tokens", "00002.tokens"]
    assert not [*tmp_path.glob(".writing*")]


def test_truncated_swapped_and_missing_shards_are_errors(shards: TokenShards) -> None:
    folder, itemsize = shards.folder, shards.dtype.itemsize
    first, second = shard_path(folder, 0), shard_path(folder, 1)
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[1][:-itemsize])
    with pytest.raises(InputError, match=r"00001\.tokens: has .* bytes.*--rebuild"):
        TokenShards(folder)
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with pytest.raises(InputError, match=r"00000\.tokens"):
        TokenShards(folder)
    first.write_bytes(contents[0][:-1] + bytes([contents[0][-1] ^ 1]))
    second.write_bytes(contents[1])
    with pytest.raises(InputError, match="damaged or another file"):
        TokenShards(folder)
    first.unlink()
    with pytest.raises(InputError, match="no such file"):
        TokenShards(folder)


def test_a_shard_that_is_truncated_while_it_is_used_is_an_error(shards: TokenShards) -> None:
    expected = shards[:10].tolist()
    os.truncate(shard_path(shards.folder, 1), 100)
    assert shards[:10].tolist() == expected
    with pytest.raises(InputError, match="was truncated"):
        shards[:]


def test_damage_inside_a_shard_is_found_and_only_that_shard_is_rebuilt(tmp_path: Path) -> None:
    tokenizer = CharTokenizer.train([TEXT])
    plan = plan_of(tmp_path, tokenizer, dtype="uint8")
    shards = build(tmp_path, plan)
    assert damaged_shards(tmp_path) == []
    path = shard_path(tmp_path, 2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    TokenShards(tmp_path)  # only the ends are checked
    reported: list[int] = []
    assert damaged_shards(tmp_path, reported.append) == [2]
    assert reported == [*range(1, len(shards.index.shards) + 1)]
    changed = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.tokens")}
    discard_shards(tmp_path, [2])
    assert build(tmp_path, plan)[:].tolist() == tokenizer.encode(TEXT)
    assert damaged_shards(tmp_path) == []
    rebuilt = [path.name for path in tmp_path.glob("*.tokens") if path.stat().st_mtime_ns != changed[path.name]]
    assert rebuilt == ["00002.tokens"]


def test_a_damaged_index_is_an_error(shards: TokenShards) -> None:
    path = shards.folder / INDEX
    index = json.loads(path.read_text())
    for change in ({"version": 2}, {"dtype": "float64"}, {"dtype": "object"}, {"shards": [{"tokens": -1}]}, {"x": 1}):
        path.write_text(json.dumps(index | change))
        with pytest.raises(InputError, match=INDEX):
            read_index(shards.folder)
    huge = [shard | {"tokens": 2**40} for shard in index["shards"]]  # nothing is allocated for it
    path.write_text(json.dumps(index | {"shards": huge}))
    with pytest.raises(InputError, match="bytes, expected"):
        TokenShards(shards.folder)
    path.write_text("{")
    with pytest.raises(InputError, match=INDEX):
        TokenShards(shards.folder)


def test_a_full_disk_is_an_error_without_leftovers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CharTokenizer.train([TEXT]))
    code = f"""
import resource, signal
from tests.datasets.test_token_shards import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
folder = Path({str(tmp_path)!r})
source = TextSource((str(folder / "text.txt"),))
plan = BuildPlan(source, source.divide(source.split(0)[1], 40_000), partial(load_tokenizer, folder), "uint16", None)
try:
    build(folder, plan)
except InputError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "00000.tokens: cannot be written: File too large" in ended.stdout, ended.stderr
    assert not [*tmp_path.glob(".writing*"), *tmp_path.glob("*.tokens")]
    assert len(build(tmp_path, plan)) == len(TEXT)


LIMITED = """
import re, resource, sys
import numpy as np
from tests.datasets.test_token_shards import *

folder, whole = Path(sys.argv[1]), sys.argv[2] == "whole"
source = TextSource((str(folder / "text.txt"),))
plan = BuildPlan(source, source.divide(source.split(0)[1], 2**23), partial(load_tokenizer, folder), "uint8", None)
tokenizer = load_tokenizer(folder)
tokenizer.encode("warm up " * 10000)
used = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
limit = used + 64 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    if whole:
        np.array(tokenizer.encode((folder / "text.txt").read_text()))
    shards = build(folder, plan)
    assert len(shards) == 24 * 2**20, len(shards)
    for begin in range(0, len(shards), 2**16):
        shards[begin : begin + 2**16]
    print("done")
except MemoryError:  # or the tokenizer ends the process
    print("out of memory")
"""


def test_memory_does_not_depend_on_the_size_of_the_text(tmp_path: Path) -> None:
    """A text of 24 MiB is tokenized and read with 64 MiB; its tokens in a list would be 192 MiB."""
    CharTokenizer.train(["abc defg\n"]).save(tmp_path)
    (tmp_path / "text.txt").write_text("abc defg" * (3 * 2**20))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])}
    results = [
        subprocess.run(
            [sys.executable, "-c", LIMITED, str(tmp_path), how], capture_output=True, text=True, env=environment
        )
        for how in ("shards", "whole")
    ]
    assert ["done" in result.stdout for result in results] == [True, False], results


def test_slices_are_arrays_of_int64(shards: TokenShards) -> None:
    assert shards[3:7].dtype == np.int64
    assert shards.dtype == np.uint8
