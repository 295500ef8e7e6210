"""Observing few-shot learning: an episode in, and out which pictures the one that is asked for attended to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from qkv.attention import watch
from qkv.attention.layers import chosen_layers
from qkv.data.episodes import FewShotDataset
from qkv.errors import InputError
from qkv.interop import load_as
from qkv.models.snail import SNAIL
from qkv.runtime.device import pick_device
from qkv.tasks.answer import Answer, AttentionMap
from qkv.tasks.few_shot import HELD_OUT
from qkv.tasks.image_classification import scaled

ASKED = "?"  # the picture without a label


@dataclass(frozen=True, kw_only=True)
class SeenEpisode(Answer):
    """What the last picture of an episode is taken for, and what it attended to.

    The columns of each map are the pictures in the order in which they were shown, by their labels, and at the end the
    one that is asked for; its only row is that one.
    """

    pixels: UInt8[np.ndarray, "length height width colours"]
    labels: tuple[int, ...]  # from 0; the last is what should be said
    guess: int

    @property
    def right(self) -> bool:
        return self.guess == self.labels[-1]

    @property
    def by_layer(self) -> AttentionMap:
        """All layers in one map: a row for each."""
        weights = np.concatenate([one.weights.mean(axis=0, keepdims=True) for one in self.maps], axis=1)
        return AttentionMap(f"what {ASKED} reads", tuple(one.layer for one in self.maps), self.maps[0].columns, weights)


class EpisodeObserver:
    """A few-shot classifier: `EpisodeObserver("runs/omniglot-snail-5way-0", examples)(3).by_layer`."""

    def __init__(self, model: str | Path | SNAIL, examples: FewShotDataset, device: str = "auto") -> None:
        given = model if isinstance(model, SNAIL) else load_as(SNAIL, model, pick_device(device))
        self.model: SNAIL = given.eval()
        self.examples = examples
        config = self.model.config
        shown, known = (examples.ways, *examples.pixels.shape[2:]), (config.ways, *self.model.embed.size)
        if shown != known:
            raise InputError(
                f"episodes of {list(shown)} are not for a model of {list(known)} [classes, channels, height, width]: "
                "give it those of the data it was trained on"
            )

    def __call__(self, number: int) -> SeenEpisode:
        """What the model attends to in the episode of a number, one of those it is evaluated on."""
        return self.observe([number])[0]

    @torch.inference_mode()
    def observe(self, numbers: Sequence[int], layer: str | None = None) -> list[SeenEpisode]:
        """What the model attends to in each episode: in all layers, or in one that is named."""
        if layer is not None:
            chosen_layers(self.model, layer)
        drawn = self.examples.sample(HELD_OUT, numbers)
        queries = np.take_along_axis(drawn.queries, drawn.query_label[:, None], axis=1)
        pixels = self.examples.pixels.reshape(-1, *self.examples.pixels.shape[2:])[
            np.concatenate((drawn.support, queries), axis=1)
        ]
        labels = torch.from_numpy(drawn.labels).to(self.model.device)
        with watch(self.model, layers=layer) as seen:
            logits = self.model(scaled(torch.from_numpy(pixels)).to(self.model.device), labels)
        log_p = logits.float().log_softmax(dim=-1).cpu()
        read = {name: record.weights[:, :, -1:].float().cpu().numpy() for name, record in seen.items()}  # b 1 1 length
        labelled = np.concatenate((drawn.labels, drawn.query_label[:, None]), axis=1).tolist()
        return [
            _seen(number, pixels[row], tuple(labelled[row]), log_p[row].numpy(), row, read)
            for row, number in enumerate(numbers)
        ]


def _seen(
    number: int,
    pixels: UInt8[np.ndarray, "length channels height width"],
    labels: tuple[int, ...],
    log_p: np.ndarray,
    row: int,
    read: dict[str, np.ndarray],
) -> SeenEpisode:
    guess = int(log_p.argmax())
    columns = (*(str(label + 1) for label in labels[:-1]), ASKED)
    colours = np.moveaxis(pixels.repeat(3, axis=1) if pixels.shape[1] == 1 else pixels, 1, -1)
    return SeenEpisode(
        f"episode {number}",
        str(guess + 1),
        float(log_p[guess]),
        tuple(AttentionMap(name, (ASKED,), columns, weights[row]) for name, weights in read.items()),
        pixels=colours,
        labels=labels,
        guess=guess,
    )
