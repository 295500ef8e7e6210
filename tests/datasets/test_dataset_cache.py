"""Tests of the dataset cache: search order, hashes, downloads and archives."""

import gzip
import hashlib
import os
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from qkv.datasets import dataset_cache as module
from qkv.datasets.dataset_cache import DataFile, DatasetCache, cache_folder
from qkv.datasets.formats.archive import unpack, unpack_members
from qkv.errors import InputError
from qkv.runtime.download import DownloadError, download

TEXT = b"some text\n"


def data_file(path: str, data: bytes = TEXT, url: str = "", unpacked: DataFile | None = None) -> DataFile:
    return DataFile(path, len(data), hashlib.sha256(data).hexdigest(), url, unpacked)


def fetch(cache: DatasetCache, *files: DataFile) -> list[Path]:
    return cache.fetch("tiny", files, "do what you like", "it is in the drawer.")


def put(folder: Path, path: str, data: bytes = TEXT) -> Path:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    return folder / path


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty folders: the chosen one, that of QKV_DATA, and the cache."""
    named = {name: tmp_path / name for name in ("chosen", "variable", "cache")}
    for folder in named.values():
        folder.mkdir()
    monkeypatch.setenv("QKV_DATA", str(named["variable"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(named["cache"]))
    return named | {"cache": named["cache"] / "qkv" / "data"}


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """The URL of a local server, and its folder."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    folder = tmp_path / "web"
    folder.mkdir()
    serving = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(module, "download", partial(download, schemes=("http",), pauses=()))
    yield f"http://127.0.0.1:{serving.server_port}", folder
    serving.shutdown()
    serving.server_close()
    thread.join()


def test_search_order_is_chosen_folder_then_variable_then_cache(folders: dict[str, Path]) -> None:
    file = data_file("set/file")
    assert DatasetCache.with_folder(folders["chosen"]).find(file) is None
    for name in ("cache", "variable", "chosen"):
        put(folders[name], "set/file")
        assert DatasetCache.with_folder(folders["chosen"]).find(file) == folders[name] / "set/file"
    assert DatasetCache.with_folder().find(file) == folders["variable"] / "set/file"


def test_a_dataset_may_be_spread_over_several_folders(folders: dict[str, Path]) -> None:
    one, other = data_file("set/one"), data_file("set/other")
    paths = [put(folders["chosen"], "set/one"), put(folders["cache"], "set/other")]
    assert fetch(DatasetCache.with_folder(folders["chosen"]), one, other) == paths


def test_the_cache_folder_follows_xdg_cache_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("", None):
        monkeypatch.setenv("XDG_CACHE_HOME", "") if name == "" else monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_folder() == tmp_path / ".cache" / "qkv" / "data"


def test_a_missing_folder_is_reported_with_the_option_that_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"nowhere.*--data-dir"):
        DatasetCache.with_folder("nowhere")
    monkeypatch.setenv("QKV_DATA", "/no/where")
    with pytest.raises(InputError, match=r"/no/where.*QKV_DATA"):
        DatasetCache.with_folder()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"some texT\n", f"its SHA-256 is {hashlib.sha256(b'some texT' + bytes([10])).hexdigest()}, expected "),
        (b"some", "it has 4 bytes, expected 10; replace it"),
    ],
)
def test_a_file_with_unexpected_content_is_rejected(folders: dict[str, Path], data: bytes, words: str) -> None:
    path = put(folders["variable"], "set/file", data)
    with pytest.raises(InputError) as caught:
        DatasetCache.with_folder().find(data_file("set/file"))
    assert str(caught.value).startswith(f"{path}: unexpected content: {words}")
    with pytest.raises(InputError, match="download"):
        DatasetCache.with_folder().find(data_file("set/file", url="https://example.org/file"))


