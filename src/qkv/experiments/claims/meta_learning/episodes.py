"""Few-shot classification of vectors whose classes differ in some features only."""

import torch
from torch.nn import functional as F

from qkv.experiments.claims.cost import threads
from qkv.models.snail import SNAIL, SNAILConfig
from qkv.types import Float, Int, Tensor

WAYS, DIM, INFORMATIVE = 5, 32, 8
NOISE = 0.3  # of the features that depend on the class; their standard deviation between classes is 1
BATCH, TEST_SIZE, LEARNING_RATE = 64, 2000, 1e-3


def draw_episodes(
    count: int, device: torch.device
) -> tuple[Float[Tensor, "count length dim"], Int[Tensor, "count shown"], Int[Tensor, "count"]]:
    """Return one example of each class in random order and a last one, the labels of the first, and of the last."""
    centers = torch.randn(count, WAYS, INFORMATIVE, device=device)
    labels = torch.rand(count, WAYS, device=device).argsort(dim=1)
    target = torch.randint(WAYS, (count, 1), device=device)
    classes = torch.cat((labels, target), dim=1)
    informative = centers.gather(1, classes[:, :, None].expand(-1, -1, INFORMATIVE))
    informative = informative + NOISE * torch.randn_like(informative)
    noise = torch.randn(count, WAYS + 1, DIM - INFORMATIVE, device=device)
    return torch.cat((informative, noise), dim=2), labels, target[:, 0]


def nearest_neighbor(
    features: Float[Tensor, "count length dim"], labels: Int[Tensor, "count shown"]
) -> Int[Tensor, "count"]:
    """Return the label of the example that is nearest to the last one."""
    distances = (features[:, :-1] - features[:, -1:]).norm(dim=-1)
    return labels.gather(1, distances.argmin(dim=1, keepdim=True))[:, 0]


def few_shot_accuracy(seed: int, steps: int, device: torch.device) -> tuple[float, float]:
    """Train SNAIL; return its accuracy and that of the nearest neighbor on new episodes, in percent."""
    torch.manual_seed(seed)
    config = SNAILConfig(ways=WAYS, image_dim=DIM, key_dims=(32, 32), value_dims=(32, 32), filters=32, conv_channels=8)
    model = SNAIL(config).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    with threads(1):
        for _ in range(steps):
            features, labels, target = draw_episodes(BATCH, device)
            optimizer.zero_grad()
            F.cross_entropy(model.classify(features, labels), target).backward()
            optimizer.step()
        features, labels, target = draw_episodes(TEST_SIZE, device)
        with torch.no_grad():
            predicted = model.classify(features, labels).argmax(dim=1)
    nearest = nearest_neighbor(features, labels)
    first, second = (100 * float((guess == target).double().mean()) for guess in (predicted, nearest))
    return first, second
