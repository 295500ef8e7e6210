"""Download models from the Hugging Face Hub (requires huggingface_hub)."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from qkv.errors import InputError
from qkv.runtime.text import printable

NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
ALLOW_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.spm"]  # no pickles, no code
IGNORE_PATTERNS = ["*/*"]  # subfolders: the same model for other libraries

logger = logging.getLogger(__name__)


def is_hub_name(text: str) -> bool:
    """Return whether `text` is "owner/name[@revision]" and no local folder of this name exists."""
    return NAME.fullmatch(text) is not None and not Path(text).exists()


def fetch(name: str) -> Path:
    """Download the missing files of a model at a single commit and return its local folder."""
    match = NAME.fullmatch(name)
    assert match is not None
    try:
        folder = _download(match[1], match[2])
    except ImportError:
        raise InputError(
            f"{name}: no such folder; to download it from the Hugging Face Hub: pip install 'qkv[hub]'"
        ) from None
    except Exception as error:  # no network, no such model, gated model, ...
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{name}: no such folder, and the download from the Hugging Face Hub failed: {printable(reason)} "
            "(offline: download the files elsewhere and pass the folder)"
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{name}: no safetensors files on the Hugging Face Hub; pickles can execute code and are not supported"
        )
    return folder


@cache  # use one commit throughout a process
def _download(repo: str, revision: str | None) -> Path:
    """Download a model at a branch, tag or commit (None: default branch) and return its folder."""
    from huggingface_hub import HfApi, constants, snapshot_download

    timeout = constants.HF_HUB_ETAG_TIMEOUT  # seconds; set by the environment variable of this name
    download = partial(snapshot_download, repo, allow_patterns=ALLOW_PATTERNS, ignore_patterns=IGNORE_PATTERNS)
    with _default_timeout(timeout):
        if revision is not None and COMMIT.fullmatch(revision):
            return Path(download(revision=revision))
        try:
            commit = HfApi().model_info(repo, revision=revision, timeout=timeout).sha
        except Exception:
            with suppress(Exception):  # fall back to the cache
                return Path(download(revision=revision, local_files_only=True))
            raise
        logger.warning("note: %s is at commit %s; to pin it: %s@%s", repo, commit, repo, commit)
        return Path(download(revision=commit))


@contextmanager
def _default_timeout(seconds: float) -> Iterator[None]:
    """Set a default timeout for Hub requests, which otherwise may wait forever."""
    from huggingface_hub import get_session

    session = get_session()
    before, session.timeout = session.timeout, seconds
    try:
        yield
    finally:
        session.timeout = before
