"""Answers of decoders in notebooks: translations, captions, transcripts, parses, replies, stories, generated texts."""

import base64

import numpy as np
from jaxtyping import Float
from PIL import Image

from qkv.interpret.image_probe import PictureAnswer
from qkv.pipelines.captioner import Caption
from qkv.pipelines.generator import GeneratedText
from qkv.pipelines.output import Answer
from qkv.pipelines.parser import Parse
from qkv.pipelines.recognizer import Segment, Transcript
from qkv.pipelines.story_answerer import StoryAnswer
from qkv.visualize.glyphs import visible
from qkv.visualize.image_overlay import colored, data_url, over_patches, resized
from qkv.visualize.notebook.html import (
    bars,
    fragment,
    heat_map,
    paragraph,
    picture,
    strong,
    table,
    text,
    tiles,
    to_html,
    weight_image,
)
from qkv.visualize.notebook.weights import MAX_CELLS, map_html
from qkv.visualize.selection import pick_head
from qkv.visualize.tree_drawing import svg

PICTURE, TILE = 224, 112  # longer sides in pixels of an image and of an attention tile
STRIP, ROW = 480, 14  # size in pixels of a row of attention over time
MAX_WORDS, MAX_LABELS = 30, 5


def _header(answer: Answer) -> str:
    return paragraph(text(answer.source), " → ", strong(answer.text)) + _score(answer)


def _score(answer: Answer) -> str:
    """Return the probabilities of an answer's predictions, or its score."""
    if not answer.predictions:
        return paragraph(f"score {answer.score:.4g}", quiet=True)
    first, *others = answer.predictions
    if not others:
        return bars(first.candidates[:MAX_LABELS])
    rows = [(part, candidates[0].text, f"{candidates[0].probability:.1%}") for part, candidates in answer.predictions]
    return table(["", "prediction", "probability"], rows, (0, 1))


@to_html.register
def _(result: Answer) -> str:
    if not result.attention:
        return fragment(_header(result))
    first = result.attention[0]
    shown = first if first.average.size <= MAX_CELLS else result.words()
    return fragment(_header(result), map_html(shown))


@to_html.register
def _(result: Caption) -> str:
    original = _image(resized(result.pixels, PICTURE), f"Image {result.source}")
    header = paragraph(text(result.source), " → ", strong(result.text)) + _score(result)
    if not result.attention:
        return fragment(header, original)
    gray, attention_map = resized(result.pixels, TILE).convert("L"), result.attention[0]
    words = []
    for token, row in list(zip(attention_map.rows, pick_head(attention_map, None), strict=True))[:MAX_WORDS]:
        weights: Float[np.ndarray, "rows columns"] = row.reshape(result.grid)
        word = visible(token.strip())
        alt = f"Attention for {word}; largest weight {weights.max():.2g}"
        words.append((word, _image(colored(gray, weights), alt)))
    more = len(attention_map.rows) - MAX_WORDS
    note = paragraph(f"and {more} more words", quiet=True) if more > 0 else ""
    return fragment(header, tiles([("", original), *words]), note)


@to_html.register
def _(result: PictureAnswer) -> str:
    original = resized(result.pixels, PICTURE)
    shown = [("", _image(original, f"Image {result.source}"))]
    if result.attention:
        weights = pick_head(over_patches(result), None)
        shown.append((f"attention in {result.attention[0].layer}", _image(colored(original.convert("L"), weights), "")))
    return fragment(_header(result), tiles(shown))


@to_html.register
def _(result: Segment) -> str:
    return fragment(_segment(result))


@to_html.register
def _(result: Transcript) -> str:
    return fragment(_header(result), *map(_segment, result.segments))


def _segment(segment: Segment) -> str:
    """Return the log-mel spectrogram of a segment above the attention of each token over time."""
    spectrogram = segment.features.T[::-1]
    low, high = float(spectrogram.min()), float(spectrogram.max())
    rows = [("", weight_image((spectrogram - low) / ((high - low) or 1.0), STRIP, 4 * ROW, "Log-mel spectrogram"))]
    if segment.attention:
        first = segment.attention[0]
        for token, weights in list(zip(first.rows, pick_head(first, None), strict=True))[:MAX_WORDS]:
            rows.append((visible(token), weight_image(weights[None], STRIP, ROW, f"Attention of {visible(token)}")))
    cells = "".join(f'<tr><th>{text(name)}</th><td class="text">{image}</td></tr>' for name, image in rows)
    times = f"{segment.start:.2f} s to {segment.end:.2f} s"
    return paragraph(strong(segment.text), f" {times}") + f"<table><tbody>{cells}</tbody></table>"


@to_html.register
def _(result: Parse) -> str:
    drawing = base64.b64encode(svg([result.tree]).encode()).decode()
    image = f'<img src="data:image/svg+xml;base64,{drawing}" alt="{text(result.text)}" style="background: white">'
    return fragment(paragraph(strong(result.source)), _score(result), image)


@to_html.register
def _(result: StoryAnswer) -> str:
    hops = result.attention[0]
    header = paragraph(text(result.question), " → ", strong(result.text))
    weights = pick_head(hops, None).T
    return fragment(header, heat_map(result.sentences, hops.rows, weights), _score(result))


@to_html.register
def _(result: GeneratedText) -> str:
    body = f'<span style="opacity: 0.65">{text(result.prompt)}</span>{text(result.continuation)}'
    facts = f"{result.new_tokens} new tokens, mean log-probability {result.score:.3f}"
    return fragment(f'<p dir="auto" style="white-space: pre-wrap">{body}</p>', paragraph(facts, quiet=True))


def _image(image: Image.Image, alt: str) -> str:
    return picture(data_url(image), image.width, image.height, alt)
