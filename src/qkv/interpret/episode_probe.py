"""Attention of a few-shot classifier: the pictures of an episode that the query attends to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from qkv.attention import watch
from qkv.datasets.episodes import FewShotDataset
from qkv.errors import InputError
from qkv.hub import load_as
from qkv.models.snail import SNAIL
from qkv.pipelines.image_preprocessing import scale_pixels
from qkv.pipelines.output import Answer, AttentionMap
from qkv.runtime.device import pick_device
from qkv.tasks.few_shot import EVAL_SEED

QUERY = "?"  # the picture without a label


@dataclass(frozen=True, kw_only=True)
class EpisodeAnswer(Answer):
    """The predicted label of an episode's query, and its attention.

    The columns of each map are the pictures in order, named by their labels, and the query last; the query is the only
    row.
    """

    pixels: UInt8[np.ndarray, "length height width colours"]
    labels: tuple[int, ...]  # from 0; the last is the query's true label
    guess: int

    @property
    def right(self) -> bool:
        return self.guess == self.labels[-1]

    @property
    def by_layer(self) -> AttentionMap:
        """All layers in one map, a row for each."""
        weights = np.concatenate([layer.weights.mean(axis=0, keepdims=True) for layer in self.attention], axis=1)
        layers = tuple(layer.layer for layer in self.attention)
        return AttentionMap(f"what {QUERY} reads", layers, self.attention[0].columns, weights)


class EpisodeProbe:
    """A few-shot classifier: `EpisodeProbe("runs/omniglot-snail-5way-0", examples)(3).by_layer`."""

    def __init__(self, model: str | Path | SNAIL, examples: FewShotDataset, device: str = "auto") -> None:
        loaded = model if isinstance(model, SNAIL) else load_as(SNAIL, model, pick_device(device))
        self.model: SNAIL = loaded.eval()
        self.examples = examples
        config = self.model.config
        data_shape, model_shape = (examples.ways, *examples.pixels.shape[2:]), (config.ways, *self.model.embed.size)
        if data_shape != model_shape:
            raise InputError(
                f"episodes of {list(data_shape)} do not match the model's {list(model_shape)} "
                "[classes, channels, height, width]: use the data it was trained on"
            )

    def __call__(self, number: int) -> EpisodeAnswer:
        """Return the attention in one of the evaluation episodes, by its number."""
        return self.probe([number])[0]

    @torch.inference_mode()
    def probe(self, numbers: Sequence[int], layer: str | None = None) -> list[EpisodeAnswer]:
        """Return the attention in each episode, in all layers or in `layer` only."""
        episodes = self.examples.sample(EVAL_SEED, numbers)
        queries = np.take_along_axis(episodes.queries, episodes.query_label[:, None], axis=1)
        pixels = self.examples.pixels.reshape(-1, *self.examples.pixels.shape[2:])[
            np.concatenate((episodes.support, queries), axis=1)
        ]
        labels = torch.from_numpy(episodes.labels).to(self.model.device)
        with watch(self.model, layers=layer) as records:
            logits = self.model(scale_pixels(torch.from_numpy(pixels)).to(self.model.device), labels)
        log_p = logits.float().log_softmax(dim=-1).cpu()
        weights = {
            name: record.weights[:, :, -1:].float().cpu().numpy() for name, record in records.items()
        }  # b 1 1 length
        all_labels = np.concatenate((episodes.labels, episodes.query_label[:, None]), axis=1).tolist()
        return [
            _answer(number, pixels[row], tuple(all_labels[row]), log_p[row].numpy(), row, weights)
            for row, number in enumerate(numbers)
        ]


def _answer(
    number: int,
    pixels: UInt8[np.ndarray, "length channels height width"],
    labels: tuple[int, ...],
    log_p: np.ndarray,
    row: int,
    layer_weights: dict[str, np.ndarray],
) -> EpisodeAnswer:
    guess = int(log_p.argmax())
    columns = (*(str(label + 1) for label in labels[:-1]), QUERY)
    rgb = np.moveaxis(pixels.repeat(3, axis=1) if pixels.shape[1] == 1 else pixels, 1, -1)
    return EpisodeAnswer(
        f"episode {number}",
        str(guess + 1),
        float(log_p[guess]),
        tuple(AttentionMap(name, (QUERY,), columns, weights[row]) for name, weights in layer_weights.items()),
        pixels=rgb,
        labels=labels,
        guess=guess,
    )
