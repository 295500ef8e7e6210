"""The payload of the explorer: answers with their attention as one JSON value (see the package's docstring)."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qkv import __version__
from qkv.hub.model_folder import short_name
from qkv.interpret.attention_probe import TextAnswer
from qkv.interpret.beam_probe import SearchedAnswer
from qkv.interpret.episode_probe import EpisodeAnswer
from qkv.interpret.image_probe import PictureAnswer
from qkv.pipelines.captioner import Caption
from qkv.pipelines.output import Answer, AttentionMaps
from qkv.pipelines.recognizer import Segment
from qkv.visualize.colormap import NEGATIVE_ON_DARK, NEGATIVE_ON_LIGHT, ON_DARK, ON_LIGHT
from qkv.visualize.explorer.audio_part import audio_part
from qkv.visualize.explorer.document_part import DocumentAnswer, document_notes, document_part
from qkv.visualize.explorer.episode_part import episode_notes, episode_part
from qkv.visualize.explorer.explanation_part import ExplanationAnswer, explained_picture, explanation_part
from qkv.visualize.explorer.image_part import image_part
from qkv.visualize.explorer.mask_part import mask_part
from qkv.visualize.explorer.memory_part import MemoryAnswer, memory_part
from qkv.visualize.explorer.packing import STEPS, Plan, pack, plan, shape_of
from qkv.visualize.explorer.text_parts import generation_part, operator_note, operator_part, prediction_part
from qkv.visualize.glyphs import ELLIPSIS

FORMAT, VERSION = "qkv-attention", 1
MAX_BYTES = 14_500_000  # of a payload, so that a page is smaller than 15 MB
LONGEST_NAME = 60  # characters of an input in the title of the window
# Characters that could end the script element, open a comment in it, or end a JavaScript line.
_UNSAFE_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def build_payload(
    answers: Sequence[Answer],
    *,
    title: str = "",
    model: str | Sequence[str] = "",
    command: str = "",
    max_bytes: int = MAX_BYTES,
) -> dict[str, Any]:
    """Return the payload of answers, of at most `max_bytes` bytes of JSON where that is possible.

    `model` is a name, or the names of the models of the answers. A page of several models compares them.
    """
    models = _short_names([model] * len(answers) if isinstance(model, str) else model)
    names = [short_name(model)] if isinstance(model, str) else list(dict.fromkeys(models))
    shown = " and ".join(filter(None, names))
    share = max_bytes // (2 * max(1, len(answers)))  # for the pixels of each image, or the values of each spectrogram
    examples = [
        {"model": name, "window_title": title or _window_title(shown, each.source), **_example(each, share)}
        for name, each in zip(models, answers, strict=True)
    ]
    budget = max_bytes - len(_dumps(examples))
    fitting = plan([[shape_of(m) for m in _maps(answer)] for answer in answers], budget)
    coverage: list[float] = []
    for example, answer in zip(examples[: fitting.examples], answers, strict=False):
        for stored, attention_map in zip(example["maps"], _maps(answer)[: fitting.layers], strict=False):
            packed = pack(attention_map, fitting.k)
            stored.update(packed.value)
            coverage.append(packed.coverage)
        example["maps"] = example["maps"][: fitting.layers]
    return {
        "format": FORMAT,
        "version": VERSION,
        "qkv": __version__,
        "title": title or (f"Attention of {shown}" if shown else "Attention"),
        "model": shown,
        "command": command,
        "view": "compare" if len(names) > 1 else "",
        "ramps": {"light": ON_LIGHT, "dark": ON_DARK},
        "negative_ramps": {"light": NEGATIVE_ON_LIGHT, "dark": NEGATIVE_ON_DARK},
        "notes": _notes(fitting, answers, coverage),
        "examples": examples[: fitting.examples],
    }


def _short_names(models: Sequence[str]) -> list[str]:
    """Return the names of models in a page; two models whose short names are equal keep their paths."""
    short = {model: short_name(model) for model in models}
    return [short[model] if [*short.values()].count(short[model]) == 1 else model for model in models]


def _window_title(model: str, source: str) -> str:
    shown = source if len(source) <= LONGEST_NAME else f"{source[:LONGEST_NAME]}{ELLIPSIS}"
    return "Attention: " + ", ".join(filter(None, [model, shown]))


def to_script(payload: dict[str, Any]) -> str:
    """Return the payload as a JSON text that is safe inside a script element."""
    return _dumps(payload).translate(_UNSAFE_IN_SCRIPT)


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _maps(answer: Answer) -> AttentionMaps:
    """Return the maps of an answer: those of its layers, and the rollout of a vision Transformer."""
    rollout = answer.rollout if isinstance(answer, PictureAnswer) else None
    return answer.attention if rollout is None else (*answer.attention, rollout)


def _example(answer: Answer, max_media_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return an example without its weights."""
    # Most layers share their tokens: each distinct sequence is stored once and referenced by index.
    texts = list(dict.fromkeys(tokens for m in _maps(answer) for tokens in (m.rows, m.columns)))
    masks, mask_of = mask_part(answer, _maps(answer))
    return {
        "picture": _picture(answer, max_media_bytes),
        "episode": episode_part(answer, max_media_bytes) if isinstance(answer, EpisodeAnswer) else None,
        "explanation": explanation_part(answer) if isinstance(answer, ExplanationAnswer) else None,
        "audio": audio_part(answer, max_media_bytes) if isinstance(answer, Segment) else None,
        "document": document_part(answer) if isinstance(answer, DocumentAnswer) else None,
        "memory": memory_part(answer) if isinstance(answer, MemoryAnswer) else None,
        "generation": generation_part(answer) if isinstance(answer, TextAnswer) else None,
        "operators": operator_part(answer) if isinstance(answer, TextAnswer) else [],
        "operator_note": operator_note(answer) if _is_text(answer) else "",
        "beams": _beams(answer) if isinstance(answer, SearchedAnswer) else None,
        "source": answer.source,
        "text": answer.text,
        "score": answer.score if math.isfinite(answer.score) and not answer.predictions else None,
        "score_name": _score_name(answer),
        "predictions": prediction_part(answer),
        "unknown": answer.unknown,
        "notes": _notes_on(answer),
        "texts": texts,
        "special": [token for token in answer.special if any(token in tokens for tokens in texts)],
        "maps": [
            {"layer": m.layer, "rows": texts.index(m.rows), "columns": texts.index(m.columns), "mask": mask}
            for m, mask in zip(_maps(answer), mask_of, strict=True)
        ],
        "masks": masks,
    }


