"""Write the explorer as a self-contained HTML file, and render the page that a server returns."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from qkv.pipelines.output import Answer
from qkv.runtime.files import write_atomically
from qkv.visualize.explorer.bundle import render
from qkv.visualize.explorer.payload import build_payload, to_script


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
    name = next((example["window_title"] for example in payload["examples"]), payload["title"])
    page = render(payload["title"], to_script(payload), name=name)
    write_atomically(Path(path), page.encode("utf-8", errors="replace"))
    return Path(path)


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
