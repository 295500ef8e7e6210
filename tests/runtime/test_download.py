"""Downloads from a misbehaving server: the file is complete and correct, or absent."""

import hashlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from qkv.errors import InputError
from qkv.runtime import download as module
from qkv.runtime.download import DownloadError, download

DATA = random.Random(0).randbytes(300_000)
DIGEST = hashlib.sha256(DATA).hexdigest()


@dataclass
class Server:
    """A file server with configurable misbehaviour."""

    url: str = ""
    data: bytes = DATA
    cuts: list[int] = field(default_factory=list)  # after how many bytes each of the next answers breaks off
    codes: list[int] = field(default_factory=list)  # what the next answers say instead of 200
    announces_length: bool | str = True
    redirect: str = ""
    gate: threading.Event | None = None  # the second half waits for it
    paths: list[str] = field(default_factory=list)  # that were requested

    @property
    def requests(self) -> int:
        return len(self.paths)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            state.paths.append(self.path)
            if state.redirect and self.path == "/file":
                self.send_response(302)
                self.send_header("Location", state.redirect)
                self.end_headers()
                return
            if state.codes:
                self.send_error(state.codes.pop(0))
                return
            body = state.data
            self.send_response(200)
            if state.announces_length:
                length = state.announces_length if isinstance(state.announces_length, str) else str(len(body))
                self.send_header("Content-Length", length)
            self.end_headers()
            if state.cuts:
                body = body[: state.cuts.pop(0)]
            half = len(body) // 2 if state.gate else len(body)
            self.wfile.write(body[:half])
            if state.gate:
                self.wfile.flush()
                state.gate.wait(30)
                self.wfile.write(body[half:])

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.daemon_threads = False  # all answers have ended when the server is closed
    serving.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that was killed is no news
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{serving.server_port}/file"
    yield state
    serving.shutdown()
    serving.server_close()
    thread.join()


def fetch(url: str, path: Path, *, digest: str = DIGEST, size: int = len(DATA), pauses: tuple[float, ...] = (0, 0)):
    return download(url, path, digest=digest, size=size, pauses=pauses, schemes=("http",))


def refused(fetching: Callable[[], None], kind: type[Exception] = DownloadError) -> str:
    with pytest.raises(kind) as caught:
        fetching()
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_download_creates_the_folder(server: Server, tmp_path: Path) -> None:
    told: list[int] = []
    path = tmp_path / "deep" / "er" / "file"
    download(server.url, path, digest=DIGEST, size=len(DATA), progress=told.append, schemes=("http",))
    assert path.read_bytes() == DATA
    assert names(path.parent) == ["file"]
    assert told == sorted(told)
    assert told[-1] == len(DATA)


def test_an_empty_file_is_downloaded(server: Server, tmp_path: Path) -> None:
    server.data = b""
    fetch(server.url, tmp_path / "file", digest=hashlib.sha256(b"").hexdigest(), size=0)
    assert (tmp_path / "file").read_bytes() == b""
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("announces_length", [True, False])
def test_an_interrupted_download_is_repeated(server: Server, tmp_path: Path, announces_length: bool) -> None:
    server.cuts, server.announces_length = [100_000, 50_000], announces_length
    fetch(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA
    assert server.requests == 3
    assert names(tmp_path) == ["file"]


def test_a_download_that_is_always_interrupted_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    server.cuts = [70_000, 0, 70_000]
    words = refused(lambda: fetch(server.url, tmp_path / "file"))
    assert "connection closed after 70,000 of 300,000 bytes (tried 3 times)" in words
    assert names(tmp_path) == []


def test_a_hash_mismatch_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    server.data = DATA[:1000] + bytes([DATA[1000] ^ 1]) + DATA[1001:]
    words = refused(lambda: fetch(server.url, tmp_path / "cache" / "file"))
    assert f"SHA-256 mismatch: expected {DIGEST}" in words
    assert server.url in words
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("size", [0, 299_999, 300_001])
def test_a_wrong_content_length_is_rejected_before_reading(server: Server, tmp_path: Path, size: int) -> None:
    server.data = b"x" * size
    words = refused(lambda: fetch(server.url, tmp_path / "file"))
    assert f"file has {size:,} bytes, expected 300,000" in words
    assert names(tmp_path) == []


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 21], ids=["5000", "21"])
def test_an_absurd_content_length_is_rejected_or_ignored(server: Server, tmp_path: Path, digits: str) -> None:
    server.announces_length = digits
    if len(digits) < 100:
        assert len(refused(lambda: fetch(server.url, tmp_path / "file"))) < 400
        assert names(tmp_path) == []
    else:
        fetch(server.url, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == DATA


@pytest.mark.parametrize("address", ["http://[half/file", "http://two..dots/file", f"http://{'a' * 64}/file"])
def test_a_redirect_to_an_invalid_url_is_an_error(server: Server, tmp_path: Path, address: str) -> None:
    server.redirect = address
    assert f"{server.url}: redirected to an invalid URL: " in refused(lambda: fetch(server.url, tmp_path / "file"))
    assert server.requests == 1
    assert names(tmp_path) == []


def test_an_endless_response_is_cut_off_at_the_expected_size(server: Server, tmp_path: Path) -> None:
    server.data, server.announces_length = bytes(10 * len(DATA)), False
    assert "SHA-256" in refused(lambda: fetch(server.url, tmp_path / "file"))
    assert names(tmp_path) == []


def test_a_missing_file_fails_at_once_and_a_busy_server_is_retried(server: Server, tmp_path: Path) -> None:
    server.codes = [404]
    assert "HTTP 404 Not Found" in refused(lambda: fetch(server.url, tmp_path / "file"))
    assert server.requests == 1
    assert names(tmp_path) == []
    server.codes = [503, 429]
    fetch(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_refused_connection_names_the_url(tmp_path: Path) -> None:
    words = refused(lambda: fetch("http://127.0.0.1:9/none", tmp_path / "file"))
    assert "http://127.0.0.1:9/none" in words
    assert "Connection refused" in words
    assert names(tmp_path) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "ftp://127.0.0.1/x", "file:///etc/hostname", "x"])
