"""Resumable downloads, verified by SHA-256.

Data is written to `name.part`, which lets an interrupted download resume and also serves as a lock: a second process
that needs the same file waits for the first.
"""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, BinaryIO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from qkv.errors import InputError, QkvError
from qkv.runtime.files import create_folder, sha256

PART_SUFFIX = ".part"
CHUNK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
BACKOFF = (1.0, 2.0, 4.0, 8.0)  # seconds before each retry
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
RANGE_NOT_SATISFIABLE = 416
MAX_LENGTH_DIGITS = 20  # of Content-Length
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

Progress = Callable[[int], None]  # called with the number of bytes downloaded


class DownloadError(QkvError):
    """A file could not be downloaded."""


class _Refused(Exception):  # noqa: N818  (it names what happened)
    """This URL failed permanently."""


class _CutShort(Exception):  # noqa: N818  (it names what happened)
    """The server closed the connection early."""


def download(
    urls: Sequence[str],
    path: Path,
    *,
    digest: str,
    size: int,
    progress: Progress | None = None,
    pauses: Sequence[float] = BACKOFF,
    schemes: Sequence[str] = ("https",),
) -> None:
    """Download a file of `size` bytes and SHA-256 `digest` to `path`, trying the URLs in order."""
    opener = build_opener(_Redirect(schemes))
    reasons = []
    with _locked_part(path) as part:
        if path.exists() and sha256(path) == digest:
            return  # another process has downloaded it meanwhile
        for url in urls:
            try:
                _require_scheme(url, schemes)
                _download_verified(opener, url, part, digest, size, progress or (lambda _: None), pauses)
            except _Refused as refused:
                reasons.append(f"{url}: {refused}")
                continue
            os.fsync(part.fileno())
            os.replace(_part(path), path)
            return
    raise DownloadError(f"download of {path} failed (you can also place the file there manually): {'; '.join(reasons)}")


def _download_verified(
    opener: OpenerDirector,
    url: str,
    part: BinaryIO,
    digest: str,
    size: int,
    progress: Progress,
    pauses: Sequence[float],
) -> None:
    """Download into `part` until its SHA-256 matches."""
    resumed = _length(part) > 0
    _receive_with_retries(opener, url, part, size, progress, pauses)
    if sha256(Path(part.name)) == digest:
        return
    part.truncate(0)
    if resumed:  # the existing part may be from another version of the file
        return _download_verified(opener, url, part, digest, size, progress, pauses)
    raise _Refused(f"SHA-256 mismatch: expected {digest}")


def _receive_with_retries(
    opener: OpenerDirector, url: str, part: BinaryIO, size: int, progress: Progress, pauses: Sequence[float]
) -> None:
    """Receive the rest of the file, retrying transient errors with backoff."""
    for pause in (*pauses, None):
        try:
            return _receive(opener, url, part, size, progress)
        except HTTPError as error:
            error.close()
            if error.code == RANGE_NOT_SATISFIABLE:
                part.truncate(0)
            elif error.code not in TRANSIENT_STATUS:
                raise _Refused(f"HTTP {error.code} {error.reason}") from None
            reason = f"HTTP {error.code} {error.reason}"
        except (OSError, HTTPException, _CutShort) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        except ValueError as error:  # malformed URL
            raise _Refused(f"redirected to an invalid URL: {error}") from None
        if pause is not None:
            time.sleep(pause)
    have = _length(part)
    kept = f"; {have:,} of {size:,} bytes are kept and the next attempt resumes from there" if have else ""
    raise _Refused(f"{reason} (tried {len(pauses) + 1} times){kept}")


def _receive(opener: OpenerDirector, url: str, part: BinaryIO, size: int, progress: Progress) -> None:
    """Request the missing bytes and append them to `part`."""
    if _length(part) > size:
        part.truncate(0)
    have = _length(part)
    if have == size:
        return
    range_header = {"Range": f"bytes={have}-"} if have else {}
    request = Request(url, headers={"User-Agent": "qkv", "Accept-Encoding": "identity", **range_header})
    with opener.open(request, timeout=TIMEOUT) as response:
        if have and not _resumes_at(have, response.status, response.headers):
            part.truncate(0)
            have = 0
        announced = response.headers.get("Content-Length", "")
        if announced.isdecimal():
            _require_length(announced, size, have)
        _require_space(part, size - have)
        while have < size:
            chunk = response.read1(min(CHUNK, size - have))  # returns available data without waiting for more
            if not chunk:
                raise _CutShort(f"connection closed after {have:,} of {size:,} bytes")
            have += _append(part, chunk)
            progress(have)


def _require_length(announced: str, size: int, have: int) -> None:
    """Raise if Content-Length does not match the missing bytes."""
    if len(announced) > MAX_LENGTH_DIGITS:
        raise _Refused(f"Content-Length has {len(announced):,} digits, expected {size:,} bytes")
    if int(announced) != size - have:
        raise _Refused(f"file has {have + int(announced):,} bytes, expected {size:,}")


def _resumes_at(have: int, status: int, headers: HTTPMessage) -> bool:
    """Return whether the response starts at byte `have`; servers without range support resend the whole file."""
    return status == 206 and headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _append(part: BinaryIO, chunk: bytes) -> int:
    try:
        written = part.write(chunk)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise _no_space(part) from None
        raise InputError(f"{part.name}: cannot be written: {error.strerror}") from None
    if written < len(chunk):  # partial write: the next one raises the reason
        return written + _append(part, chunk[written:])
    return written


def _require_space(part: BinaryIO, missing: int) -> None:
    free = shutil.disk_usage(Path(part.name).parent).free
    if free < missing:
        raise _no_space(part, f": {missing:,} bytes needed, {free:,} free")


def _no_space(part: BinaryIO, figures: str = "") -> InputError:
    return InputError(
        f"{Path(part.name).parent}: no space left on device{figures}; free some space and retry "
        f"(the {_length(part):,} downloaded bytes are kept), or use --data-dir"
    )


class _Redirect(HTTPRedirectHandler):
    """Follows redirects, but only to the allowed schemes."""

    def __init__(self, schemes: Sequence[str]) -> None:
        self._schemes = schemes

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        _require_scheme(newurl, self._schemes)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_scheme(url: str, schemes: Sequence[str]) -> None:
    if urlsplit(url).scheme not in schemes:
        raise _Refused(f"{url}: scheme must be {' or '.join(schemes)}")


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}{PART_SUFFIX}")


def _length(part: BinaryIO) -> int:
    return os.fstat(part.fileno()).st_size


@contextmanager
def _locked_part(path: Path) -> Iterator[BinaryIO]:
    """Open and lock the part file; an empty one is removed at the end."""
    try:
        create_folder(path.parent)
        part = _open_locked(_part(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    with part:
        try:
            yield part
        finally:
            if not _length(part):
                _part(path).unlink(missing_ok=True)


def _open_locked(path: Path) -> BinaryIO:
    """Open a part file and wait for its lock."""
    while True:
        part: BinaryIO = path.open("ab", buffering=0)
        try:
            fcntl.flock(part, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(part.fileno()), path.stat()):
                return part
        except FileNotFoundError:
            pass  # the previous owner finished and removed it; open a new one
        except BaseException:
            part.close()
            raise
        part.close()
