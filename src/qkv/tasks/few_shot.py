"""Few-shot classification as a task to learn: from a few labelled pictures of classes never seen to the class of one.

Pictures lie on the device once and for all; a batch holds their numbers.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.data.episodes import FewShotDataset
from qkv.data.registry import LoadedData
from qkv.data.tensor_batch import TensorBatch
from qkv.metrics import Metric
from qkv.models.snail import SNAIL
from qkv.tasks.image_classification import moved, scaled
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Int, Shaped, Tensor

EXAMINED = 1000  # episodes
HELD_OUT = 2**31  # the seed of episodes to validate and to test on, the same for every run: none can have it
AT_ONCE = 2**12  # pictures that are looked at together, where nothing is learned
WITHIN = 1.96  # standard errors to each side hold the true mean in 95 of 100 cases


@dataclass(frozen=True)
class EpisodeBatch(TensorBatch):
    """Some episodes: the numbers of their pictures, of which the last is asked for, and the labels of all."""

    pictures: Int[Tensor, "batch length"]
    labels: Int[Tensor, "batch length"]
    places: Int[Tensor, "batch length 2"]  # the first row and column of each, with an edge of `shift` black pixels

    @property
    def tokens(self) -> int:
        return len(self.labels)


@dataclass
class FewShotTask(ScoredTask):
    """Episodes that the seed and their number decide, each picture in them a little moved.

    An epoch has about as many as there are classes.
    """

    title = "few-shot classification"
    command = "view"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "accuracy": Metric("accuracy", percent=True),
        "margin": Metric("margin", higher_is_better=False, percent=True),  # to both sides of the accuracy, of 95 %
    }
    model = SNAIL
    learns_from = "episodes"
    from_data = ("ways", "shots", "channels", "height", "width")
    capturable = True

    train: FewShotDataset
    valid: FewShotDataset
    settings: Settings
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.vocabulary = None
        self.album = Album(self.train)

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"ways": 1, "shots": 1, "channels": 1, "height": 2**16, "width": 2**16}

    @classmethod
    def sizes(cls, data: LoadedData, vocabulary: None) -> dict[str, Any]:
        train = data.episodes["train"]
        channels, height, width = train.pixels.shape[2:]
        return {"ways": train.ways, "shots": train.shots, "channels": channels, "height": height, "width": width}

    @classmethod
    def prepare(cls, data: LoadedData, vocabulary: None, model: Any, train: Settings, seed: int) -> "FewShotTask":
        return cls(data.episodes["train"], data.episodes["valid"], train, seed, data.notes)

    def describe(self) -> str:
        return f"{len(self.train):,} classes, {self.train.ways} ways, {self.train.shots} shot(s)"

    def epoch(self, number: int) -> list[list[int]]:
        size = self.settings.batch_tokens
        count = -(-len(self.train) // size)  # there is always another episode: no batch is smaller than the others
        return [[*range(begin * size, (begin + 1) * size)] for begin in range(number * count, (number + 1) * count)]

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> EpisodeBatch:
        episodes = self.train.sample(self.seed, rows)
        shown, labels, queries, asked = map(
            torch.from_numpy, (episodes.support, episodes.labels, episodes.queries, episodes.query_label[:, None])
        )
        pictures = torch.cat((shown, queries.gather(1, asked)), dim=1)
        chance = torch.Generator().manual_seed(random.Random(f"{self.seed} {rows[0]}").getrandbits(63))
        places = torch.randint(2 * self.settings.shift + 1, (*pictures.shape, 2), generator=chance)
        return EpisodeBatch(pictures, torch.cat((labels, asked), dim=1), places)

    def loss(self, model: SNAIL, batch: EpisodeBatch) -> Float[Tensor, ""]:
        pixels = self.album.of(batch.pictures)
        each = moved(pixels.flatten(0, 1), self.settings.shift, batch.places.flatten(0, 1))
        logits = model(scaled(each.unflatten(0, pixels.shape[:2])), batch.labels[:, :-1]).float()
        return F.cross_entropy(logits, batch.labels[:, -1], label_smoothing=self.settings.label_smoothing)

    def validate(self, model: SNAIL) -> dict[str, float]:
        return scores(model, self.valid, self.settings.valid_size)

    @classmethod
    def splits(cls, data: LoadedData) -> list[str]:
        return list(data.episodes)

    def examine(self, model: SNAIL, data: LoadedData, split: str) -> Examined:
        return Examined(EXAMINED, "episodes", scores(model, data.episodes[split], EXAMINED))


class Album:
    """The pictures of a split, by their numbers; each device that asks has a copy of them all."""

    def __init__(self, examples: FewShotDataset) -> None:
        self._pixels = torch.from_numpy(examples.pixels).flatten(0, 1)
        self._on: dict[torch.device, Tensor] = {}

    def of(self, numbers: Int[Tensor, "batch length"]) -> Shaped[Tensor, "batch length channels height width"]:
        """The pictures of these numbers, where the numbers are."""
        if numbers.device not in self._on:
            self._on[numbers.device] = self._pixels.to(numbers.device)
        return self._on[numbers.device][numbers]


@torch.inference_mode()
def scores(model: SNAIL, examples: FewShotDataset, count: int) -> dict[str, float]:
    """How a model does in so many episodes, in each of which it is asked for every class once.

    The margin is 1.96 standard errors of the mean over episodes, whose queries share what was shown.
    """
    album, ways = Album(examples), examples.ways
    together = max(1, AT_ONCE // (ways * (examples.shots + 1)))
    losses, right = [], []
    for begin in range(0, count, together):
        episodes = examples.sample(HELD_OUT, range(begin, min(begin + together, count)))
        shown, labels, queries = (
            torch.from_numpy(numbers).to(model.device)
            for numbers in (episodes.support, episodes.labels, episodes.queries)
        )
        pictures = scaled(album.of(torch.cat((shown, queries), dim=1)))
        logits = asked_for_all(model, pictures, labels).float()  # b asked ways
        answers = torch.arange(ways, device=model.device).expand(len(logits), -1)
        losses.append(F.cross_entropy(logits.movedim(-1, 1), answers, reduction="none").double().mean(dim=1))
        right.append((logits.argmax(dim=-1) == answers).double().mean(dim=1))
    each = torch.cat(right)
    deviation = float(each.std()) if count > 1 else math.nan
    return {
        "loss": float(torch.cat(losses).mean()),
        "accuracy": float(each.mean()),
        "margin": WITHIN * deviation / math.sqrt(count),
    }


def asked_for_all(
    model: SNAIL, pictures: Shaped[Tensor, "batch pictures channels height width"], labels: Int[Tensor, "batch shown"]
) -> Float[Tensor, "batch asked ways"]:
    """The logits for every picture that has no label, each as if it alone followed those that have one.

    What a picture looks like is worked out once, for all sequences it is in.
    """
    rows, shown = labels.shape
    asked = pictures.shape[1] - shown
    features = model.embed(pictures.flatten(0, 1)).unflatten(0, (rows, -1))
    before = features[:, None, :shown].expand(-1, asked, -1, -1)
    sequences = torch.cat((before, features[:, shown:, None]), dim=2)  # b asked shown+1 f
    repeated = labels[:, None].expand(-1, asked, -1)
    return model.classify(sequences.flatten(0, 1), repeated.flatten(0, 1)).unflatten(0, (rows, asked))
