"""Figures of the lecture notes, each drawn from a model that is trained or loaded for it."""

from qkv.experiments.claims.note_figures.figures import FIGURES, NoteFigure, draw_figure

__all__ = ["FIGURES", "NoteFigure", "draw_figure"]
