"""Captions: a picture in, a sentence about it out, and where in the picture each word was read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped, UInt8

from qkv.attention import watch
from qkv.data.captions import feature_names, read_features
from qkv.data.picture_file import read_picture
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.generation import Hypothesis, Rules, Sampling, beam_search, greedy_search, sample
from qkv.interop import load_as
from qkv.models.captioner import ShowAttendTell
from qkv.runtime.device import pick_device
from qkv.tasks.answer import Answer, AttentionMap
from qkv.tasks.image_classification import scaled
from qkv.tasks.marks import Marks
from qkv.types import Float, Tensor

BATCH = 256  # hypotheses that are followed at a time
FEATURES = ".safetensors"  # how the name of a file of features ends
BLANK = 224  # the grey of a picture that nobody has seen


@dataclass(frozen=True, kw_only=True)
class Captioned(Answer):
    """A caption of a picture; each row of its maps is a token of it, and their columns are the places, row by row."""

    pixels: UInt8[np.ndarray, "height width colours"]  # as the model has seen them
    grid: tuple[int, int]  # how many places there are one below the other, and side by side


@dataclass(frozen=True)
class Seen:
    """A picture to be captioned: what it is called, and what a model reads of it."""

    name: str
    picture: Shaped[np.ndarray, "channels height width"]

    @property
    def pixels(self) -> UInt8[np.ndarray, "height width colours"]:
        """What a person sees; features are nothing to look at."""
        if self.picture.dtype != np.uint8:
            return np.full((*self.picture.shape[1:], 3), BLANK, dtype=np.uint8)
        return np.moveaxis(self.picture.repeat(3, axis=0) if len(self.picture) == 1 else self.picture, 0, -1)


class Captioner:
    """A captioner with its vocabulary: `Captioner("runs/shapes-attend-0")("scene.png").text`."""

    def __init__(
        self, model: str | Path | ShowAttendTell, vocabulary: Vocabulary | None = None, device: str = "auto"
    ) -> None:
        given = model if isinstance(model, ShowAttendTell) else load_as(ShowAttendTell, model, pick_device(device))
        self.model: ShowAttendTell = given.eval()
        found = vocabulary or self.model.tokenizer
        if found is None:
            raise InputError(f"{model}: a captioner needs a vocabulary, and there is none beside the weights")
        self.vocabulary: Any = found
        self.marks = Marks.of(self.vocabulary, self.model.config)

    def __call__(self, path: str | Path, **search: Any) -> Captioned:
        """The best caption of one picture, with its attention maps; `search` as in `caption`: `beam=5`."""
        return self.caption([path], **search)[0]

    def caption(self, paths: Sequence[str | Path], **search: Any) -> list[Captioned]:
        """A caption of each picture, scaled to the size that the model was made for, or of each in a file of features.

        `search` as in `write`.
        """
        seen = [one for path in paths for one in self._seen(Path(path))]
        answers: list[Captioned] = []
        for part in _parts(seen, BATCH // max(1, search.get("beam", 1))):
            images = as_images([one.picture for one in part], self.model.device)
            found = self.write(images, **search)
            for one, best, maps in zip(part, found, self.attention(images, found), strict=True):
                said = self.vocabulary.decode(best.tokens)
                grid = self.model.config.grid
                answers.append(Captioned(one.name, said, best.score, maps, pixels=one.pixels, grid=grid))
        return answers

    @torch.inference_mode()
    def write(
        self,
        images: Float[Tensor, "batch channels height width"],
        *,
        beam: int = 1,
        length_penalty: float = 1.0,
        sampling: Sampling | None = None,
    ) -> list[Hypothesis]:
        """The best caption that a search finds for each picture, or with `sampling` one that is drawn."""
        model = self.model
        state = model.init_state(model.encode(images))
        rules = Rules(
            batch=len(images),
            begin=self.marks.begin,
            end=self.marks.end,
            max_length=model.config.max_length - 1,  # the end token has its place, too
            never=self.marks.never,
        )
        if sampling is not None:
            found = sample(model, state, rules, sampling, samples=1, length_penalty=length_penalty)
        elif beam > 1:
            found = beam_search(model, state, rules, beam=beam, length_penalty=length_penalty)
        else:
            return greedy_search(model, state, rules, length_penalty=length_penalty)
        return [best for best, *_ in found]

    @torch.inference_mode()
    def attention(
        self, images: Float[Tensor, "batch channels height width"], found: Sequence[Hypothesis]
    ) -> list[tuple[AttentionMap, ...]]:
        """Where each token of each caption was read: one more pass over what search found. None of a model that tells
        without attending.
        """
        layers = self.model.alignment_layers
        if not layers:
            return [()] * len(found)
        width = max(len(one.tokens) for one in found) + 1
        begun = [[self.marks.begin, *one.tokens, *[self.marks.end] * (width - 1 - len(one.tokens))] for one in found]
        with watch(self.model, layers=list(layers)) as seen:
            self.model(images, torch.tensor(begun, device=images.device))
        down, across = self.model.config.grid
        columns = tuple(f"{row},{column}" for row in range(1, down + 1) for column in range(1, across + 1))
        pieces = [tuple(self.vocabulary.piece(token) for token in one.tokens) for one in found]
        weights = {name: seen[name].weights.float().cpu().numpy() for name in layers}
        return [
            tuple(AttentionMap(name, rows, columns, some[number, :, : len(rows)]) for name, some in weights.items())
            for number, rows in enumerate(pieces)
        ]

    def _seen(self, path: Path) -> Iterator[Seen]:
        config = self.model.config
        expects = (config.channels, config.height, config.width)
        if path.suffix != FEATURES:
            if config.encoder == "given":
                raise InputError(f"{path}: this model reads features {list(expects)}, not pictures: give a {FEATURES}")
            yield Seen(path.name, read_picture(path, *expects))
            return
        names = feature_names(path)
        for name, grid in zip(names, read_features(path, names), strict=True):
            if config.encoder != "given" or grid.shape != expects:
                what = "features" if config.encoder == "given" else "pictures"
                raise InputError(f"{path}: {name} is {list(grid.shape)}, and this model reads {what} {list(expects)}")
            yield Seen(name, grid)


def as_images(
    pictures: Sequence[Shaped[np.ndarray, "channels height width"]], device: torch.device
) -> Float[Tensor, "batch channels height width"]:
    """Pictures as a model reads them: bytes as numbers from -1 to 1, features as they are."""
    images = torch.from_numpy(np.stack(pictures)).to(device)
    return scaled(images) if images.dtype == torch.uint8 else images


def _parts(seen: Sequence[Seen], size: int) -> Iterator[Sequence[Seen]]:
    for begin in range(0, len(seen), max(1, size)):
        yield seen[begin : begin + max(1, size)]
