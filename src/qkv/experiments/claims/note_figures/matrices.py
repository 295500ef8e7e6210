"""Figures of attention matrices and positions."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from qkv.attention import Sinusoidal
from qkv.experiments.claims.dates import SMALL_GRU, SMALL_TRANSFORMER
from qkv.experiments.claims.note_figures.runs import WORD_LSTMN, trained_run
from qkv.experiments.claims.pretraining.contextual import minilm_folder
from qkv.interpret.attention_probe import AttentionProbe
from qkv.pipelines.output import AttentionMap
from qkv.pipelines.translator import Translator
from qkv.visualize.figure import save_png
from qkv.visualize.glyphs import visible
from qkv.visualize.matrices import MatrixPanel, save_matrices
from qkv.visualize.plotting import new_figure, save_figure

DATE = "Donnerstag, 5. März 2026"
STREET = "The animal didn't cross the street because it was too {}."
CRIMINAL = "the king is killing a traitor in the night ."
SPECIAL = ("[CLS]", "[SEP]")


def alignment(runs: Path, path: Path, device: str, seed: int) -> str:
    """Attention of each output character over the input characters."""
    run = trained_run(runs, device, seed, "dates-gru", *SMALL_GRU)
    answer = Translator(run, device=device)(DATE)
    save_png(answer, path)
    return f"{DATE} -> {answer.text}"


def positions(runs: Path, path: Path, device: str, seed: int) -> str:
    """Heat map of 50 positions of width 128, and the curves of four indices."""
    encoding = Sinusoidal(128)(50).numpy()
    figure = new_figure(9.0, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1.0))
    left.imshow(encoding, cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    left.set(xlabel="index", ylabel="position", title="PE(position, index), d = 128")
    for index in (4, 5, 16, 17):
        right.plot(encoding[:, index], label=f"index {index} ({'cos' if index % 2 else 'sin'})")
    right.set(xlabel="position", title="PE by position", ylim=(-1.1, 1.9))
    right.legend(fontsize=7, ncols=2, frameon=False, loc="upper center")
    figure.tight_layout()
    save_figure(figure, path, dpi=80)
    return "50 positions"


def masked_scores(runs: Path, path: Path, device: str, seed: int) -> str:
    """Scores minus the largest of each row, and weights, of a decoder's self-attention; masked cells are gray."""
    run = trained_run(runs, device, seed, "dates-transformer", *SMALL_TRANSFORMER)
    answer = Translator(run, device=device)(DATE)
    (decoder,) = (each for each in answer.attention if each.layer == "decoder.0.self")
    weights = decoder.weights[0].astype(np.float64)
    future = np.triu(np.ones_like(weights, dtype=bool), k=1)
    scores = np.log(np.where(future, 1.0, np.maximum(weights, 1e-9)))
    scores -= np.where(future, -np.inf, scores).max(axis=1, keepdims=True)
    rows, columns = (tuple(map(visible, tokens)) for tokens in (decoder.rows, decoder.columns))
    panels = [
        MatrixPanel(title, np.ma.masked_array(matrix, future), rows, columns)
        for title, matrix in (("score minus the largest of the row", scores), ("weight", weights))
    ]
    save_matrices(panels, path, columns=2, cell=0.22)
    return f"{answer.text}: first head of the first decoder layer"


def head_grid(runs: Path, path: Path, device: str, seed: int) -> str:
    """Weights of all heads, a row per layer."""
    answer = AttentionProbe(minilm_folder(), device=device)(STREET.format("tired"))
    panels = [
        MatrixPanel(f"{layer + 1}.{head + 1}", weights, (), ())
        for layer, each in enumerate(answer.attention)
        for head, weights in enumerate(each.weights)
    ]
    save_matrices(panels, path, columns=len(answer.attention[0].weights), cell=0.05)
    return f"{len(panels)} heads; rows are queries, columns keys: {' '.join(answer.attention[0].rows)}"


def street(runs: Path, path: Path, device: str, seed: int) -> str:
    """Weights of "it" over the other words, by layer, in two sentences that differ in the last word."""
    probe, panels, lines = AttentionProbe(minilm_folder(), device=device), [], []
    for last in ("tired", "wide"):
        answer = probe(STREET.format(last))
        maps: list[AttentionMap] = list(answer.attention)
        tokens = tuple(token.strip() for token in maps[0].columns)
        query = tokens.index("it")
        kept = [number for number, token in enumerate(tokens) if token not in SPECIAL]
        rows = np.stack([each.weights[:, query, kept].mean(axis=0) for each in maps])
        rows = rows / rows.sum(axis=1, keepdims=True)
        words = tuple(tokens[number] for number in kept)
        panels.append(MatrixPanel(f'"it", ... too {last}', rows, _layer_names(len(rows)), words))
        mean: Float[np.ndarray, words] = rows.mean(axis=0)
        lines.append(f"{last}: animal {mean[words.index('animal')]:.3f}, street {mean[words.index('street')]:.3f}")
    save_matrices(panels, path, columns=1, cell=0.36)
    return "; ".join(lines)


def intra_attention(runs: Path, path: Path, device: str, seed: int) -> str:
    """Attention of each word to the words before it, in an LSTM memory-network."""
    run = trained_run(runs, device, seed, "shakespeare-lstmn", *WORD_LSTMN)
    answer = AttentionProbe(run, device=device)(CRIMINAL)
    save_png(answer, path)
    return CRIMINAL


def _layer_names(count: int) -> tuple[str, ...]:
    return tuple(f"layer {number}" for number in range(1, count + 1))
