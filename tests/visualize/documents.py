"""A document with known attention."""

import numpy as np

from qkv.interpret.document_probe import WeightedDocument, WeightedSentence


def document(*words: str, label: str = "positive", left_out: int = 0) -> WeightedDocument:
    """Two sentences: weight 0.25 on the first with uniform word weights, 0.75 on the second."""
    first = WeightedSentence(0.25, ("A", " film", "."), np.full(3, 1 / 3))
    second = WeightedSentence(0.75, (*words, " ", " fine "), np.array([*[0.2 / len(words)] * len(words), 0.0, 0.8]))
    probabilities = {label: 0.9, "negative": 0.1}
    return WeightedDocument("whatever", label, probabilities, (first, second), left_out)
