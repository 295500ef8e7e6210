"""What a task makes of the layers of a model that it builds upon (Peters et al. 2018).

ELMo = gamma * sum_j s_j y^j,   s = softmax(w)
"""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.types import Float, Tensor


class Mix(nn.Module):
    """gamma * sum_j s_j y^j with s = softmax(w): what a task makes of the layers, each word normalised if need be."""

    def __init__(self, layers: int, *, normalise: bool = False) -> None:
        super().__init__()
        self.normalise = normalise
        self.weights = nn.Parameter(torch.zeros(layers))  # w: at first the mean
        self.scale = nn.Parameter(torch.ones(()))  # gamma

    def forward(self, layers: Float[Tensor, "batch layers words features"]) -> Float[Tensor, "batch words features"]:
        if self.normalise:
            layers = F.layer_norm(layers, layers.shape[-1:])
        shares = torch.softmax(self.weights, dim=0)  # s
        return self.scale * torch.einsum("l,blwf->bwf", shares, layers)
