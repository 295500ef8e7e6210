"""Attention of a few-shot classifier: the pictures of an episode that the query attends to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import UInt8

from qkv.attention import watch
from qkv.datasets.examples.episodes import FewShotDataset
from qkv.errors import InputError
from qkv.interpret.encoder_predictions import rank_labels
from qkv.models.snail import SNAIL
from qkv.pipelines.inputs.image_preprocessing import as_rgb, scale_pixels
from qkv.pipelines.output import Answer, AttentionMap
from qkv.pipelines.pipeline import Pipeline, one_or_many
from qkv.tasks.few_shot import EVAL_SEED

QUERY = "?"  # the picture without a label


@dataclass(frozen=True, kw_only=True, repr=False)
class EpisodeAnswer(Answer):
    """The predicted label of an episode's query, and its attention.

    The columns of each map are the pictures in order, named by their labels, and the query last; the query is the only
    row.
    """

    pixels: UInt8[np.ndarray, "length height width colors"]
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


class EpisodeProbe(Pipeline):
    """A few-shot classifier: `EpisodeProbe("runs/omniglot-snail-5way-0", examples)(3).by_layer`."""

    task_description: ClassVar = "attention in episodes"
    model_class: ClassVar = SNAIL
    input_types: ClassVar = (int,)
    model: SNAIL

    def __init__(self, model: str | Path | SNAIL, examples: FewShotDataset, device: str = "auto") -> None:
        super().__init__(model, device=device)
        self.examples = examples
        config = self.model.config
        data_shape, model_shape = (examples.ways, *examples.pixels.shape[2:]), (config.ways, *self.model.embed.size)
        if data_shape != model_shape:
            raise InputError(
                f"episodes of {list(data_shape)} do not match the model's {list(model_shape)} "
                "[classes, channels, height, width]: use the data it was trained on"
            )

    @one_or_many
    @torch.inference_mode()
    def __call__(self, numbers: Sequence[int], layer: str | None = None) -> list[EpisodeAnswer]:
        """Return the attention in evaluation episodes, given by their numbers, in all layers or in `layer` only."""
        episodes = self.examples.sample(EVAL_SEED, numbers)
        queries = np.take_along_axis(episodes.queries, episodes.query_label[:, None], axis=1)
        pixels = self.examples.pixels.reshape(-1, *self.examples.pixels.shape[2:])[
            np.concatenate((episodes.support, queries), axis=1)
        ]
        labels = torch.from_numpy(episodes.labels).to(self.model.device)
        with watch(self.model, layers=layer) as records:
            logits = self.model(scale_pixels(torch.from_numpy(pixels)).to(self.model.device), labels)
        log_p = logits.float().log_softmax(dim=-1).cpu()
        weights = {name: record.weights[:, :, -1:].float().cpu().numpy() for name, record in records.items()}
        all_labels = np.concatenate((episodes.labels, episodes.query_label[:, None]), axis=1).tolist()
        names = [str(label + 1) for label in range(logits.shape[1])]
        answers = []
        for row, number in enumerate(numbers):
            guess = int(log_p[row].argmax())
            columns = (*(str(label + 1) for label in all_labels[row][:-1]), QUERY)
            answers.append(
                EpisodeAnswer(
                    f"episode {number}",
                    str(guess + 1),
                    float(log_p[row, guess]),
                    tuple(AttentionMap(name, (QUERY,), columns, layer[row]) for name, layer in weights.items()),
                    predictions=(rank_labels("", names, logits[row].cpu()),),
                    pixels=as_rgb(pixels[row]),
                    labels=tuple(all_labels[row]),
                    guess=guess,
                )
            )
        return answers
