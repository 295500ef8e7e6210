"""Image captioning, with the attention of each word over the picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped, UInt8

from qkv.attention import watch
from qkv.datasets.captions import feature_names, read_features
from qkv.datasets.image_files import read_image
from qkv.errors import InputError
from qkv.generation import DecodingConstraints, Hypothesis, Sampling, beam_search, greedy_search, sample
from qkv.hub import load_as
from qkv.models.show_attend_tell import ShowAttendTell
from qkv.pipelines.image_preprocessing import scale_pixels
from qkv.pipelines.output import Answer, AttentionMap
from qkv.pipelines.special_tokens import SpecialTokenIds
from qkv.runtime.device import pick_device
from qkv.tokenizers.vocabulary import Vocabulary
from qkv.types import Float, Tensor

BATCH = 256  # hypotheses decoded at a time
FEATURES = ".safetensors"  # suffix of a file of features
BLANK = 224  # grey level shown instead of a picture if only its features are known


@dataclass(frozen=True, kw_only=True)
class Captioned(Answer):
    """A caption; the rows of its maps are its tokens, the columns the cells of the feature grid in row-major order."""

    pixels: UInt8[np.ndarray, "height width colours"]  # the model's input
    grid: tuple[int, int]  # rows and columns of the feature grid


@dataclass(frozen=True)
class NamedPicture:
    """A picture to caption: its name, and its pixels or features."""

    name: str
    picture: Shaped[np.ndarray, "channels height width"]

    @property
    def pixels(self) -> UInt8[np.ndarray, "height width colours"]:
        """Pixels for display; blank for features."""
        if self.picture.dtype != np.uint8:
            return np.full((*self.picture.shape[1:], 3), BLANK, dtype=np.uint8)
        return np.moveaxis(self.picture.repeat(3, axis=0) if len(self.picture) == 1 else self.picture, 0, -1)


class Captioner:
    """A captioner with its vocabulary: `Captioner("runs/shapes-attend-0")("scene.png").text`."""

    def __init__(
        self, model: str | Path | ShowAttendTell, vocabulary: Vocabulary | None = None, device: str = "auto"
    ) -> None:
        loaded = model if isinstance(model, ShowAttendTell) else load_as(ShowAttendTell, model, pick_device(device))
        self.model: ShowAttendTell = loaded.eval()
        tokenizer = vocabulary or self.model.tokenizer
        if tokenizer is None:
            raise InputError(f"{model}: no vocabulary was found next to the weights; pass one")
        self.vocabulary: Any = tokenizer
        self.special_tokens = SpecialTokenIds.from_tokenizer(self.vocabulary, self.model.config)

    def __call__(self, path: str | Path, **search: Any) -> Captioned:
        """Caption one picture, with its attention maps; `search` as in `decode`: `beam=5`."""
        return self.caption([path], **search)[0]

    def caption(self, paths: Sequence[str | Path], **search: Any) -> list[Captioned]:
        """Caption each picture, resized to the model's input size, or each entry of a file of features.

        `search` as in `decode`.
        """
        pictures = [picture for path in paths for picture in self._load(Path(path))]
        answers: list[Captioned] = []
        for chunk in _chunks(pictures, BATCH // max(1, search.get("beam", 1))):
            images = as_images([picture.picture for picture in chunk], self.model.device)
            hypotheses = self.decode(images, **search)
            for picture, best, maps in zip(chunk, hypotheses, self.attention(images, hypotheses), strict=True):
                text = self.vocabulary.decode(best.tokens)
                grid = self.model.config.grid
                answers.append(Captioned(picture.name, text, best.score, maps, pixels=picture.pixels, grid=grid))
        return answers

    @torch.inference_mode()
    def decode(
        self,
        images: Float[Tensor, "batch channels height width"],
        *,
        beam: int = 1,
        length_penalty: float = 1.0,
        sampling: Sampling | None = None,
    ) -> list[Hypothesis]:
        """Return the best caption of each picture, or with `sampling` a sampled one."""
        model = self.model
        state = model.init_state(model.encode(images))
        rules = DecodingConstraints(
            batch=len(images),
            begin=self.special_tokens.begin,
            end=self.special_tokens.end,
            max_length=model.config.max_length - 1,  # leave room for the end token
            suppress_tokens=self.special_tokens.suppress,
        )
        if sampling is not None:
            hypotheses = sample(model, state, rules, sampling, samples=1, length_penalty=length_penalty)
        elif beam > 1:
            hypotheses = beam_search(model, state, rules, beam=beam, length_penalty=length_penalty)
        else:
            return greedy_search(model, state, rules, length_penalty=length_penalty)
        return [best for best, *_ in hypotheses]

    @torch.inference_mode()
    def attention(
        self, images: Float[Tensor, "batch channels height width"], hypotheses: Sequence[Hypothesis]
    ) -> list[tuple[AttentionMap, ...]]:
        """Attention maps of each caption, from one more forward pass; empty for a model without attention."""
        layers = self.model.alignment_layers
        if not layers:
            return [()] * len(hypotheses)
        width = max(len(hypothesis.tokens) for hypothesis in hypotheses) + 1
        target_in = [
            [
                self.special_tokens.begin,
                *hypothesis.tokens,
                *[self.special_tokens.end] * (width - 1 - len(hypothesis.tokens)),
            ]
            for hypothesis in hypotheses
        ]
        with watch(self.model, layers=list(layers)) as records:
            self.model(images, torch.tensor(target_in, device=images.device))
        height, width = self.model.config.grid
        columns = tuple(f"{row},{column}" for row in range(1, height + 1) for column in range(1, width + 1))
        pieces = [tuple(self.vocabulary.piece(token) for token in hypothesis.tokens) for hypothesis in hypotheses]
        weights = {name: records[name].weights.float().cpu().numpy() for name in layers}
        return [
            tuple(
                AttentionMap(name, rows, columns, layer_weights[number, :, : len(rows)])
                for name, layer_weights in weights.items()
            )
            for number, rows in enumerate(pieces)
        ]

    def _load(self, path: Path) -> Iterator[NamedPicture]:
        config = self.model.config
        expected = (config.channels, config.height, config.width)
        if path.suffix != FEATURES:
            if config.encoder.name == "features":
                raise InputError(
                    f"{path}: this model takes features {list(expected)}, not pictures: pass a {FEATURES} file"
                )
            yield NamedPicture(path.name, read_image(path, *expected))
            return
        names = feature_names(path)
        for name, grid in zip(names, read_features(path, names), strict=True):
            if config.encoder.name != "features" or grid.shape != expected:
                what = "features" if config.encoder.name == "features" else "pictures"
                raise InputError(f"{path}: {name} is {list(grid.shape)}, but this model takes {what} {list(expected)}")
            yield NamedPicture(name, grid)


def as_images(
    pictures: Sequence[Shaped[np.ndarray, "channels height width"]], device: torch.device
) -> Float[Tensor, "batch channels height width"]:
    """Convert pictures to model input: bytes to numbers from -1 to 1, features unchanged."""
    images = torch.from_numpy(np.stack(pictures)).to(device)
    return scale_pixels(images) if images.dtype == torch.uint8 else images


def _chunks(pictures: Sequence[NamedPicture], size: int) -> Iterator[Sequence[NamedPicture]]:
    for begin in range(0, len(pictures), max(1, size)):
        yield pictures[begin : begin + max(1, size)]