def test_only_https_is_allowed(tmp_path: Path, url: str) -> None:
    words = refused(lambda: download(url, tmp_path / "file", digest=DIGEST, size=1))
    assert f"{url}: scheme must be https" in words


@pytest.mark.parametrize("elsewhere", ["ftp://127.0.0.1/x", "https://127.0.0.1/x", "file:///etc/hostname"])
def test_redirects_to_other_schemes_are_rejected(server: Server, tmp_path: Path, elsewhere: str) -> None:
    server.redirect = elsewhere
    words = refused(lambda: fetch(server.url, tmp_path / "file"))
    assert f"{elsewhere}: scheme must be http" in words or f"'{elsewhere}' is not allowed" in words
    server.redirect = f"{server.url}-moved"
    fetch(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_full_disk_is_an_error_that_names_the_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    words = refused(lambda: fetch(server.url, tmp_path / "file"), InputError)
    assert words == f"{tmp_path / 'file'}: cannot be written: No space left on device"
    assert names(tmp_path) == []


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    words = refused(lambda: fetch("http://127.0.0.1:9/none", tmp_path / "file" / "below"), InputError)
    assert f"{tmp_path / 'file' / 'below'}: cannot be written" in words


FETCHER = """
import signal
import sys
from pathlib import Path
from qkv.runtime.download import download
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has those it runs in the background ignore Ctrl-C
url, path, digest, size = sys.argv[1:]
try:
    progress = lambda have: print(have, flush=True)
    download(url, Path(path), digest=digest, size=int(size), schemes=("http",), progress=progress)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_download_leaves_nothing_behind(server: Server, tmp_path: Path, how: signal.Signals) -> None:
    server.gate = threading.Event()
    command = [sys.executable, "-c", FETCHER, server.url, str(tmp_path / "file"), DIGEST, str(len(DATA))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while int(process.stdout.readline()) < len(DATA) // 2:
        pass
    process.send_signal(how)
    out, _ = process.communicate(timeout=30)
    assert ("interrupted" in out) == (how is signal.SIGINT)
    assert names(tmp_path) == []
    server.gate.set()


def test_concurrent_downloads_of_a_file_do_not_disturb_each_other(server: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FETCHER, server.url, str(tmp_path / "file"), DIGEST, str(len(DATA))]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "file").read_bytes() == DATA
    assert names(tmp_path) == ["file"]


def test_a_different_existing_file_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA[::-1])
    fetch(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


def test_an_unresponsive_server_times_out(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    server.gate = threading.Event()
    words = refused(lambda: fetch(server.url, tmp_path / "file"))
    server.gate.set()
    assert "timed out (tried 3 times)" in words
    deadline = time.monotonic() + 60
    while server.requests < 3 and time.monotonic() < deadline:  # the client may be ahead of the server's threads
        time.sleep(0.01)
    assert server.requests == 3
    assert names(tmp_path) == []
