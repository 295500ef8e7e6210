"""Learned weighted average of the layers of a pre-trained model (Peters et al. 2018).

ELMo = gamma * sum_j s_j y^j,   s = softmax(w)
"""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.types import Float, Tensor


class ScalarMix(nn.Module):
    """gamma * sum_j s_j y^j with s = softmax(w); layer-normalises each y^j first if `normalise`."""

    def __init__(self, layers: int, *, normalise: bool = False) -> None:
        super().__init__()
        self.normalise = normalise
        self.weights = nn.Parameter(torch.zeros(layers))  # w: initially the mean
        self.scale = nn.Parameter(torch.ones(()))  # gamma

    def forward(self, layers: Float[Tensor, "batch layers words features"]) -> Float[Tensor, "batch words features"]:
        if self.normalise:
            layers = F.layer_norm(layers, layers.shape[-1:])
        weights = torch.softmax(self.weights, dim=0)  # s
        return self.scale * torch.einsum("l,blwf->bwf", weights, layers)
