"""Reorder the features of a Transformer, so that transformers can load it.

In "Attention is all you need" sines and cosines alternate, PE = (sin, cos, sin, cos, ...); in transformers all sines
come first. A Transformer computes the same if the features of its hidden states are permuted, which permutes the
columns of all matrices that multiply hidden states and the rows of all that compute them.
"""

import torch

from qkv.models.transformer import Transformer
from qkv.types import Int, Tensor

COLUMNS = ("tokens.weight", "readout.weight", "qkv_proj.weight", "up_proj.weight")  # of matrices, by hidden state
ROWS = ("out_proj.weight", "out_proj.bias", "down_proj.weight", "down_proj.bias")  # and elements of vectors
NORM = "norm"  # in the names of layer normalization, with one weight and bias per feature


def with_sines_first(model: Transformer) -> Transformer:
    """Return a Transformer with alternating sines and cosines as one with the sines first; others as they are."""
    config = model.config
    if config.position.name != "sinusoidal" or config.tree != "none" or config.copying or config.pointer:
        return model
    order = torch.cat((torch.arange(0, config.dim, 2), torch.arange(1, config.dim, 2)))
    reordered = Transformer(config.replace(position="sinusoidal_halves")).to(model.readout.weight.dtype).eval()
    reordered.tokenizer = model.tokenizer
    weights = {name: _reordered(name, weight.detach(), order) for name, weight in model.named_parameters()}
    parameters = dict(reordered.named_parameters())  # tied weights have one name
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)
    return reordered


def _reordered(name: str, weight: Tensor, order: Int[Tensor, "dim"]) -> Tensor:
    if name.endswith(COLUMNS):
        return weight[:, order]
    if name.endswith(ROWS) or NORM in name:
        return weight[order]
    return weight  # biases of queries, keys and values, of the first layer of the FFN, and of the readout
