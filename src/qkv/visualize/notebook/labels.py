"""Predictions of text encoders in notebooks: classes, tags, filled masks, answers to questions, explanations."""

from qkv.interpret.document_probe import WeightedDocument
from qkv.interpret.explanation import Explanation
from qkv.pipelines.classifier import Classification
from qkv.pipelines.mask_filler import FilledText
from qkv.pipelines.question_answerer import ExtractedAnswer
from qkv.pipelines.tagger import TaggedText
from qkv.visualize.notebook.html import bars, fragment, heat_map, paragraph, shaded, strong, table, text, to_html

MAX_LABELS = 10  # most probable ones
MAX_ROWS = 40  # of an explanation
CONTEXT = 300  # characters shown before and after an answer


@to_html.register
def _(result: Classification) -> str:
    return fragment(*_labelled(result))


def _labelled(result: Classification) -> tuple[str, str, str]:
    more = len(result.probabilities) - MAX_LABELS
    note = paragraph(f"and {more} more labels", quiet=True) if more > 0 else ""
    shown = list(result.probabilities.items())[:MAX_LABELS]
    return paragraph(text(result.text), " → ", strong(result.label)), bars(shown), note


@to_html.register
def _(result: WeightedDocument) -> str:
    peak = max(float(sentence.shares.max()) for sentence in result.sentences)
    most = max(sentence.weight for sentence in result.sentences)
    rows = []
    for sentence in result.sentences:
        pairs = zip(sentence.pieces, sentence.shares.tolist(), strict=True)
        words = "".join(shaded(piece, share / (peak or 1.0), f"{share:.4f}") for piece, share in pairs)
        weight = shaded(f"{sentence.weight:.1%}", sentence.weight / (most or 1.0))
        rows.append(f'<tr><td>{weight}</td><td class="text" dir="auto">{words}</td></tr>')
    return fragment(bars(list(result.probabilities.items())[:MAX_LABELS]), f"<table>{''.join(rows)}</table>")


@to_html.register
def _(result: TaggedText) -> str:
    if not result.entities:
        pairs = zip(result.words, result.tags, strict=True)
        words = (f'<span class="tagged">{text(word)}<small>{text(tag)}</small></span>' for word, tag in pairs)
        return fragment(f'<div dir="auto">{"".join(words)}</div>')
    parts, position = [], 0
    for entity in result.entities:
        parts.append(text(result.text[position : entity.start]))
        parts.append(f"{shaded(entity.text, 1.0)}<small> {text(entity.kind)}</small>")
        position = entity.end
    return fragment(paragraph(*parts, text(result.text[position:])))


@to_html.register
def _(result: FilledText) -> str:
    masks = []
    for number, guesses in enumerate(result.guesses, start=1):
        title = [paragraph(f"mask {number}", quiet=True)] if len(result.guesses) > 1 else []
        masks += [*title, bars([(guess.word, guess.probability) for guess in guesses])]
    return fragment(paragraph(text(result.text), " → ", strong(result.filled)), *masks)


@to_html.register
def _(result: ExtractedAnswer) -> str:
    header = paragraph(text(result.question), " → ", strong(result.text or "no answer"))
    candidates = [*((span.text, span.probability) for span in result.candidates), ("no answer", result.no_answer)]
    span = result.span
    if span is None:
        return fragment(header, paragraph(text(result.context[: 2 * CONTEXT])), bars(candidates))
    before, after = result.context[: span.start], result.context[span.end :]
    shown = (
        ("…" if len(before) > CONTEXT else "") + text(before[-CONTEXT:]),
        shaded(span.text, 1.0),
        text(after[:CONTEXT]) + ("…" if len(after) > CONTEXT else ""),
    )
    return fragment(header, paragraph(*shown), bars(candidates))


@to_html.register
def _(result: Explanation) -> str:
    header = paragraph(strong(result.prediction), f" explained by {text(result.method)}")
    peak = float(abs(result.all_scores).max(initial=0.0)) or 1.0
    if len(result.outputs) == 1:
        pairs = zip(result.units, result.scores.tolist(), strict=True)
        units = (shaded(unit, max(0.0, score) / peak, f"{score:.4f}") for unit, score in pairs)
        probability = paragraph(f"{text(result.outputs[0])} {result.probabilities[0]:.1%}", quiet=True)
        return fragment(header, probability, f'<p dir="auto">{" ".join(units)}</p>')
    if len(result.units) * len(result.outputs) <= MAX_ROWS**2:
        return fragment(header, heat_map(result.outputs, result.units, result.all_scores.clip(min=0.0)))
    rows = [
        (output, ", ".join(f"{unit.strip()} {score:.2f}" for unit, score in result.top(3, number)))
        for number, output in enumerate(result.outputs[:MAX_ROWS])
    ]
    return fragment(header, table(["output", "units with the greatest scores"], rows, (0, 1)))
