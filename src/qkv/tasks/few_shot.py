"""Few-shot classification task: classify a picture given a few labeled pictures of each new class.

The pictures are kept on the device; a batch holds their indices.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.config import Rate
from qkv.datasets.batching import numbered_batches
from qkv.datasets.dataset import EpisodeDataset
from qkv.datasets.examples.episodes import FewShotDataset
from qkv.datasets.tensor_batch import TensorBatch
from qkv.metrics import Metric
from qkv.models.snail import SNAIL
from qkv.pipelines.inputs.image_preprocessing import scale_pixels
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.task import ACCURACY, LOSS, Pixels, Task, TaskConfig
from qkv.tasks.image_classification import PixelCache, distort, random_maps, shift_crop
from qkv.types import Float, Int, Shaped, Tensor

EVAL_EPISODES = 1000
EVAL_SEED = 2**31  # of validation and test episodes, the same for every run and outside the range of run seeds
EVAL_PICTURES = 2**12  # embedded at a time in evaluation
Z_95 = 1.96  # standard errors of a 95 % confidence interval


@dataclass(frozen=True)
class EpisodeBatch(TensorBatch):
    """Episodes: the indices of their pictures, the queries last, and all labels."""

    pictures: Int[Tensor, "batch length"]
    labels: Int[Tensor, "batch length"]
    offsets: Int[Tensor, "batch length 2"]  # top left corner of each crop, in the picture padded by `shift` pixels
    distortions: Float[Tensor, "batch length 2 2"]  # linear maps of the pixel positions

    @property
    def tokens(self) -> int:
        return len(self.labels)


class FewShotConfig(TaskConfig):
    """Options of the task."""

    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy
    shift: Pixels = 0  # maximum random shift in pixels
    distort: Rate = 0.0  # maximum change of each element of a random linear map of the pixel positions
    all_queries: bool = False  # train on a query of each class of an episode, instead of one of a random class


@register("task", "few_shot")
class FewShotTask(Task):
    """Episodes determined by the seed and their number, with randomly shifted and distorted pictures.

    An epoch has about as many episodes as there are classes.
    """

    title = "few-shot classification"
    cli_command = "view"
    metrics: ClassVar = {
        "loss": LOSS,
        "accuracy": ACCURACY,
        "margin": Metric("margin", higher_is_better=False, percent=True),  # half width of the 95 % confidence interval
    }
    model = SNAIL
    datasets = (EpisodeDataset,)
    batch_units = ("examples",)
    config_class = FewShotConfig
    from_data = ("ways", "shots", "channels", "height", "width")
    capturable = True

    @classmethod
    def sizes(cls, data: EpisodeDataset, tokenizer: None) -> dict[str, Any]:
        train = data.splits["train"]
        channels, height, width = train.pixels.shape[2:]
        return {"ways": train.ways, "shots": train.shots, "channels": channels, "height": height, "width": width}

    def setup(self, data: EpisodeDataset) -> None:
        self.train, self.valid = data.splits["train"], data.splits["valid"]
        self.pixel_cache = PixelCache(torch.from_numpy(self.train.pixels).flatten(0, 1))

    def describe(self) -> str:
        return f"{len(self.train):,} classes, {self.train.ways} ways, {self.train.shots} shot(s)"

    def epoch(self, number: int) -> list[list[int]]:
        return numbered_batches(len(self.train), self.train_config.batch_size, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> EpisodeBatch:
        episodes = self.train.sample(self.seed, rows)
        support, labels, queries, answer = map(
            torch.from_numpy, (episodes.support, episodes.labels, episodes.queries, episodes.query_label[:, None])
        )
        if self.options.all_queries:
            answer = torch.arange(self.train.ways).expand(len(rows), -1)
        pictures = torch.cat((support, queries.gather(1, answer)), dim=1)
        generator = torch.Generator().manual_seed(random.Random(f"{self.seed} {rows[0]}").getrandbits(63))
        offsets = torch.randint(2 * self.options.shift + 1, (*pictures.shape, 2), generator=generator)
        distortions = random_maps(tuple(pictures.shape), self.options.distort, generator)
        return EpisodeBatch(pictures, torch.cat((labels, answer), dim=1), offsets, distortions)

    def loss(self, model: SNAIL, batch: EpisodeBatch) -> Float[Tensor, ""]:
        pixels = self.pixel_cache.gather(batch.pictures)
        shifted = shift_crop(pixels.flatten(0, 1), self.options.shift, batch.offsets.flatten(0, 1))
        if self.options.distort:
            shifted = distort(shifted, batch.distortions.flatten(0, 1))
        images = scale_pixels(shifted.unflatten(0, pixels.shape[:2]))
        support, answers = batch.labels.split(
            (model.config.length - 1, batch.labels.shape[1] - model.config.length + 1), 1
        )
        logits = (
            query_logits(model, images, support).flatten(0, 1) if self.options.all_queries else model(images, support)
        )
        return F.cross_entropy(logits.float(), answers.flatten(), label_smoothing=self.options.label_smoothing)

    def validate(self, model: SNAIL) -> dict[str, float]:
        return scores(model, self.valid, self.train_config.valid_size)

    def evaluate(self, model: SNAIL, data: EpisodeDataset, split: str) -> Evaluation:
        return Evaluation(EVAL_EPISODES, "episodes", scores(model, data.splits[split], EVAL_EPISODES))


@torch.inference_mode()
def scores(model: SNAIL, examples: FewShotDataset, count: int) -> dict[str, float]:
    """Metrics over `count` episodes, with one query per class each.

    The margin is 1.96 standard errors of the mean over episodes, whose queries share a support set.
    """
    pixel_cache, ways = PixelCache(torch.from_numpy(examples.pixels).flatten(0, 1)), examples.ways
    chunk_size = max(1, EVAL_PICTURES // (ways * (examples.shots + 1)))
    losses, right = [], []
    for begin in range(0, count, chunk_size):
        episodes = examples.sample(EVAL_SEED, range(begin, min(begin + chunk_size, count)))
        support, labels, queries = (
            torch.from_numpy(numbers).to(model.device)
            for numbers in (episodes.support, episodes.labels, episodes.queries)
        )
        pictures = scale_pixels(pixel_cache.gather(torch.cat((support, queries), dim=1)))
        logits = query_logits(model, pictures, labels).float()  # batch queries ways
        answers = torch.arange(ways, device=model.device).expand(len(logits), -1)
        losses.append(F.cross_entropy(logits.movedim(-1, 1), answers, reduction="none").double().mean(dim=1))
        right.append((logits.argmax(dim=-1) == answers).double().mean(dim=1))
    accuracy = torch.cat(right)
    deviation = float(accuracy.std()) if count > 1 else math.nan
    return {
        "loss": float(torch.cat(losses).mean()),
        "accuracy": float(accuracy.mean()),
        "margin": Z_95 * deviation / math.sqrt(count),
    }


def query_logits(
    model: SNAIL, pictures: Shaped[Tensor, "batch pictures channels height width"], labels: Int[Tensor, "batch support"]
) -> Float[Tensor, "batch queries ways"]:
    """Logits of every unlabeled picture, each as if it alone followed the labeled ones.

    Each picture is embedded once for all sequences it is in.
    """
    rows, num_support = labels.shape
    num_queries = pictures.shape[1] - num_support
    features = model.embed(pictures.flatten(0, 1)).unflatten(0, (rows, -1))
    support = features[:, None, :num_support].expand(-1, num_queries, -1, -1)
    sequences = torch.cat((support, features[:, num_support:, None]), dim=2)  # batch queries support+1 features
    repeated = labels[:, None].expand(-1, num_queries, -1)
    return model.classify(sequences.flatten(0, 1), repeated.flatten(0, 1)).unflatten(0, (rows, num_queries))
