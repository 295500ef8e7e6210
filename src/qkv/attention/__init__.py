"""Attention as one operator: score, position, mask, align, read."""

from qkv.attention.ablate import ablate
from qkv.attention.addressing import Addressing
from qkv.attention.align import Align, LocalMonotonic, LocalPredictive, Scored, Softmax, Uniform
from qkv.attention.cache import Cache, KeyValue, StaticKeyValue
from qkv.attention.encoding import Encoding, Learned, Sinusoidal
from qkv.attention.extent import Extent
from qkv.attention.hard import Hard
from qkv.attention.mask import Causal, Dense, Documents, Mask, Padding, Prefix, Window
from qkv.attention.operator import Attend, Plan, attend, explain, plan
from qkv.attention.position import ALiBi, Position, Rotary
from qkv.attention.relative import Relative, TreeRelative
from qkv.attention.score import (
    SCORES,
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
from qkv.attention.sparse import Entmax, Sparsemax
from qkv.attention.spec import Attended
from qkv.attention.tree import TreePlaces, Trees
from qkv.attention.watch import watch
from qkv.errors import Unsupported

__all__ = [
    "SCORES", "ALiBi", "Additive", "Addressing", "Align", "Attend", "Attended", "Bilinear", "Cache", "Causal",
    "Concat", "Cosine", "Dense", "Documents", "Dot", "Encoding", "Entmax", "Extent", "Hard", "KeyValue", "Keys",
    "Learned", "LocalMonotonic", "LocalPredictive", "Location", "LowRankBilinear", "Mask", "Padding", "Plan",
    "Position", "Prefix", "Relative", "Rotary", "ScaledDot", "Score", "Scored", "Sinusoidal", "Sizes", "Softmax",
    "Sparsemax", "StaticKeyValue", "TreePlaces", "TreeRelative", "Trees", "Uniform", "Unsupported", "Window", "ablate",
    "attend", "explain", "plan", "watch",
]  # fmt: skip
