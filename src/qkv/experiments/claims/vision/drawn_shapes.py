"""Images of one shape each, and training of a classifier of them."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from qkv.datasets.corpora.synthetic.shapes import COLORS, LARGE, SHAPES, SMALL, Scene, SceneObject
from qkv.types import Float, Int, Tensor

SIDE = 24  # pixels
BATCH, LEARNING_RATE = 64, 1e-3

Images = tuple[Float[Tensor, "images 3 side side"], Int[Tensor, "images"]]


def draw_shapes(count: int, rng: random.Random) -> Images:
    """Return images of one object each, and the indices of the shapes."""
    images, labels = np.empty((count, 3, SIDE, SIDE), dtype=np.uint8), []
    for image in images:
        shape, side, color = rng.randrange(len(SHAPES)), rng.choice((SMALL, LARGE)), rng.choice([*COLORS])
        top, left = rng.randint(0, SIDE - side), rng.randint(0, SIDE - side)
        item = SceneObject(SHAPES[shape], color, side, 0, 0, top, left, COLORS[color])
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
