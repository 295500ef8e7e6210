"""The explorer page of the server, and the data that it shows."""

from collections.abc import Sequence
from typing import Any

from qkv.pipelines.output import Answer
from qkv.visualize.explorer import build_payload, served_page


def attention_payload(answer: Answer, model: str) -> dict[str, Any]:
    """Return the attention of an answer in the format of the explorer."""
    return build_payload([answer], model=model, command="qkv serve")


def explorer_page(models: Sequence[str]) -> str:
    """Return the explorer page for models with attention."""
    return served_page(models)
