"""Search: from a model that scores the next token to whole sequences."""

from qkv.generation.beam import beam_search
from qkv.generation.coverage import Coverage
from qkv.generation.rules import MOST_HYPOTHESES, Rules
from qkv.generation.sampling import Sampling, sample
from qkv.generation.search import greedy_search
from qkv.generation.trail import Hypothesis

__all__ = [
    "MOST_HYPOTHESES",
    "Coverage",
    "Hypothesis",
    "Rules",
    "Sampling",
    "beam_search",
    "greedy_search",
    "sample",
]
