"""Decoding: greedy search, beam search and sampling over models that score the next token."""

from qkv.generation.back_pointers import Hypothesis
from qkv.generation.beam import beam_search
from qkv.generation.constraints import DecodingConstraints
from qkv.generation.coverage import Coverage
from qkv.generation.cpu.packed_weights import PackedWeights
from qkv.generation.decode import GenerationConfig, generate
from qkv.generation.engine import DType, Engine, EngineCache, SpeculativeConfig
from qkv.generation.grammar import BracketGrammar, Grammar
from qkv.generation.requests import Request, Tokens
from qkv.generation.sampling import Sampling, sample, stream
from qkv.generation.search import greedy_search
from qkv.generation.speculative import PromptLookup

__all__ = [
    "BracketGrammar",
    "Coverage",
    "DType",
    "DecodingConstraints",
    "Engine",
    "EngineCache",
    "GenerationConfig",
    "Grammar",
    "Hypothesis",
    "PackedWeights",
    "PromptLookup",
    "Request",
    "Sampling",
    "SpeculativeConfig",
    "Tokens",
    "beam_search",
    "generate",
    "greedy_search",
    "sample",
    "stream",
]
