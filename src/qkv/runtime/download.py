"""Download files that fit in memory, verified by size and SHA-256."""

import hashlib
import time
from collections.abc import Callable, Sequence
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from qkv.errors import QkvError
from qkv.runtime.files import check_output_file, write_atomically

CHUNK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
BACKOFF = (1.0, 2.0, 4.0, 8.0)  # seconds before each retry
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})

Progress = Callable[[int], None]  # called with the number of bytes done


class DownloadError(QkvError):
    """A file could not be downloaded."""


def download(
    url: str,
    path: Path,
    *,
    digest: str,
    size: int,
    progress: Progress = lambda done: None,
    pauses: Sequence[float] = BACKOFF,
    schemes: Sequence[str] = ("https",),
) -> None:
    """Download a file of `size` bytes and SHA-256 `digest` to `path`, retrying transient errors with backoff.

    The write is atomic: `path` is complete or absent.
    """
    check_output_file(path)
    try:
        _require_scheme(url, schemes)
        data = _receive_with_retries(build_opener(_Redirect(schemes)), url, size, progress, pauses)
        if hashlib.sha256(data).hexdigest() != digest:
            raise DownloadError(f"SHA-256 mismatch: expected {digest}")
    except DownloadError as error:
        hint = "you can also copy the file there manually"
        raise DownloadError(f"download of {path} failed ({hint}): {url}: {error}") from None
    write_atomically(path, data)


def _receive_with_retries(
    opener: OpenerDirector, url: str, size: int, progress: Progress, pauses: Sequence[float]
) -> bytes:
    for pause in (*pauses, None):
        try:
            return _receive(opener, url, size, progress)
        except HTTPError as error:
            error.close()
            reason = f"HTTP {error.code} {error.reason}"
            if error.code not in TRANSIENT_STATUS:
                raise DownloadError(reason) from None
        except (OSError, HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        except ValueError as error:  # malformed URL
            raise DownloadError(f"redirected to an invalid URL: {error}") from None
        if pause is not None:
            time.sleep(pause)
    raise DownloadError(f"{reason} (tried {len(pauses) + 1} times)")


def _receive(opener: OpenerDirector, url: str, size: int, progress: Progress) -> bytes:
    """Receive a file of `size` bytes; a longer one is not read to its end."""
    request = Request(url, headers={"User-Agent": "qkv", "Accept-Encoding": "identity"})
    data = bytearray()
    with opener.open(request, timeout=TIMEOUT) as response:
        length = getattr(response, "length", None)  # Content-Length; a file: URL has none
        if length not in (None, size):
            raise DownloadError(f"file has {length:,} bytes, expected {size:,}")
        while len(data) < size and (chunk := response.read1(min(CHUNK, size - len(data)))):
            data += chunk
            progress(len(data))
    if len(data) < size:
        raise HTTPException(f"connection closed after {len(data):,} of {size:,} bytes")
    return bytes(data)


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
        raise DownloadError(f"{url}: scheme must be {' or '.join(schemes)}")
