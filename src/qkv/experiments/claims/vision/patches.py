"""Claim 53: a Transformer encoder over patches classifies images."""

import random

import torch
from torch import nn

from qkv.datasets.corpora.synthetic.shapes import SHAPES
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.experiments.claims.vision.drawn_shapes import SIDE, draw_shapes, fit
from qkv.models.vit import ViT, ViTConfig
from qkv.registry import register

PATCH = 4  # pixels
SIZE = {"small": 4000, "full": 50_000}  # training images
EPOCHS, TEST_SIZE = {"small": 8, "full": 20}, 1000


@register("claim", "patches")
class Patches(SampledClaim):
    """Accuracy of a vision Transformer without convolutions, and of a linear classifier of the pixels."""

    number = 53
    title = "A Transformer encoder over patches classifies images"
    statement = (
        "The Transformer encoder, unchanged, also works for images: the patches of an image are its tokens, each "
        "projected to a vector and added to the embedding of its position."
    )
    notes = (Note("003", "Vision Transformer"), Note("002", "Vision transformers"))
    equation = (
        "z_0 = [x_class ; x_1 E ; ... ; x_n E] + E_pos;   z_l = Block(z_{l-1});   p = softmax(W LN(z_L)_class + b)"
    )
    source = (
        "src/qkv/models/vit.py::ViT",
        "src/qkv/models/vit.py::PatchEmbedding",
        "src/qkv/experiments/claims/vision/drawn_shapes.py::draw_shapes",
    )
    hypothesis = (
        "The images show one of five shapes, in any of six colors, two sizes and many positions. The accuracy is "
        "above 60 % (by chance 20 %), and at least 20 points above that of a linear classifier of the pixels, trained "
        "on the same images with the same settings."
    )
    criteria = (
        Mean("accuracy: Transformer over patches", low=60.0),
        Difference("accuracy: Transformer over patches", "accuracy: linear classifier", low=20.0),
    )
    figure = (
        Panel(
            "Shape in an image of 24 x 24 pixels", "accuracy, %",
            points=("accuracy: Transformer over patches", "accuracy: linear classifier"),
        ),
    )  # fmt: skip
    limits = (
        "More images for photographs with many classes: a Transformer has to learn what convolutions have built in, as "
        "the neighborhood of pixels."
    )

    seeds_in_processes = True

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        rng = random.Random(torch.initial_seed())
        train, test = (draw_shapes(count, rng) for count in (SIZE[scale], TEST_SIZE))
        config = ViTConfig(
            classes=len(SHAPES), height=SIDE, width=SIDE, patch=PATCH, dim=64, layers=3, heads=4, ffn_dim=128
        )
        models: dict[str, nn.Module] = {
            "Transformer over patches": ViT(config),
            "linear classifier": nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, len(SHAPES))),
        }
        with threads(1):
            accuracy = {name: fit(model.to(device), train, test, EPOCHS[scale]) for name, model in models.items()}
        return Sample({f"accuracy: {name}": value for name, value in accuracy.items()})
