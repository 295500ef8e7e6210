import torch

import qkv
from qkv.attention import Score


@qkv.register("score", "gaussian")
class Gaussian(Score):
    """score(q, k) = -|q - k|^2 / 2."""

    def forward(self, query, key):
        return -(torch.cdist(query, key) ** 2) / 2
