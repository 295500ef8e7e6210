"""Models by their name on the Hugging Face hub, where the package huggingface_hub is installed."""

import re
from pathlib import Path

from qkv.errors import InputError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
WANTED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.spm"]  # never a pickle, and never code
UNWANTED = ["*/*"]  # folders inside: the same model for other libraries


def is_hub_name(text: str) -> bool:
    """Whether a text can only be meant as "owner/name": such a folder, or one for it to be in, is not here."""
    return NAME.fullmatch(text) is not None and not Path(text).exists() and not Path(text).parent.exists()


def fetch(name: str) -> Path:
    """The folder of a model on the hub, after what is missing of it has been downloaded."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"{name}: no such folder; to fetch a model of that name from the Hugging Face hub: pip install 'qkv[hub]'"
        ) from None
    try:
        folder = Path(snapshot_download(name, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    except Exception as error:  # of many kinds: no network, no such model, one that asks for a licence to be signed
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{name}: no such folder, and it could not be fetched from the Hugging Face hub: {reason} "
            "(with no network, download its files elsewhere and give the folder)"
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{name}: has no safetensors on the Hugging Face hub; a pickle could run any code and is never read"
        )
    return folder
