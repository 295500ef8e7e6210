"""Attention as one operator: score, position, mask, align, read."""

from qkv.attention.align import Align, Softmax, Uniform
from qkv.attention.encoding import Encoding, Learned, Sinusoidal
from qkv.attention.extent import Extent
from qkv.attention.mask import Causal, Dense, Documents, Mask, Padding, Prefix, Window
from qkv.attention.operator import Attend, Plan, attend, explain, plan
from qkv.attention.position import Position
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
from qkv.attention.spec import Attended
from qkv.attention.watch import watch

__all__ = [
    "SCORES", "Additive", "Align", "Attend", "Attended", "Bilinear", "Causal", "Concat", "Cosine", "Dense",
    "Documents", "Dot", "Encoding", "Extent", "Keys", "Learned", "Location", "LowRankBilinear", "Mask", "Padding",
    "Plan", "Position", "Prefix", "ScaledDot", "Score", "Sinusoidal", "Sizes", "Softmax", "Uniform", "Window",
    "attend", "explain", "plan", "watch",
]  # fmt: skip
