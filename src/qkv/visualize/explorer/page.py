"""Write the explorer as a self-contained HTML file, and render the page that a server returns."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.pipelines.output import Answer
from qkv.runtime.files import write_atomically
from qkv.visualize.explorer.bundle import render
from qkv.visualize.explorer.payload import build_payload, to_script

LONGEST_NAME = 60  # characters of an input in the title of the window; as in app/text.js


def save_page(
    answers: Sequence[Answer],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    model: str | Sequence[str] = "",
    command: str = "",
) -> Path:
    """Write answers and their attention as one self-contained HTML file, which names the model and the command.

    `model` is a name, or the names of the models of the answers.
    """
    payload = build_payload(answers, title=title, model=model, command=command)
    page = render(payload["title"], to_script(payload), name=_window_title(payload))
    write_atomically(Path(path), page.encode("utf-8", errors="replace"))
    return Path(path)


def _window_title(payload: dict[str, Any]) -> str:
    """Return the title of the window: that of the page, or the model and the first input (as in app.js)."""
    if payload["titled"] or not payload["examples"]:
        return str(payload["title"])
    source = payload["examples"][0]["source"]
    shown = source if len(source) <= LONGEST_NAME else f"{source[:LONGEST_NAME]}…"
    return "Attention: " + ", ".join(filter(None, [payload["model"], shown]))


def served_page(
    models: Sequence[str], *, endpoint: str = "/attention", docs: str = "/docs", inputs: Mapping[str, str] | None = None
) -> str:
    """Return the page of a server with these models: a POST request to `endpoint` returns the payload of an input.

    `docs` is the address of the server's documentation; `inputs` are the inputs to start with, by model.
    """
    title = f"Attention of {models[0]}" if len(models) == 1 else "Attention"
    server = {"endpoint": endpoint, "docs": docs, "models": [*models], "inputs": {**(inputs or {})}}
    payload = build_payload([], title=title) | {"server": server}
    return render(title, to_script(payload), served=True)
