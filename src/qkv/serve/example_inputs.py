"""Inputs with which the served page starts, one per model."""

from typing import Any

EXAMPLES = {  # of pretrained models whose inputs are not English sentences
    "dates": "Donnerstag, 5. März 2026",
    "g2p": "attention",
    "shakespeare": "KING:",
}
EXAMPLES_BY_ENDPOINT = {
    "/v1/completions": "Once upon a time",
    "/translate": "Where is the station?",
    "/classify": "A warm, funny and moving film.",
    "/tag": "The cat sat on the mat.",
    "/fill": "The [MASK] sat on the mat.",
    "/answer": "The cat sat on the mat. Then it slept. Who sat on the mat?",
}
SENTENCE = "The cat sat on the mat."


def example_input(name: str, pipelines: dict[str, Any]) -> str:
    """Return an input for a model, by its name or else by its endpoints."""
    kinds = (text for endpoint, text in EXAMPLES_BY_ENDPOINT.items() if endpoint in pipelines)
    return EXAMPLES.get(name) or next(kinds, SENTENCE)
