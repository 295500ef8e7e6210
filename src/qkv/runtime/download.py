"""Downloads: a file arrives whole and with the SHA-256 that was expected, or it is not there.

What has arrived is kept beside it as `name.part`, so that a download that broke off goes on where it stopped. The part
is also the lock: a second process that wants the same file waits for the first, and finds the file there.
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

PART = ".part"
CHUNK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before each new attempt
MAY_PASS = frozenset({408, 425, 429, 500, 502, 503, 504})  # HTTP's words for "try again later"
RANGE_IS_WRONG = 416
MOST_DIGITS = 20  # of a length in bytes: no disk holds a file of more
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

Progress = Callable[[int], None]  # told how many bytes are there


class DownloadError(QkvError):
    """A file could not be downloaded."""


class _Refused(Exception):  # noqa: N818  (it names what happened)
    """This address does not give the file, however often it is asked."""


class _CutShort(Exception):  # noqa: N818  (it names what happened)
    """The server hung up before the end."""


def download(
    urls: Sequence[str],
    path: Path,
    *,
    digest: str,
    size: int,
    progress: Progress | None = None,
    pauses: Sequence[float] = PAUSES,
    schemes: Sequence[str] = ("https",),
) -> None:
    """Bring a file of `size` bytes and SHA-256 `digest` to `path`, from the first of the addresses that gives it."""
    opener = build_opener(_Redirect(schemes))
    reasons = []
    with _to_be_written(path) as part:
        if path.exists() and sha256(path) == digest:
            return  # another process was at it, and this one has waited
        for url in urls:
            try:
                _require_scheme(url, schemes)
                _bring(opener, url, part, digest, size, progress or (lambda _: None), pauses)
            except _Refused as refused:
                reasons.append(f"{url}: {refused}")
                continue
            os.fsync(part.fileno())
            os.replace(_part(path), path)
            return
    raise DownloadError(f"{path} could not be downloaded, but may be put there by hand: {'; '.join(reasons)}")


def _bring(
    opener: OpenerDirector,
    url: str,
    part: BinaryIO,
    digest: str,
    size: int,
    progress: Progress,
    pauses: Sequence[float],
) -> None:
    """Fill the part until it is the file that was wanted."""
    began_with = _length(part)
    _receive_patiently(opener, url, part, size, progress, pauses)
    if sha256(Path(part.name)) == digest:
        return
    part.truncate(0)
    if began_with:  # its beginning may be of another version of the file
        return _bring(opener, url, part, digest, size, progress, pauses)
    raise _Refused(f"what it serves is another file, or was altered on the way: its SHA-256 is not {digest}")


def _receive_patiently(
    opener: OpenerDirector, url: str, part: BinaryIO, size: int, progress: Progress, pauses: Sequence[float]
) -> None:
    """Receive the rest of the file, and try again, later and later, while that may help."""
    for pause in (*pauses, None):
        try:
            return _receive(opener, url, part, size, progress)
        except HTTPError as error:
            error.close()
            if error.code == RANGE_IS_WRONG:
                part.truncate(0)
            elif error.code not in MAY_PASS:
                raise _Refused(f"the server says {error.code} {error.reason}") from None
            reason = f"the server says {error.code} {error.reason}"
        except (OSError, HTTPException, _CutShort) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        except ValueError as error:  # Python's word for an address that cannot be taken apart
            raise _Refused(f"it leads to what is no address: {error}") from None
        if pause is not None:
            time.sleep(pause)
    have = _length(part)
    kept = f"; {have:,} of {size:,} bytes are kept, and the next try goes on from there" if have else ""
    raise _Refused(f"{reason} (tried {len(pauses) + 1} times){kept}")


def _receive(opener: OpenerDirector, url: str, part: BinaryIO, size: int, progress: Progress) -> None:
    """Ask for what is missing, and append it."""
    if _length(part) > size:
        part.truncate(0)
    have = _length(part)
    if have == size:
        return
    wanted = {"Range": f"bytes={have}-"} if have else {}
    request = Request(url, headers={"User-Agent": "qkv", "Accept-Encoding": "identity", **wanted})
    with opener.open(request, timeout=TIMEOUT) as response:
        if have and not _goes_on_from(have, response.status, response.headers):
            part.truncate(0)
            have = 0
        announced = response.headers.get("Content-Length", "")
        if announced.isdecimal():
            _require_length(announced, size, have)
        _require_space(part, size - have)
        while have < size:
            chunk = response.read1(min(CHUNK, size - have))  # what there is, without waiting for more
            if not chunk:
                raise _CutShort(f"the connection ended after {have:,} of {size:,} bytes")
            have += _append(part, chunk)
            progress(have)


def _require_length(announced: str, size: int, have: int) -> None:
    """Refuse an answer that says it is not what is missing, before any of it is read."""
    if len(announced) > MOST_DIGITS:
        raise _Refused(
            f"it announces a length of {len(announced):,} digits, and the file that is wanted has {size:,} bytes"
        )
    if int(announced) != size - have:
        raise _Refused(f"it has {have + int(announced):,} bytes, and the file that is wanted {size:,}")


def _goes_on_from(have: int, status: int, headers: HTTPMessage) -> bool:
    """Whether the answer begins where the part ends; a server that knows no ranges sends the whole file again."""
    return status == 206 and headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _append(part: BinaryIO, chunk: bytes) -> int:
    try:
        written = part.write(chunk)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise _no_space(part) from None
        raise InputError(f"{part.name}: cannot be written: {error.strerror}") from None
    if written < len(chunk):  # the disk took some of it: the next write says why not more
        return written + _append(part, chunk[written:])
    return written


def _require_space(part: BinaryIO, missing: int) -> None:
    free = shutil.disk_usage(Path(part.name).parent).free
    if free < missing:
        raise _no_space(part, f": {missing:,} bytes are missing, and {free:,} are free")


def _no_space(part: BinaryIO, figures: str = "") -> InputError:
    return InputError(
        f"{Path(part.name).parent}: no space left on the disk{figures}; free some and try again "
        f"(the {_length(part):,} bytes that have arrived are kept), or name another folder with --data-dir"
    )


class _Redirect(HTTPRedirectHandler):
    """Follows a server's word that the file is elsewhere, but not to a less safe place."""

    def __init__(self, schemes: Sequence[str]) -> None:
        self._schemes = schemes

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        _require_scheme(newurl, self._schemes)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_scheme(url: str, schemes: Sequence[str]) -> None:
    if urlsplit(url).scheme not in schemes:
        raise _Refused(f"{url} is not {' or '.join(schemes)}")


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}{PART}")


def _length(part: BinaryIO) -> int:
    return os.fstat(part.fileno()).st_size


@contextmanager
def _to_be_written(path: Path) -> Iterator[BinaryIO]:
    """The part of a file, for this process alone; what is empty when all is done goes away."""
    try:
        create_folder(path.parent)
        part = _locked(_part(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    with part:
        try:
            yield part
        finally:
            if not _length(part):
                _part(path).unlink(missing_ok=True)


def _locked(path: Path) -> BinaryIO:
    """Open a part and wait until no other process holds it."""
    while True:
        part: BinaryIO = path.open("ab", buffering=0)
        try:
            fcntl.flock(part, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(part.fileno()), path.stat()):
                return part
        except FileNotFoundError:
            pass  # whoever held it has finished with it, and there is another to open
        except BaseException:
            part.close()
            raise
        part.close()
