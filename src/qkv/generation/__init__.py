"""Search: from a model that scores the next token to whole sequences."""

from qkv.generation.search import Hypothesis, beam_search, greedy_search

__all__ = ["Hypothesis", "beam_search", "greedy_search"]