def _is_text(answer: Answer) -> bool:
    """Return whether an answer has attention between the tokens of texts."""
    others = (PictureAnswer, Caption, Segment, DocumentAnswer, MemoryAnswer, EpisodeAnswer, ExplanationAnswer)
    return bool(answer.attention) and not isinstance(answer, others)


def _score_name(answer: Answer) -> str:
    """Return what the score is: of a searched text it is normalized by its length (see `Answer.score`)."""
    return "mean log-probability of a token" if isinstance(answer, TextAnswer) else "length-normalized log-probability"


def _beams(answer: SearchedAnswer) -> dict[str, Any]:
    """Return the hypotheses of a search, each an example with its first map, and the nodes of the tree."""
    hypotheses = [_example(replace(each, maps=each.attention[:1])) for each in answer.hypotheses]
    for example, hypothesis in zip(hypotheses, answer.hypotheses, strict=True):
        for stored, attention_map in zip(example["maps"], hypothesis.attention[:1], strict=True):
            stored.update(pack(attention_map, None).value)
    nodes = [node._replace(log_p=round(node.log_p, 5))._asdict() for node in answer.nodes]
    return {"hypotheses": hypotheses, "leaves": answer.leaves, "nodes": nodes}


def _notes_on(answer: Answer) -> list[str]:
    """Return sentences on an example."""
    if isinstance(answer, DocumentAnswer):
        return document_notes(answer)
    return episode_notes(answer) if isinstance(answer, EpisodeAnswer) else list(answer.notes)


def _picture(answer: Answer, max_bytes: int) -> dict[str, Any] | None:
    """Return an image of at most `max_bytes` of base64, and the grid of its cells that the model attends to."""
    if isinstance(answer, ExplanationAnswer):
        return explained_picture(answer, max_bytes)
    if not isinstance(answer, PictureAnswer | Caption):
        return None
    kind = "caption" if isinstance(answer, Caption) else "patches"
    return {"kind": kind, "grid": answer.grid, **image_part(answer.pixels, max_bytes)}


def _notes(fitting: Plan, answers: Sequence[Answer], coverage: Sequence[float]) -> list[str]:
    """Return sentences on how exact and complete the weights are."""
    notes = [f"Weights are stored in steps of 1/{STEPS} (0.000015) and shown to four decimals."] * bool(coverage)
    if fitting.k is not None and any(share < 1 for share in coverage):
        share = sum(coverage) / len(coverage)
        notes.append(
            f"To limit the size of this page, only the {fitting.k} largest weights of each query are stored in large "
            f"layers: {share:.1%} of the attention. Of any other weight, an upper bound (≤) is shown, and it is drawn "
            "as 0."
        )
    layers = max((len(_maps(answer)) for answer in answers), default=0)
    if fitting.layers < layers:
        notes.append(f"To limit the size of this page, it holds {fitting.layers} of {layers} layers of each example.")
    if fitting.examples < len(answers):
        notes.append(f"To limit the size of this page, it holds {fitting.examples} of {len(answers)} examples.")
    return notes
