"""HTML of results in notebooks: fragments without scripts, in the colors of the notebook's theme."""

from qkv.visualize.notebook import answers, evaluations, labels, lists, weights
from qkv.visualize.notebook.html import to_html

__all__ = ["answers", "evaluations", "labels", "lists", "to_html", "weights"]
