"""Attention as one operator: score, position, mask, align, read."""

from qkv.attention.align import Align, Softmax
from qkv.attention.mask import Causal, Dense, Mask, Padding
from qkv.attention.operator import Attend, attend
from qkv.attention.position import Position, Sinusoidal
from qkv.attention.score import SCORES, Additive, Dot, Keys, ScaledDot, Score
from qkv.attention.spec import Attended
from qkv.attention.watch import watch

__all__ = [
    "SCORES", "Additive", "Align", "Attend", "Attended", "Causal", "Dense", "Dot", "Keys", "Mask", "Padding",
    "Position", "ScaledDot", "Score", "Sinusoidal", "Softmax", "attend", "watch",
]  # fmt: skip
