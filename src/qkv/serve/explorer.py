"""The explorer page of the server, and the data that it shows."""

import html
import json
from collections.abc import Sequence
from typing import Any

from qkv.pipelines.output import Answer

try:
    from qkv.visualize.explorer import build_payload, served_page  # type: ignore[import-not-found]
except ImportError:  # without the explorer, the data of the attention page and a list of the models
    from qkv.visualize.pages.attention_page import _data

    def build_payload(answers: Sequence[Answer], *, model: str, command: str) -> dict[str, Any]:
        """Return the attention of answers as the data of a page."""
        return {**json.loads(_data(answers)), "model": model, "command": command}

    def served_page(models: Sequence[str]) -> str:
        """Return a page that lists the models."""
        names = "".join(f"<li>{html.escape(name)}</li>" for name in models)
        return f'<!doctype html><title>qkv</title><h1>qkv</h1><ul>{names}</ul><p><a href="/docs">Endpoints</a></p>'


def attention_payload(answer: Answer, model: str) -> dict[str, Any]:
    """Return the attention of an answer in the format of the explorer."""
    payload: dict[str, Any] = build_payload([answer], model=model, command="qkv serve")
    return payload


def explorer_page(models: Sequence[str]) -> str:
    """Return the explorer page for models with attention."""
    page: str = served_page(models)
    return page
