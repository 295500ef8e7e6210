"""Models by their name on the Hugging Face hub, where the package huggingface_hub is installed."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from qkv.config import shown
from qkv.errors import InputError

NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
WANTED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.spm"]  # never a pickle, and never code
UNWANTED = ["*/*"]  # folders inside: the same model for other libraries

logger = logging.getLogger(__name__)


def is_hub_name(text: str) -> bool:
    """Whether a text is "owner/name" or "owner/name@revision", and no local folder of this name or owner exists."""
    match = NAME.fullmatch(text)
    return match is not None and not Path(text).exists() and not Path(match[1]).parent.exists()


def is_shadowed(text: str) -> bool:
    """Whether a text could be a name on the hub, but its owner is also a local folder."""
    match = NAME.fullmatch(text)
    return match is not None and not Path(text).exists() and Path(match[1]).parent.exists()


def fetch(name: str) -> Path:
    """Download what is missing of a model on the hub, all files at one commit, and return its folder."""
    match = NAME.fullmatch(name)
    assert match is not None
    try:
        folder = _download(match[1], match[2])
    except ImportError:
        raise InputError(
            f"{name}: no such folder; to fetch a model of that name from the Hugging Face hub: pip install 'qkv[hub]'"
        ) from None
    except Exception as error:  # of many kinds: no network, no such model, one that asks for a licence to be signed
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{name}: no such folder, and it could not be fetched from the Hugging Face hub: {shown(reason)} "
            "(with no network, download its files elsewhere and give the folder)"
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{name}: has no safetensors on the Hugging Face hub; a pickle could run any code and is never read"
        )
    return folder


@cache  # so that all parts of a program use the same commit
def _download(repo: str, revision: str | None) -> Path:
    """The folder of a model at a branch, tag or commit; None for the default branch."""
    from huggingface_hub import HfApi, constants, snapshot_download

    timeout = constants.HF_HUB_ETAG_TIMEOUT  # seconds; the environment variable of this name sets it
    download = partial(snapshot_download, repo, allow_patterns=WANTED, ignore_patterns=UNWANTED)
    with _default_timeout(timeout):
        if revision is not None and COMMIT.fullmatch(revision):
            return Path(download(revision=revision))
        try:
            commit = HfApi().model_info(repo, revision=revision, timeout=timeout).sha
        except Exception:
            with suppress(Exception):  # what was downloaded earlier
                return Path(download(revision=revision, local_files_only=True))
            raise
        logger.warning("note: %s is at commit %s; to use this one again: %s@%s", repo, commit, repo, commit)
        return Path(download(revision=commit))


@contextmanager
def _default_timeout(seconds: float) -> Iterator[None]:
    """Set the timeout of the hub's requests that have none of their own, which would wait forever."""
    from huggingface_hub import get_session

    session = get_session()
    before, session.timeout = session.timeout, seconds
    try:
        yield
    finally:
        session.timeout = before
