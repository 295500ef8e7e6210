"""One self-contained HTML page in which a person explores what attended to what."""

import base64
import hashlib
import html
import json
import math
import os
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from qkv.runtime.files import write_atomically
from qkv.tasks.answer import Answer, AttentionMap
from qkv.tasks.picture_observer import Pictured
from qkv.view.ink import ON_DARK, ON_LIGHT
from qkv.view.selection import sound_weights

_STEPS = 65535  # weights travel as 16-bit integers, a third of their size as JSON numbers
# What would end the script element, open a comment in it, or end a line of JavaScript.
_UNSAFE_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def save_page(answers: Sequence[Answer], path: str | os.PathLike[str], *, title: str = "What attended to what") -> Path:
    """Write answers and their attention as one HTML file that needs no network, and nothing beside it."""
    template = resources.files("qkv.view").joinpath("page.html").read_text(encoding="utf-8")
    parts = {"title": html.escape(title), "policy": _policy(template), "data": _data(answers)}
    # One pass, so that a placeholder's name inside a token or the title stays what it is: text.
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)
    write_atomically(Path(path), page.encode("utf-8", errors="replace"))
    return Path(path)


def _policy(template: str) -> str:
    """A Content-Security-Policy that admits this template's own style and script, and nothing else."""
    style, script = (_fingerprint(template, tag) for tag in ("style", "script"))
    return f"default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"


def _fingerprint(template: str, tag: str) -> str:
    """The hash by which a browser recognises the one inline element with this bare tag."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", template, flags=re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _data(answers: Sequence[Answer]) -> str:
    page = {"steps": _STEPS, "ramps": {"light": ON_LIGHT, "dark": ON_DARK}, "answers": [_answer(a) for a in answers]}
    return json.dumps(page, allow_nan=False, separators=(",", ":")).translate(_UNSAFE_IN_SCRIPT)


def _answer(answer: Answer) -> dict[str, Any]:
    # Layers mostly share their tokens: each distinct sequence is stored once, and maps refer to it by index.
    texts = list(dict.fromkeys(tokens for m in answer.maps for tokens in (m.rows, m.columns)))
    return {
        "picture": _picture(answer) if isinstance(answer, Pictured) else None,
        "source": answer.source,
        "text": answer.text,
        "score": answer.score if math.isfinite(answer.score) else None,
        "unknown": answer.unknown,
        "texts": texts,
        "maps": [_map(attention_map, texts) for attention_map in answer.maps],
    }


def _picture(answer: Pictured) -> dict[str, Any]:
    height, width, _ = answer.pixels.shape
    packed = np.ascontiguousarray(answer.pixels).tobytes()
    return {"height": height, "width": width, "grid": answer.grid, "pixels": base64.b64encode(packed).decode()}


def _map(attention_map: AttentionMap, texts: list[tuple[str, ...]]) -> dict[str, Any]:
    weights = sound_weights(attention_map)
    packed = np.rint(weights * _STEPS).astype("<u2").tobytes()
    return {
        "layer": attention_map.layer,
        "rows": texts.index(attention_map.rows),
        "columns": texts.index(attention_map.columns),
        "heads": len(weights),
        "weights": base64.b64encode(packed).decode(),
    }
