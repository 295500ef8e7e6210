"""Claim 15: attention has no or few parameters."""

import torch
from torch import nn

from qkv.attention import Score
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Mean
from qkv.models.transformer import Transformer
from qkv.nn.initialization import SkipInit
from qkv.nn.multi_head import MultiHeadAttention
from qkv.registry import lookup, register
from qkv.training.recipe import read_recipe

VOCAB_SIZE = 10_000
SCORES = ("dot", "cosine", "location", "bilinear", "additive")


@register("claim", "attention-parameters")
class AttentionParameters(SampledClaim):
    """Share of the parameters of attention in recurrent translators by score, and in a Transformer."""

    number = 15
    title = "Attention has no or few parameters"
    statement = "An attention mechanism adds no or few parameters to a network."
    notes = (Note("000", "Self-Attention and Transformer Networks"),)
    equation = (
        "dot: 0     bilinear: d_q d_k     additive: d_a (d_q + d_k + 1)     multi-head: 4 d^2 + 4 d for each layer"
    )
    source = (
        "src/qkv/attention/score.py::Dot",
        "src/qkv/attention/score.py::Bilinear",
        "src/qkv/attention/score.py::Additive",
        "src/qkv/nn/multi_head.py::MultiHeadAttention",
    )
    hypothesis = (
        "In the recurrent translators of Multi30k with 10,000 words per language, the dot product has no parameters, "
        "and every other score has less than 5 % of the parameters of the model. The same is expected of multi-head "
        "attention in the Transformer, although it contains the projections of queries, keys and values."
    )
    criteria = (
        Mean("share of parameters: dot", low=-1e-9, high=1e-9),
        Mean("share of parameters: bilinear", high=0.05),
        Mean("share of parameters: additive", high=0.05),
        Mean("share of parameters: location", high=0.05),
        Mean("share of parameters: multi-head attention", high=0.05),
    )
    figure = (
        Panel(
            "Parameters of attention", "share of the parameters of the model",
            points=tuple(f"share of parameters: {name}" for name in (*SCORES, "multi-head attention")),
        ),
    )  # fmt: skip
    limits = (
        "The share depends on the vocabulary and on the widths: embeddings and the output layer have most parameters "
        "of a translator. Without them, multi-head attention is about a third of a Transformer."
    )
    deterministic = True
    seeds = 1

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        values = {}
        with torch.device("meta"), SkipInit():
            for score in SCORES:
                model = build_model("multi30k-luong-general", "model.encoder.dim=512", f"model.score.name={score}")
                values[f"share of parameters: {score}"] = share(model, Score)
            transformer = build_model("multi30k-transformer")
            assert isinstance(transformer, Transformer)
            values["share of parameters: multi-head attention"] = share(transformer, MultiHeadAttention)
        return Sample(values)


def build_model(recipe_name: str, *overrides: str) -> nn.Module:
    """Build the model of a recipe, with 10,000 words per language."""
    recipe = read_recipe(recipe_name, overrides)
    config = recipe.model.replace(source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)
    return lookup("model", recipe.model.registered_name)(config)


def share(model: nn.Module, part: type[nn.Module]) -> float:
    """Return the share of the parameters of all modules of a class in those of a model."""
    inside = {weight for module in model.modules() if isinstance(module, part) for weight in module.parameters()}
    return sum(weight.numel() for weight in inside) / sum(weight.numel() for weight in model.parameters())
