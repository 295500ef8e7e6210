"""Claim 53: a Transformer encoder over patches classifies images."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from qkv.datasets.corpora.synthetic.shapes import COLOURS, LARGE, SHAPES, SMALL, Scene, SceneObject
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.models.vit import ViT, ViTConfig
from qkv.registry import register
from qkv.types import Float, Int, Tensor

SIDE, PATCH = 24, 4  # pixels
SIZE = {"small": 4000, "full": 50_000}  # training images
EPOCHS, BATCH, TEST_SIZE, LEARNING_RATE = {"small": 8, "full": 20}, 64, 1000, 1e-3


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
    source = ("src/qkv/models/vit.py::ViT", "src/qkv/models/vit.py::PatchEmbedding")
    hypothesis = (
        "The images show one of five shapes, in any of six colours, two sizes and many positions. The accuracy is "
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
        "the neighbourhood of pixels."
    )

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


Images = tuple[Float[Tensor, "images 3 side side"], Int[Tensor, "images"]]


def draw_shapes(count: int, rng: random.Random) -> Images:
    """Return images of one object each, and the indices of the shapes."""
    images, labels = np.empty((count, 3, SIDE, SIDE), dtype=np.uint8), []
    for image in images:
        shape, side, colour = rng.randrange(len(SHAPES)), rng.choice((SMALL, LARGE)), rng.choice([*COLOURS])
        top, left = rng.randint(0, SIDE - side), rng.randint(0, SIDE - side)
        item = SceneObject(SHAPES[shape], colour, side, 0, 0, top, left, COLOURS[colour])
        Scene((item,), background=rng.randint(20, 70)).draw(image)
        labels.append(shape)
    return torch.from_numpy(images).float() / 127.5 - 1, torch.tensor(labels)


def fit(model: nn.Module, train: Images, test: Images, epochs: int) -> float:
    """Train a classifier; return its accuracy on the test images in percent."""
    device = next(model.parameters()).device
    (x, y), (test_x, test_y) = ([tensor.to(device) for tensor in part] for part in (train, test))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=device).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        right = torch.cat([model(part).argmax(dim=1) for part in test_x.split(BATCH)]) == test_y
    return 100 * float(right.double().mean())
