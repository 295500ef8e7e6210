"""Decoding: greedy search, beam search and sampling over models that score the next token."""

from qkv.generation.back_pointers import Hypothesis
from qkv.generation.beam import beam_search
from qkv.generation.constraints import MAX_HYPOTHESES, DecodingConstraints
from qkv.generation.coverage import Coverage
from qkv.generation.sampling import Sampling, sample
from qkv.generation.search import greedy_search

__all__ = [
    "MAX_HYPOTHESES",
    "Coverage",
    "DecodingConstraints",
    "Hypothesis",
    "Sampling",
    "beam_search",
    "greedy_search",
    "sample",
]
