"""Self-contained HTML page for exploring attention weights."""

import base64
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.interpret.image_probe import PictureAnswer
from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize.colormap import ON_DARK, ON_LIGHT
from qkv.visualize.pages.template import write_page
from qkv.visualize.selection import checked_weights

_STEPS = 65535  # weights are stored as 16-bit integers, a third of the size of JSON numbers
# Characters that could end the script element, open a comment in it, or end a JavaScript line.
_UNSAFE_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def save_page(answers: Sequence[Answer], path: str | os.PathLike[str], *, title: str = "Attention") -> Path:
    """Write answers and their attention as one self-contained HTML file."""
    return write_page(path, "attention_page.html", title, {"data": _data(answers)})


def _data(answers: Sequence[Answer]) -> str:
    page = {"steps": _STEPS, "ramps": {"light": ON_LIGHT, "dark": ON_DARK}, "answers": [_answer(a) for a in answers]}
    return json.dumps(page, allow_nan=False, separators=(",", ":")).translate(_UNSAFE_IN_SCRIPT)


def _answer(answer: Answer) -> dict[str, Any]:
    # Most layers share their tokens: each distinct sequence is stored once and referenced by index.
    texts = list(dict.fromkeys(tokens for m in answer.attention for tokens in (m.rows, m.columns)))
    return {
        "picture": _picture(answer) if isinstance(answer, PictureAnswer) else None,
        "source": answer.source,
        "text": answer.text,
        "score": answer.score if math.isfinite(answer.score) else None,
        "unknown": answer.unknown,
        "texts": texts,
        "maps": [_map(attention_map, texts) for attention_map in answer.attention],
    }


def _picture(answer: PictureAnswer) -> dict[str, Any]:
    height, width, _ = answer.pixels.shape
    packed = np.ascontiguousarray(answer.pixels).tobytes()
    return {"height": height, "width": width, "grid": answer.grid, "pixels": base64.b64encode(packed).decode()}


def _map(attention_map: AttentionMap, texts: list[tuple[str, ...]]) -> dict[str, Any]:
    weights = checked_weights(attention_map)
    packed = np.rint(weights * _STEPS).astype("<u2").tobytes()
    return {
        "layer": attention_map.layer,
        "rows": texts.index(attention_map.rows),
        "columns": texts.index(attention_map.columns),
        "heads": len(weights),
        "weights": base64.b64encode(packed).decode(),
    }