def test_a_file_is_hashed_once_and_again_when_it_changes(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(module, "sha256", lambda path: hashed.append(path) or hashlib.sha256(TEXT).hexdigest())
    path = put(folders["variable"], "set/hashed-once")
    for _ in range(3):
        DatasetCache.with_folder().find(data_file("set/hashed-once"))
    assert hashed == [path]
    put(folders["variable"], "set/hashed-once", TEXT[::-1])
    DatasetCache.with_folder().find(data_file("set/hashed-once"))
    assert hashed == [path, path]


def test_a_decompressed_file_is_accepted_too(folders: dict[str, Path]) -> None:
    packed = gzip.compress(TEXT)
    file = data_file("set/file.gz", packed, unpacked=data_file("set/file"))
    path = put(folders["variable"], "set/file")
    assert DatasetCache.with_folder().find(file) == path
    assert unpack(path) == TEXT
    path = put(folders["variable"], "set/file.gz", packed)
    assert DatasetCache.with_folder().find(file) == path
    assert unpack(path) == TEXT


def test_a_missing_file_without_url_is_an_error_with_instructions(folders: dict[str, Path]) -> None:
    file = data_file("set/file.gz", unpacked=data_file("set/file"))
    with pytest.raises(InputError) as caught:
        fetch(DatasetCache.with_folder(), file)
    words = str(caught.value)
    assert words.startswith(
        f"tiny: set/file.gz is not in {folders['variable']}, {folders['cache']}, and must be downloaded"
    )
    assert f"it is in the drawer. Save it in {folders['cache']} as set/file" in words


def test_missing_files_are_downloaded_into_the_cache_with_a_licence_notice(
    web: tuple[str, Path], folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    url, served = web
    put(served, "file")
    file = data_file("set/file", url=f"{url}/file")
    here = data_file("set/here")
    paths = [folders["cache"] / "set/file", put(folders["variable"], "set/here")]
    assert fetch(DatasetCache.with_folder(), file, here) == paths
    assert paths[0].read_bytes() == TEXT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"tiny: downloading 1 file(s), 0.0 MB, into {folders['cache']}\n" in captured.err
    assert "tiny: license: do what you like\n" in captured.err
    assert fetch(DatasetCache.with_folder(), file, here) == paths
    assert capsys.readouterr().err == ""


def test_a_download_with_the_wrong_hash_leaves_nothing_in_the_cache(
    web: tuple[str, Path], folders: dict[str, Path]
) -> None:
    url, served = web
    put(served, "file", b"some texT\n")
    file = data_file("set/file", url=f"{url}/file")
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch(DatasetCache.with_folder(), file)
    assert [path for path in folders["cache"].rglob("*") if path.is_file()] == []


def packed_zip(path: Path, name: str, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return path


def test_a_file_that_decompresses_beyond_the_limit_is_rejected(tmp_path: Path) -> None:
    bomb = put(tmp_path, "bomb.gz", gzip.compress(bytes(10**6)))
    zipped = packed_zip(tmp_path / "bomb.zip", "a", bytes(10**6))
    plain = put(tmp_path, "plain", bytes(10**6))
    arrays = packed_zip(tmp_path / "bomb.npz", "a", bytes(10**6))
    tar = tmp_path / "bomb.tgz"
    with tarfile.open(tar, "w:gz") as archive:
        archive.add(plain, "a")
    for path in (bomb, zipped, plain, arrays, tar):
        assert len(unpack(path, limit=10**6)) == 10**6
        with pytest.raises(InputError, match="999,999 bytes"):
            unpack(path, limit=10**6 - 1)


def test_the_members_of_an_archive_share_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a", "b", "other"):
            archive.writestr(name, bytes(600))
    assert {name: len(data) for name, data in unpack_members(path, "ab".__contains__, 1200).items()} == {
        "a": 600, "b": 600,
    }  # fmt: skip
    with pytest.raises(InputError, match="limit"):
        unpack_members(path, "ab".__contains__, 1199)


@pytest.mark.parametrize("name", ["a.gz", "a.zip", "a.npz", "a.tgz", "a"])
def test_an_archive_must_be_a_regular_file(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="pipe"):
        unpack(tmp_path / name)


def test_truncated_or_corrupt_archives_are_reported_by_name(tmp_path: Path) -> None:
    whole = gzip.compress(TEXT * 100)
    broken = whole[:20] + bytes([whole[20] ^ 255]) + whole[21:]
    for number, data in enumerate((whole[:-9], whole[:5], b"no gzip", broken)):
        path = put(tmp_path, f"{number}.gz", data)
        with pytest.raises(InputError, match=f"{number}.gz: "):
            unpack(path)
    good = packed_zip(tmp_path / "good.zip", "a", TEXT)
    for path in (put(tmp_path, "bad.zip", b"PK no zip"), put(tmp_path, "cut.zip", good.read_bytes()[:-30])):
        with pytest.raises(InputError, match=r"\.zip"):
            unpack(path)
    with pytest.raises(InputError, match=r"good\.zip"):
        unpack(good, "not there")
    with pytest.raises(InputError, match="no such file"):
        unpack(tmp_path / "none.gz")
