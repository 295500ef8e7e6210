"""Settings of the server: limits, time limits and API keys."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from qkv.config import Config, PositiveInt
from qkv.errors import InputError
from qkv.runtime.files import read_regular

KEYS_VARIABLE = "QKV_API_KEYS"
MAX_KEY_BYTES = 2**20  # of a file of keys
MIN_KEY_LENGTH = 16


class ServeSettings(Config):
    """Limits of requests and batches; a request beyond a limit is refused, not truncated."""

    dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"  # of the weights in decoding
    device: str = "auto"
    max_batch: Annotated[int, Field(ge=1, le=1024)] = 32  # sequences, or texts, of a model that are run at once
    max_queue: Annotated[int, Field(ge=1, le=2**20)] = 256  # accepted sequences and texts of a model, finished ones not
    max_inputs: Annotated[int, Field(ge=1, le=2**16)] = 64  # sequences, or texts, of one request
    max_tokens: Annotated[int, Field(ge=2, le=2**20)] = 2048  # of a sequence, the prompt included
    max_body_bytes: PositiveInt = 4 * 2**20
    timeout: Annotated[float, Field(gt=0, le=86400)] = 60.0  # seconds until a request is given up
    batch_all: bool = False  # batch models whose results depend on the batch in the last digits, too
    access_log: bool = False  # log a line per request
    api_keys: tuple[str, ...] = Field(default=(), repr=False)  # none: no key is needed


def read_api_keys(path: Path | None) -> tuple[str, ...]:
    """Return the API keys in a file, one per line, or in the environment variable QKV_API_KEYS, separated by commas."""
    if path is not None:
        text, where = read_regular(path, MAX_KEY_BYTES).decode("utf-8", errors="replace"), str(path)
        keys = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        if not keys:
            raise InputError(f"{path}: no API keys: write one per line")
    else:
        where = KEYS_VARIABLE
        keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    for number, key in enumerate(keys, start=1):
        if len(key) < MIN_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(
                f"{where}: API key {number} must be at least {MIN_KEY_LENGTH} printable ASCII characters without spaces"
            )
    return tuple(keys)
