"""Attention as one operator: score, position, mask, align, weighted sum."""

from qkv.attention.ablate import ablate, replace_weights
from qkv.attention.addressing import Addressing
from qkv.attention.align import Align, AlignInput, LinearStart, LocalMonotonic, LocalPredictive, Softmax, Uniform
from qkv.attention.encoding import Learned, PositionalEncoding, Sinusoidal
from qkv.attention.hard import Hard
from qkv.attention.mask import AnyMask, Causal, Dense, Documents, Mask, Padding, Prefix, Window
from qkv.attention.operator import Attend, attend, explain
from qkv.attention.position import ALiBi, Position, Rotary
from qkv.attention.quadratic import Quadratic
from qkv.attention.relative import Relative, TreeRelative
from qkv.attention.score import (
    Additive,
    Bilinear,
    Concat,
    Cosine,
    Dot,
    Keys,
    Location,
    LowRankBilinear,
    ScaledDot,
    Score,
    Sizes,
)  # fmt: skip
from qkv.attention.score_shape import ScoreShape
from qkv.attention.simple_encoding import IndexEncoding, IndexFraction, OneHotEncoding
from qkv.attention.sparse import Entmax, Sparsemax
from qkv.attention.spec import AttentionOutput, KeyValue
from qkv.attention.tree import TreePositions, Trees
from qkv.attention.watch import watch
from qkv.errors import Unsupported

__all__ = [
    "ALiBi",
    "Additive",
    "Addressing",
    "Align",
    "AlignInput",
    "AnyMask",
    "Attend",
    "AttentionOutput",
    "Bilinear",
    "Causal",
    "Concat",
    "Cosine",
    "Dense",
    "Documents",
    "Dot",
    "Entmax",
    "Hard",
    "IndexEncoding",
    "IndexFraction",
    "KeyValue",
    "Keys",
    "Learned",
    "LinearStart",
    "LocalMonotonic",
    "LocalPredictive",
    "Location",
    "LowRankBilinear",
    "Mask",
    "OneHotEncoding",
    "Padding",
    "Position",
    "PositionalEncoding",
    "Prefix",
    "Quadratic",
    "Relative",
    "Rotary",
    "ScaledDot",
    "Score",
    "ScoreShape",
    "Sinusoidal",
    "Sizes",
    "Softmax",
    "Sparsemax",
    "TreePositions",
    "TreeRelative",
    "Trees",
    "Uniform",
    "Unsupported",
    "Window",
    "ablate",
    "attend",
    "explain",
    "replace_weights",
    "watch",
]
